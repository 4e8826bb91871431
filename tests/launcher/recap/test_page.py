import html.parser
import math
import re

import pytest

from launcher import events
from launcher.recap.facts import gather
from launcher.recap.page import page, shown
from launcher.recap.svg import curve, shares
from launcher.recap.text import as_text
from scripts.recorded_run import record


class Balanced(html.parser.HTMLParser):
    """Every element that is opened is closed, in order."""

    EMPTY = {"meta", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    checker = Balanced()
    checker.feed(text)
    assert checker.open == []
    return checker.seen


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recorder = record(tmp_path_factory.mktemp("runs") / "r", nodes=2, slots=4, steps=60, alive=True)
    recorder.happened(events.Noted(1.0, "<script>alert(1)</script> & \x1b[2J"))
    recorder.flush()
    recorder.run.recipe.write_text("name: '</pre><img src=x>'\n")
    return recorder.run


def test_a_whole_page(run):
    """Well formed, with curves, attempts, failures and goodput; nothing in it loads, links or runs anything."""
    text = page(gather(run))
    assert parsed(text) >= {"svg", "path", "table", "details", "figure"}
    assert not re.search(r"https?:|<script|<img|<link|<iframe|url\(|@import|\x1b", text)
    for part in (
        "illegal memory access",
        "steps that count",
        "Attempts",
        "tokens/s",
        "&lt;script&gt;",
        "step 60",
    ):
        assert part in text


def test_text(run):
    """The same in words: what ran, attempts with why they failed, goodput that adds up to all of the time."""
    lines = as_text(gather(run))
    text = "\n".join(lines)
    for part in (
        "8 on node[001-002]",
        "failed: rank 7 on node002",
        "made progress",
        "loss",
        "MFU",
        "(median)",
    ):
        assert part in text
    assert "\x1b" not in text
    shares_ = [
        float(line.split()[-1].rstrip("%")) for line in lines if line.endswith("%") and "progress" not in line
    ]
    assert sum(shares_) == pytest.approx(100.0, abs=0.4)


def test_hostile_text():
    """Markup is text; escapes and what reorders text are gone."""
    assert shown("<b>&\x1b[31m\u202ex") == "&lt;b&gt;&amp;\N{REPLACEMENT CHARACTER}x"


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [math.nan, 1.0, math.inf, 2.0], list(range(5000))])
def test_curves(values):
    """Any numbers make a picture or none; never a NaN in a path."""
    text = curve([(float(n), float(value)) for n, value in enumerate(values)], "a <b>")
    assert "nan" not in text
    assert "inf" not in text
    assert not text or parsed(text) >= {"path"}
    assert len(text) < 20_000


def test_shares():
    """A bar is cut by shares; nothing is drawn for nothing."""
    text = shares([("a", 3.0), ("b", 0.0), ("c", 1.0)])
    assert re.findall(r'width="([\d.]+)"', text) == ["750.00", "250.00"]
    assert parsed(shares([])) == {"svg"}

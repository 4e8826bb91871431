import re

from launcher.dashboard.lines import Look
from launcher.dashboard.logfeed import LogLine
from launcher.dashboard.logpage import LogPage, chosen, why_no_choice, why_no_pattern
from launcher.dashboard.logview import Entry, Wanted, entries, log_lines, severity

LINES = [
    LogLine(1, 0, "step 1"), LogLine(1, 1, "step 1"), LogLine(1, 1, "[Warning] odd"), LogLine(2, 0, "step 1"),
    LogLine(2, 0, "RuntimeError: bad"),
]  # fmt: skip


def test_folding():
    """Equal lines of one look are one entry with their ranks; later ones are not drawn into it."""
    assert entries(LINES, Wanted())[0] == Entry("step 1", (0, 1))
    assert len(entries(LINES, Wanted())) == 4
    assert len(entries(LINES, Wanted(folded=False))) == 5
    assert entries([LogLine(1, 3, "x")] * 5, Wanted()) == [Entry("x", (3,), 5)]


def test_filters():
    """By level and by pattern, both at once."""
    assert [e.text for e in entries(LINES, Wanted(level="warnings"))] == [
        "[Warning] odd",
        "RuntimeError: bad",
    ]
    assert [e.text for e in entries(LINES, Wanted(level="errors"))] == ["RuntimeError: bad"]
    assert [e.text for e in entries(LINES, Wanted("warnings", re.compile("o")))] == [
        "[Warning] odd",
        "RuntimeError: bad",
    ]


def test_severity():
    """By words that programs use, not by parts of others."""
    assert severity("terror in the mirror") == 0
    assert severity("WARNING: x") == 1
    assert severity("ValueError: x") == severity("Traceback (most recent call last):") == 2


def test_lines_and_marks():
    """Host and rank before each line; what matches the search is marked and nothing is interpreted."""
    lines = log_lines(
        [Entry("[/bold]\x1b[31mred", (0,))], ["a"], Wanted(search=re.compile("bold")), Look(80, 24)
    )
    texts = [(span.text, span.tone) for span in lines[0]]
    assert texts[0][0].strip() == "a 0 |"
    assert ("bold", "mark") in texts
    assert not any("\x1b" in text for text, _ in texts)


def test_hits():
    """Next, previous and newest match, from where the screen stands."""
    page = LogPage()
    page.want(Wanted(search=re.compile("step")))
    page.lines = tuple(LINES)
    page.draw(["a", "b"], Look(80, 24))
    assert [page.hit(0, 1), page.hit(2, -1), page.hit(0, 0)] == [2, 0, 2]
    page.want(Wanted())
    assert page.hit(0, 1) is None


def test_choices():
    """Ranks or hosts; what cannot be is refused with a reason, a bad pattern too."""
    hosts = ["a", "a", "b"]
    assert chosen("", hosts) == (0, 1, 2)
    assert chosen("1-5", hosts) == (1, 2)
    assert chosen("a", hosts) == (0, 1)
    assert why_no_choice("9", hosts)
    assert why_no_choice("0-", hosts)
    assert why_no_choice("b", hosts) is None
    assert why_no_pattern("(")
    assert not why_no_pattern("x+")

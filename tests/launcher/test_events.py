import dataclasses
import json

import pytest

from launcher.events import Event, from_line, to_line

KINDS = Event.__subclasses__()
SAMPLES = {"float": 1.5, "str": "x", "int": 3, "int | None": None, "str | None": "SIGKILL",
           "dict[str, Any]": {"a": 1}, "list[dict[str, Any]]": [{"rank": 0}], "list[str]": ["a", ""],
           "dict[str, int]": {"0-3": 5}}  # fmt: skip


def sample(kind):
    return kind(**{f.name: SAMPLES[f.type] for f in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip(kind):
    """Every kind is the same event after a line of JSON."""
    event = sample(kind)
    assert from_line(json.loads(json.dumps(to_line(event)))) == event


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_newer_lines(kind):
    """A field that a newer version added is passed over; a missing one, or an unknown kind, makes no event."""
    line = to_line(sample(kind))
    assert from_line({**line, "invented": 1, "time": 2.0}) == sample(kind)
    del line["t"]
    assert from_line(line) is None


@pytest.mark.parametrize("line", [{}, {"event": None}, {"event": "Invented", "t": 1}, {"event": ["Tick"]}])
def test_unknown_lines(line):
    """What is no event of this version is None, not an error."""
    assert from_line(line) is None

import io
import os
from dataclasses import replace

from launcher.console import CLEAR, Console, has_color
from launcher.state import Failure, Policy, Rank, RunState

RANKS = tuple(Rank(n, n, "gpu-a", 0) for n in range(2))
STATE = RunState("r", "r", Policy(3, 10, 25, 30, False), RANKS, 9, {}, state="running", attempt=1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def console(out=None, err=None, quiet=False):
    out, err = out or io.StringIO(), err or io.StringIO()
    shown = Console(quiet, out, err)
    shown.state(STATE)
    return shown, out, err


def test_lines_are_whole_and_prefixed():
    """L07: pieces of two ranks never mix within a line; a last line without an end appears at the close."""
    shown, out, _ = console()
    shown.log("gpu-a", 0, b"he")
    shown.log("gpu-a", 1, b"other\n")
    shown.log("gpu-a", 0, b"llo\nrest")
    shown.close()
    assert out.getvalue() == "gpu-a 1 | other\ngpu-a 0 | hello\ngpu-a 0 | rest\n"


def test_no_control_bytes_without_a_terminal():
    """A log file of the launch holds plain lines, the same one not again and again."""
    shown, _, err = console()
    for _ in range(3):
        shown._drawn_at = -100.0
        shown.state(STATE)
    shown.note("a note")
    shown.close()
    assert err.getvalue() == "distperf: running\ndistperf: a note\n"


def test_the_progress_line_stays_last():
    """On a terminal it is cleared before other text and drawn again after it, and taken away at the end."""
    shown, out, err = console(err=Terminal())
    shown.log("gpu-a", 0, b"x\n")
    shown.close()
    assert err.getvalue() == f"{CLEAR}running{CLEAR}running{CLEAR}"
    assert out.getvalue() == "gpu-a 0 | x\n"


def test_what_is_left_is_told_by_the_pace_of_late():
    """One slow step among many does not make the end hours away; another attempt has a pace of its own."""
    shown, _, err = console(err=Terminal())
    for step, step_s in enumerate([1.0, 1.0, 1.0, 1.0, 500.0], start=1):
        shown.metrics({"step": step, "step_s": step_s})
    shown._drawn_at = -100.0
    shown.state(STATE)
    shown.state(replace(STATE, attempt=2))
    shown.metrics({"step": 5, "step_s": 2.0})
    shown._drawn_at = -100.0
    shown.state(replace(STATE, attempt=2))
    shown.close()
    assert "4.0 s left" in err.getvalue()
    assert "8.0 s left" in err.getvalue()


def test_quiet():
    """No rank output, no progress; notes are told."""
    shown, out, err = console(quiet=True)
    shown.log("gpu-a", 0, b"x\n")
    shown.note("restart 1 of 3")
    shown.close()
    assert out.getvalue() == ""
    assert err.getvalue() == "distperf: restart 1 of 3\n"


def test_readers_that_leave():
    """A broken stdout does not silence stderr, nor the other way round, and nothing raises."""
    shown, _, err = console(out=Broken())
    shown.log("gpu-a", 0, b"x\ny\n")
    shown.note("still here")
    shown.close()
    assert "still here" in err.getvalue()
    shown, out, _ = console(err=Broken())
    shown.note("gone")
    shown.log("gpu-a", 0, b"x\n")
    shown.close()
    assert out.getvalue() == "gpu-a 0 | x\n"


def test_changes_are_told():
    """A failure by name and host; an interrupt with how to hurry; a new attempt."""
    shown, _, err = console()
    failure = Failure("gpu-a", 1, "exit", 3, None, "exited with code 3", None, "")
    shown.state(replace(STATE, state="stopping", failure=failure))
    shown.state(replace(STATE, state="starting", attempt=2))
    shown.state(replace(STATE, state="stopping"))
    shown.close()
    text = err.getvalue()
    assert "rank 1 on gpu-a: exited with code 3; ending the other ranks" in text
    assert "attempt 2" in text
    assert "again to end them now" in text


def test_colors():
    """Colours where they are asked for or the terminal has them, and nowhere else; NO_COLOR has the word."""
    assert [has_color(stream, "auto") for stream in (io.StringIO(), Terminal())] == [
        False,
        "NO_COLOR" not in os.environ,
    ]
    for color, escapes in (("always", True), ("never", False)):
        out, err = io.StringIO(), Terminal()
        console_ = Console(False, out, err, color=color)
        console_.state(STATE)
        console_.log("gpu-a", 0, b"x\n")
        console_.note("n")
        console_.close()
        assert ("\x1b[36m" in out.getvalue()) == ("\x1b[1m" in err.getvalue()) == escapes


def test_verbose():
    """Every change of ranks, equal ones folded."""
    err = io.StringIO()
    shown = Console(False, io.StringIO(), err, verbose=True)
    shown.state(STATE)
    shown.state(replace(STATE, ranks=tuple(replace(rank, phase="train") for rank in RANKS)))
    shown.close()
    assert "distperf: ranks 0-1: phase train\n" in err.getvalue()

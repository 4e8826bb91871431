"""launch.setup: what is said of lines that failed, and what of a secret."""

from __future__ import annotations

import pytest

from launcher import checks, setup
from launcher.checks import Needs
from launcher.hostfile import Host
from launcher.setup import Changes, Setup

SETUP = Setup(("true", "module load cuda"), {"TOKEN": "hush", "A": "b"}, ("TOKEN",))
NEEDS = Needs(None, "/w", False, (), None, SETUP)


def answer(status, line=2, output="", env=None):
    return {
        "line": line,
        "status": status,
        "output": output,
        "seconds": 0.25,
        "env": env,
        "unset": [],
        "python": None,
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (answer(1 << 8), "line 2 of 2 (`module load cuda`) ended with code 1; it printed nothing"),
        (answer(9, 1), "line 1 of 2 (`true`) was ended by SIGKILL"),
        (answer("late"), "was not done after 300 s"),
        (answer(0), "left the shell with code 0, so that its environment is lost"),
        (answer(1 << 8, output="a\nb"), "; the last output:\n    | a\n    | b"),
        (answer(1 << 8, output="it is hush"), "    | it is ***"),
    ],
)
def test_a_failure_names_line_code_and_output(found, said):
    """Which line, how it ended, what it said; no secret."""
    assert said in setup.problem(SETUP, found)
    assert "hush" not in str(checks.setup(NEEDS, found))


def test_lines_that_went_well():
    """ok, with their number and time; what they changed goes with every order."""
    found = answer(0, env={"A": "c"})
    assert checks.setup(NEEDS, found).found == "2 lines in 0.2 s"
    assert setup.changes(found).wire() == {"env": {"A": "c"}, "unset": []}


def test_a_command_that_is_not_found_has_a_hint():
    """127: `module` and `conda` come from profiles that no login shell has read."""
    assert "source /etc/profile" in checks.setup(NEEDS, answer(127 << 8)).remedy


def test_values_are_in_no_repr():
    """Neither what is given nor what comes back is printed by accident."""
    assert "hush" not in repr(NEEDS)
    assert "hush" not in repr(Changes({"TOKEN": "hush"}))


def test_an_activated_interpreter_comes_before_the_launchers_own():
    """auto: what setup activated; python= and launch.python still win."""
    assert checks.candidates(Host("a", None), None, "/env/bin/python3") == ["/env/bin/python3"]
    assert checks.candidates(Host("a", None), "/opt/python", "/env/bin/python3") == ["/opt/python"]
    assert checks.candidates(Host("a", None, python="/p"), None, "/env/bin/python3") == ["/p"]

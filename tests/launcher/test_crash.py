import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.crash import crash_in

PIECES = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', '  File "a.py", line 1', "    x()",
          "ValueError: no", "x.Y", "[rank0]: ", "\n", "\r\n", "Exception ignored in: <f>",
          "python: can't open file 'x'", "p: No module named q"]  # fmt: skip

NESTED = """\
step 3
Traceback (most recent call last):
  File "/home/u/train.py", line 40, in <module>
    main()
  File "/home/u/train.py", line 12, in main
    fit(lr=-1)
    ~~~^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/optim/adamw.py", line 30, in __init__
    raise ValueError("bad lr")
ValueError: bad lr"""


def told(text, code=1):
    return str(crash_in(text, code))


def run(folder, code, *argv):
    (folder / "train.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *(argv or ["train.py"])], cwd=folder, capture_output=True, text=True
    )
    return crash_in(done.stdout + done.stderr, done.returncode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def main():\n    raise ValueError('bad lr')\nmain()", "ValueError: bad lr (train.py:2 in main)"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("import not_there", "ModuleNotFoundError: No module named 'not_there' (train.py:1)"),
        ("x = 1\ndef (:", "SyntaxError: invalid syntax (train.py:2)"),
        ("if 1:\nx", "IndentationError: expected an indented block after 'if' statement on line 1 (train.py:2)"),
        ("try:\n    1 / 0\nexcept Exception:\n    {}['k']", "KeyError: 'k' (train.py:4)"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded (train.py:1 in f)"),
        ("class E(Exception): pass\nraise E", "E (train.py:2)"),
        ("raise RuntimeError('first\\nsecond')", "RuntimeError: first (train.py:1)"),
    ],
)  # fmt: skip
def test_what_this_python_prints(tmp_path, code, said):
    """Type, first line of the message and the innermost line of the user's own, from a real interpreter's output."""
    assert str(run(tmp_path, code)).startswith(said)


@pytest.mark.slow
def test_programs_that_are_not_there(tmp_path):
    """The interpreter's own line: no such file, no such module."""
    missing = run(tmp_path, "", "nowhere.py")
    assert (missing.kind, missing.traceback) == ("FileNotFoundError", None)
    assert "nowhere.py" in missing.message
    assert str(run(tmp_path, "", "-m", "nowhere")) == "ModuleNotFoundError: No module named nowhere"


def test_frames_of_libraries_are_passed_over():
    """The place is the user's line, not that of the library which raised; all of the traceback is kept."""
    crash = crash_in(NESTED, 1)
    assert str(crash) == "ValueError: bad lr (train.py:12 in main)"
    assert crash.traceback == NESTED.partition("\n")[2]


def test_torch_marks_its_lines():
    """`[rank0]: ` before each line, as torch prints them once a process group stands."""
    marked = "\n".join(f"[rank0]: {line}" for line in NESTED.splitlines())
    assert told(marked) == told(NESTED)


def test_what_went_on_is_not_the_cause():
    """A destructor's traceback or another thread's ends no program; the one before it does."""
    late = NESTED.partition("\n")[2].replace("bad lr", "late")
    for before in ("Exception ignored in: <function f>", "Exception in thread Thread-1 (work):"):
        assert told(f"{NESTED}\n{before}\n{late}") == told(NESTED)


@pytest.mark.parametrize("code", [None, 0, 3, 137])
def test_a_logged_traceback_is_not_the_end(code):
    """A program that ends with a code of its own has not died of what it has printed."""
    assert crash_in(NESTED, code) is None


@given(
    st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=9)).map("\n".join),
    st.sampled_from([1, 2]),
)
def test_any_text(text, code):
    """Whatever a rank has written, nothing raises; what is found is in the text."""
    crash = crash_in(text, code)
    if crash is not None:
        assert crash.message in text

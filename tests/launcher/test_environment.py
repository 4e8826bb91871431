"""What an environment is named by, the lines that make it, and the table of what became of it."""

from __future__ import annotations

from launcher.environment import Environment, Pushed, outcome, table
from launcher.sync.code import CodeFile

LOCK = CodeFile("0-lock.txt", 0o644, 1, "d1")
WHEEL = CodeFile("wheels/a-1-py3-none-any.whl", 0o644, 1, "d2")


def made(**changed):
    said = {
        "python": "python3",
        "requirements": (LOCK,),
        "packages": (WHEEL,),
        "found": (WHEEL,),
        "offline": True,
    }
    return Environment(**{**said, **changed})


def test_equal_environments_have_one_name():
    """Contents, interpreter and whether an index may be asked make another one."""
    others = [
        made(requirements=(CodeFile("0-lock.txt", 0o644, 1, "d3"),)), made(python="python3.12"), made(offline=False),
        made(found=()), made(packages=()),
    ]  # fmt: skip
    assert made().key == made().key
    assert len({each.key for each in (made(), *others)}) == 6
    assert [file.path for file in made().files] == [LOCK.path, WHEEL.path]


def test_the_lines_install_what_was_sent():
    """From the wheels alone where there are any; an interpreter's name is one word of the shell's."""
    _, make, _ = made(python="my python").lines()
    assert "'my python' -m venv" in make
    assert "--no-index --find-links wheels -r 0-lock.txt ./wheels/a-1-py3-none-any.whl &&" in make
    assert "--no-index" not in made(offline=False).lines()[1]


def test_the_table_says_what_became_of_it():
    """Versions where it is there; pip's last words where it is not."""
    good = {"env": {"PUSHED": "made", "PUSHED_ENV": "/e"}, "status": 0, "seconds": 2.0, "output": ""}
    bad = {"env": None, "status": 256, "seconds": 1.0, "output": "x\nno matching distribution"}
    pushed = [outcome("a", good), outcome("b", bad)]
    assert pushed[0] == Pushed("a", "made", "/e", 2.0)
    assert table(pushed, {"a": {"python": "3.11.7", "torch": None}}) == [
        "host        seconds  python  torch",
        "a     made  2.0      3.11.7  -",
        "b     FAIL  1.0",
        "  pip or venv failed",
        "    | x",
        "    | no matching distribution",
    ]

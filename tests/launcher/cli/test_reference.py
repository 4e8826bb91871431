import os
import subprocess
import sys
from pathlib import Path

from launcher.cli.reference import reference


def test_the_page_is_up_to_date():
    """Made by `python -m launcher.cli.reference > docs/cli.md`; it names every command and its options."""
    assert Path("docs/cli.md").read_text() == reference()
    for part in ("## distperf launch", "## distperf ckpt verify", "## distperf save", "`--hosts"):
        assert part in reference()


def test_it_is_the_same_in_any_terminal():
    """Neither width nor colour of the terminal it is made in, nor its language, shows in it."""
    environ = {**os.environ, "COLUMNS": "40", "TERM": "dumb", "LANG": "C", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "launcher.cli.reference"]
    made = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert made == reference()

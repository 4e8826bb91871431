"""`distperf init`: a recipe and a hostfile to start from."""

from __future__ import annotations

from pathlib import Path

from distperf.recipe.starter import STARTER
from launcher.errors import LauncherError, UsageError

STARTER_HOSTFILE = """\
# One line a host, in the order of its ranks. Used with: distperf launch recipe.yaml --hosts hostfile
#
#   name            as in ~/.ssh/config, DNS or an address; user@name works; ranges: node[01-16,20]
#   slots=N         ranks on that host; left out: one for each device found, 1 on a CPU node
#   gpus=2,3        only these devices
#   port= python= workdir=    what differs from ~/.ssh/config, launch.python and launch.workdir
#
# gpu-a slots=8
# gpu-b slots=8
localhost slots=2
"""


def write_starter(folder: Path) -> list[Path]:
    """Write both files. Raises UsageError when one is there already, LauncherError when the disk refuses."""
    texts = {folder / "recipe.yaml": STARTER, folder / "hostfile": STARTER_HOSTFILE}
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise UsageError(f"{' and '.join(there)} exists already: nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LauncherError(f"cannot write to {folder}: {error.strerror}") from None
    return list(texts)

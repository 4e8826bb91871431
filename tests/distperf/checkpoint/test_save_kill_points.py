"""SIGKILL at every point of a save, by real ranks: what is left is the checkpoint before or the new one, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_save_killed_anywhere_leaves_the_older_or_the_newer_whole_g01(tmp_path, mode):
    """G01: either of two ranks is killed before each call into the operating system that its save makes. A load gives
    the step before, or the new one once it was renamed, each weight to the last bit; nothing was passed over.
    """
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "kill_points.py", tmp_path, mode],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    for kill in kills:
        assert kill["killed"], kill
        assert kill["exact"], kill
        assert kill["passed_over"] == [], kill
        assert kill["step"] in (kill["before"], kill["saving"]), kill
    of_rank_0 = [kill for kill in kills if kill["victim"] == 0]
    new = [kill["step"] == kill["saving"] for kill in of_rank_0]
    assert new == sorted(new), "from one point on it is the new one"
    assert not new[0]
    assert new[-1]
    points = {(kill["victim"], kill["point"]) for kill in kills}
    assert len(points) >= 20, sorted(points)
    assert (0, "_rename:rename") in points

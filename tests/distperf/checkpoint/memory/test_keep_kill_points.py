"""SIGKILL at every point at which two nodes keep a generation: one is whole, for both and for either alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]


@pytest.mark.timeout(300)
def test_a_copy_killed_anywhere_leaves_a_whole_generation_on_every_node(tmp_path):
    """Either of two ranks, each a node, is killed before each call into the operating system that it makes, those that
    send and receive its copy among them. Both nodes together go on from the generation before, or the new one, each
    weight to the last bit; so does the other node alone, where the victim's memory is gone too.
    """
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "memory_kill_points.py", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    for kill in kills:
        assert kill["killed"], kill
        for found in (kill["other"], kill["both"]):
            assert found["step"] in (kill["before"], kill["saving"]), kill
            assert found["exact"], kill
            assert found["passed_over"] == [], kill
    of_rank_0 = [kill["both"]["step"] == kill["saving"] for kill in kills if kill["victim"] == 0]
    assert not of_rank_0[0]
    assert of_rank_0[-1]
    points = {(kill["victim"], kill["point"]) for kill in kills}
    assert len(points) >= 20, sorted(points)
    assert {(1, "carry:recv"), (1, "_send:send"), (1, "_room:posix_fallocate"), (1, "_name:rename")} <= points

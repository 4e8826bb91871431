"""Traces of a run that is going."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from integration.launches import RECIPE, distperf, start

from launcher.traces import agreements

pytestmark = pytest.mark.slow


def test_traces_of_all_ranks_begin_with_the_same_step(tmp_path):
    """Three steps of each rank, with parts and torch's own events, in one file; the run goes on as if nothing was."""
    (tmp_path / "small.yaml").write_text(RECIPE.replace("steps: 20", "steps: 4000"))
    launch = start(tmp_path, "small.yaml", "--nproc", "2", "--no-check")
    launch.until(lambda status: status["step"] > 3)
    done = distperf(tmp_path, "profile", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +0 .*%.*\n +1 .*%.*\nslowest: rank [01], ", done.stderr, re.MULTILINE)
    path = re.search(r"^trace: (.*)$", done.stderr, re.MULTILINE)
    assert path
    events = json.loads(gzip.decompress(Path(path[1]).read_bytes()))["traceEvents"]
    ranks = [[e for e in events if e["pid"] // 1000 == rank] for rank in (0, 1)]
    ends = [agreements(own) for own in ranks]
    assert [len(own) for own in ends] == [3, 3]
    assert sorted(a - b for a, b in zip(*ends, strict=True))[1] == pytest.approx(0, abs=1)
    for own in ranks:
        names = {event["name"] for event in own}
        assert {"distperf.forward", "distperf.backward", "distperf.communication", "aten::linear"} <= names
    step = launch.status()["step"]
    launch.until(lambda status: status["step"] > step + 3)
    assert "has ranks 0 to 1" in distperf(tmp_path, "profile", "--rank", "2").stderr
    assert distperf(tmp_path, "stop").returncode == 0
    launch.end()

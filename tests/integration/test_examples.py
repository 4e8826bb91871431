"""The examples do what they say."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from integration.launches import distperf

EXAMPLE = Path(__file__).parents[2] / "examples" / "nanogpt"


def test_a_loop_moves_over_in_fewer_than_15_lines():
    """Lines taken out and put in, together."""
    before, after = ((EXAMPLE / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changed = [
        line for line in difflib.unified_diff(before, after, n=0) if re.match(r"[-+](?![-+]{2} )", line)
    ]
    assert 0 < len(changed) < 15, changed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_loop_before_and_after_has_the_same_losses(tmp_path):
    """DDP under torchrun, and initialize under torchrun and `distperf launch`; which sees the steps, and verifies the
    checkpoints.
    """
    for name in ("model.py", "before.py", "after.py", "recipe.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    said = [
        subprocess.run([*torchrun, name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        for name in ("before.py", "after.py")
    ]
    done = distperf(tmp_path, "launch", "--script", "after.py", "--nproc", "2", limit_s=300)
    losses = [re.findall(r"step [0-9]+  loss [0-9.]+", each.stdout) for each in (*said, done)]
    assert len(losses[0]) == 6, said[0].stderr
    assert losses[1] == losses[0], said[1].stderr
    assert losses[2] == losses[0], done.stderr
    lines = (tmp_path / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 31))
    verified = distperf(tmp_path, "ckpt", "verify", "checkpoints")
    assert verified.returncode == 0, verified.stderr

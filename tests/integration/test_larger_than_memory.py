"""A model whose state is three times what the kernel allows trains with the drives, and only with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "larger_than_memory.py"


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(1500)
def test_larger_than_memory(tmp_path):
    """Losses are those of the run without a limit, also when it is resumed from a checkpoint under the limit; without
    offload it is warned of, killed and explained, drives among the ways out.
    """
    if os.geteuid():
        pytest.skip("memory cgroups need root")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") == 11
    assert not list((tmp_path / "drive").iterdir())

"""Drives that cannot be used, and where states are put."""

from __future__ import annotations

import os

import pytest
import torch

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.keeping import Offload, check_drives, keep

LENGTHS = [1, 100, 37, 160]
CPU = torch.device("cpu")


def test_drives_that_cannot_be_used(tmp_path):
    """Missing, a file, not writable: told by host and folder before anything is built."""
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OffloadError, match=f"{tmp_path}/none is not there; make it, or mount the drive"):
        check_drives([str(tmp_path), str(tmp_path / "none")])
    with pytest.raises(OffloadError, match=f"offload.path cannot be used: .*: {tmp_path}/file is no folder"):
        check_drives([str(tmp_path / "file")])
    if os.geteuid():
        with pytest.raises(OffloadError, match=f"{tmp_path}/locked cannot be written: Permission denied"):
            check_drives([str(tmp_path / "locked")])
    else:
        with pytest.raises(OffloadError, match="/proc/self/task cannot be written"):
            check_drives(["/proc/self/task"])
    check_drives([])


def test_offload_to_the_host_moves_nothing_on_a_host(tmp_path):
    """On a node without devices the state is where the weights are, and counted as the host's."""
    kept = [torch.zeros(n, dtype=torch.bfloat16) for n in LENGTHS]
    states, lane = keep(Offload("cpu", 0.5, longest=16), kept, CPU, torch.float32)
    assert lane is None
    total = 12 * sum(LENGTHS)
    found = states.memory()
    assert found["host_bytes"] + found["optimizer_bytes"] == total
    assert found["host_bytes"] == pytest.approx(total / 2, abs=12 * 16)
    assert not list(tmp_path.glob(f"{folder.PREFIX}*"))

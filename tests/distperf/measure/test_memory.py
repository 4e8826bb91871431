"""Freed blocks go back to the kernel once the C library was told so."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREES = """
import os
import torch
from distperf.measure.memory import give_back_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

give_back_freed_memory()
torch.zeros(8 << 20)  # after which glibc would take blocks of up to this size from its heap
before, kept = resident(), []
for _ in range(100):
    layer = torch.ones(200_000)
    kept.append(torch.ones(16))  # what stays, between what goes
    del layer
held = [torch.ones(200_000) for _ in range(100)]
kept += [torch.ones(16) for _ in range(100)]
del held
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_freed_layers_leave_memory():
    """Of 80 MB that came and went between small blocks that stay, next to nothing is resident."""
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 << 20

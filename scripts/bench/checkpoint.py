"""Saving and loading, against torch's DCP and torch.save, and against what the disk can do, in one run.

    python scripts/bench/checkpoint.py [--parameters 110e6] [--repeats 5] [--dir FOLDER]

One rank on the CPU with parameters and Adam's two moments in fp32. Medians; first saves, which also allocate host
memory, are not counted. "training stops": until the call returns, and before the next update until all is copied.
"training loses": how much longer than else it takes until the next update may begin, a step's passes (products, as fast
as they go while the save goes on) in between. "disk": the same bytes written and read plainly, by fio where it is
installed. Cold: the page cache was asked to let the files go. Worth something on a quiet machine only: the load average
is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.checkpoint.background import HostCopy, SaveThread, Snapshot
from distperf.checkpoint.blocks import BLOCK_BYTES, hash_of
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.manifest import Origin, Position, read_manifest, step_name
from distperf.checkpoint.read import Stored
from distperf.checkpoint.save import CheckpointWriter
from distperf.parallel.pieces import OwnedTensor, Piece

ROWS = 2048  # of each tensor


def make_state(parameters: int) -> dict[str, torch.Tensor]:
    """Parameters and moments, in tensors of a model's usual sizes."""
    columns, count = 2048, max(1, parameters // (ROWS * 2048))
    names = [f"{kind}.layers.{at}" for kind in ("model", "exp_avg", "exp_avg_sq") for at in range(count)]
    return {name: torch.randn(ROWS, columns) for name in names}


def owned(state: dict[str, torch.Tensor]) -> dict[str, OwnedTensor]:
    return {n: OwnedTensor(tuple(t.shape), t.dtype, (Piece((0, 0), t),)) for n, t in state.items()}


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def passes() -> None:
    """What a step computes before its update, about a second of it."""
    a = torch.full((1024, 1024), 0.5)
    for _ in range(40):
        a = a @ a / 512


def forget(folder: Path) -> None:
    """Have the page cache let go of the files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Figures:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def show(self, size_bytes: int) -> None:
        for name, all_ in self.seconds.items():
            median = statistics.median(all_)
            rate = f"{size_bytes / median / 1e9:6.2f} GB/s"
            print(f"{name:<50} {median:8.3f} s  ({min(all_):.3f} to {max(all_):.3f})  {rate}")


def distperf_round(
    figures: Figures, state: dict[str, torch.Tensor], folder: Path, step: int, copy: HostCopy
) -> None:
    writer = CheckpointWriter(str(folder), Origin("bench", "bench", 1, 1, {}, "fp32", 0, {}), Retention(0))
    by_itself = timed(lambda: writer.save(Position(1000 + step, step, 0, 0), owned(state)))
    shutil.rmtree(folder / step_name(1000 + step))
    alone = timed(passes)
    began = time.perf_counter()
    snapshot = Snapshot(copy, owned(state))
    running = SaveThread(step, lambda: writer.save(Position(step, step, 0, 0), snapshot.take()))
    blocked = time.perf_counter() - began
    passes()
    blocked += snapshot.wait()
    update = time.perf_counter() - began
    path = running.result().path
    if step > 1:
        figures.add("distperf: until it is on disk, nothing beside it", by_itself)
        figures.add("distperf: training stops", blocked)
        figures.add("distperf: training loses", update - alone)
        figures.add("distperf: until it is on disk", time.perf_counter() - began)
    target = owned({name: torch.zeros_like(t) for name, t in state.items()})
    for name in ("cold", "warm"):
        if name == "cold":
            forget(path)
        figures.add(f"distperf: load, {name}", timed(lambda: Stored(path, read_manifest(path)).fill(target)))
    shutil.rmtree(path)


def dcp_round(figures: Figures, state: dict[str, torch.Tensor], folder: Path, step: int) -> None:
    path = folder / f"dcp-{step}"
    alone = timed(passes)
    began = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=path)
    blocked = time.perf_counter() - began
    passes()
    update = time.perf_counter() - began
    future.result()
    whole = time.perf_counter() - began
    forget_s = timed(lambda: forget(path))  # also forces it to disk, which DCP leaves to the kernel
    if step > 1:
        figures.add("DCP: training stops (async_save)", blocked)
        figures.add("DCP: training loses (async_save)", update - alone)
        figures.add("DCP: until it is on disk", whole + forget_s)
    target = {name: torch.zeros_like(t) for name, t in state.items()}
    for name in ("cold", "warm"):
        figures.add(f"DCP: load, {name}", timed(lambda: dcp.load(target, checkpoint_id=path)))
    shutil.rmtree(path)


def torch_round(figures: Figures, state: dict[str, torch.Tensor], folder: Path) -> None:
    path = folder / "torch"
    path.mkdir()
    seconds = timed(lambda: torch.save(state, path / "file"))
    figures.add("torch.save: training stops", seconds)
    figures.add("torch.save: until it is on disk", seconds + timed(lambda: forget(path)))
    for name in ("cold", "warm"):
        figures.add(f"torch.load, {name}", timed(lambda: torch.load(path / "file", weights_only=True)))
    shutil.rmtree(path)


def disk_round(figures: Figures, size_bytes: int, folder: Path) -> None:
    """What the disk does with as many bytes, a mebibyte at a time."""
    path = folder / "disk"
    path.mkdir()
    if shutil.which("fio"):
        for kind, more in (("write", "--end_fsync=1"), ("read", "--invalidate=1")):
            figures.add(f"disk: {kind} (fio)", fio_seconds(kind, more, path / "file", size_bytes))
    else:
        block = os.urandom(1 << 20)

        def write() -> None:
            with open(path / "file", "wb", buffering=0) as file:
                for _ in range(size_bytes >> 20):
                    file.write(block)
                os.fsync(file.fileno())

        def read() -> None:
            into = bytearray(1 << 20)
            with open(path / "file", "rb", buffering=0) as file:
                while file.readinto(into):
                    pass

        figures.add("disk: write (plain)", timed(write))
        forget(path)
        figures.add("disk: read, cold (plain)", timed(read))
    shutil.rmtree(path)


def fio_seconds(kind: str, more: str, file: Path, size_bytes: int) -> float:
    """What fio itself counts, without its start."""
    job = ["--name=x", f"--filename={file}", "--bs=1m", f"--size={size_bytes}", f"--rw={kind}", more]
    done = subprocess.run(["fio", "--output-format=json", *job], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["job_runtime"]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=float, default=110e6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--dir", type=Path, default=None, help="On the disk to measure; default: a temporary folder."
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = make_state(int(options.parameters))
    size = sum(t.nbytes for t in state.values())
    print(f"load average {os.getloadavg()[0]:.1f}; {torch.get_num_threads()} threads")
    print(f"{size:,} bytes in {len(state)} tensors")
    figures, copy = Figures(), HostCopy()
    block = memoryview(os.urandom(BLOCK_BYTES))
    for step in range(1, options.repeats + 2):
        with tempfile.TemporaryDirectory(dir=options.dir) as tmp:
            distperf_round(figures, state, Path(tmp), step, copy)
            dcp_round(figures, state, Path(tmp), step)
            torch_round(figures, state, Path(tmp))
            disk_round(figures, size, Path(tmp))
            hashing = timed(lambda: [hash_of(block) for _ in range(size // BLOCK_BYTES)])
            figures.add("hashing alone", hashing)
    figures.show(size)


if __name__ == "__main__":
    main()

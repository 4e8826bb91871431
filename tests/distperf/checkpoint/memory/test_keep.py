"""Generations kept by real ranks on several nodes: found again by others, refused where there is no room."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Origin, Position
from distperf.checkpoint.memory.keep import Keeper
from distperf.checkpoint.memory.place import Place, meet
from distperf.checkpoint.memory.recall import Recall
from distperf.checkpoint.save import CheckpointWriter
from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor, pieces_of

pytestmark = pytest.mark.slow
ORIGIN = Origin("run-a", "n", 1, 4, {}, "fp32", 2, {})
SIZE = 1000


def at(folders: list[str]) -> Place:
    """Ranks spread evenly over nodes with these folders."""
    node = dist.get_rank() * len(folders) // dist.get_world_size()
    os.environ["DISTPERF_MEMORY"] = folders[node]
    return meet(node)


def divide(value: float) -> tuple[dict[str, OwnedTensor], torch.Tensor, int]:
    """This rank's part of a vector whose element i is value + i."""
    world, rank = dist.get_world_size(), dist.get_rank()
    start, stop = SIZE * rank // world, SIZE * (rank + 1) // world
    flat = torch.arange(start, stop).float() + value
    return {"model.a": OwnedTensor((SIZE,), torch.float32, pieces_of(flat, (SIZE,), start))}, flat, start


def keep_two_and_fail(folders: list[str], disk: str) -> str:
    """Save step 5, keep steps 5 and 10; then rank 3 may write no file longer than 1 kB, and 15 fails."""
    CheckpointWriter(disk, ORIGIN, Retention(1)).save(Position(5, 5, 35, 15), divide(5)[0])
    keeper = Keeper(at(folders), ORIGIN, copies=1)
    for step in (5, 10):
        keeper.finish(keeper.write(Position(step, step, 7 * step, 3 * step), divide(step)[0]))
    if dist.get_rank() == 3:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(CheckpointError) as caught:
        keeper.finish(keeper.write(Position(15, 15, 0, 0), divide(15)[0]))
    return str(caught.value)


def go_on(folders: list[str], disk: str) -> tuple[Any, ...]:
    """What the next attempt starts from: tokens, in memory or not, whether every element is right, what was damaged and
    passed over, and what was taken from another node.
    """
    owned, flat, start = divide(-1)
    recall = Recall(at(folders))
    found = load_newest(disk, replace(ORIGIN, attempt=2), "", lambda: owned, writes=False, recall=recall)
    assert found is not None
    expected = torch.arange(start, start + len(flat)).float() + found.manifest.step
    exact = torch.equal(flat, expected)
    return found.manifest.tokens, found.in_memory, exact, found.passed_over, found.mended


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Folders of two nodes with a generation of step 10, what 4 ranks said about step 15, and step 5 on disk."""
    path = tmp_path_factory.mktemp("kept")
    folders = [path / f"node-{node}" for node in range(2)]
    for folder in folders:
        folder.mkdir()
    disk = str(path / "disk")
    return folders, run_ranks(keep_two_and_fail, 4, [str(folder) for folder in folders], disk), disk


@pytest.fixture
def copies(kept, tmp_path):
    """The same, to be spoilt."""
    for folder in kept[0]:
        (tmp_path / folder.name / "step-00000010").mkdir(parents=True)
        for file in (folder / "step-00000010").iterdir():
            (tmp_path / folder.name / "step-00000010" / file.name).write_bytes(file.read_bytes())
    return [str(tmp_path / folder.name) for folder in kept[0]]


def test_the_newest_stays_alone_and_a_failed_one_leaves_nothing(kept):
    """Every rank hears which one failed and why. Each node holds its ranks' files, the other's, and one manifest."""
    folders, said, _ = kept
    assert set(said) == {said[0]}
    assert said[0].startswith("cannot keep step 15 in memory (rank 3): File too large")
    shards = {f"__{rank}_0.distcp" for rank in range(4)}
    for folder in folders:
        assert [path.name for path in folder.iterdir()] == ["step-00000010"]
        assert {path.name for path in (folder / "step-00000010").iterdir()} == {
            *shards,
            "index.json",
            "manifest.json",
        }
    first, second = (folder / "step-00000010" for folder in folders)
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()
    assert (first.stat().st_mode & 0o777) == 0o700


def test_other_numbers_of_ranks_and_nodes_go_on_from_it(kept, copies, tmp_path):
    """4 ranks on 2 nodes kept it. With the second node lost: 2 ranks on the first one, and 3 ranks of which each is a
    node, two of them with nothing.
    """
    disk = kept[2]
    assert run_ranks(go_on, 2, copies[:1], disk) == [(70, True, True, (), ())] * 2
    empty = [str(tmp_path / name) for name in ("new-1", "new-2")]
    for folder in empty:
        Path(folder).mkdir()
    assert run_ranks(go_on, 3, [empty[0], copies[1], empty[1]], disk) == [(70, True, True, (), ())] * 3


def flip(file: Path, at: int) -> None:
    """Another value for one byte, in place: in a shared mapping of the file too."""
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory:
        memory[at] ^= 1


SPOILT = {
    "a shard": [(0, "__0_0.distcp")],
    "shards of both nodes": [(0, "__0_0.distcp"), (1, "__3_0.distcp")],
    "a shard and its copy on other nodes": [(0, "__0_0.distcp"), (1, "__1_0.distcp")],
    "an index": [(0, "index.json")],
    "a manifest": [(1, "manifest.json")],
}


@pytest.mark.parametrize("files", SPOILT.values(), ids=SPOILT)
def test_what_is_damaged_on_one_node_is_taken_from_another(kept, copies, files):
    """Bytes are changed in the memory of a node that holds a file; the other's copy serves, not the disk, which is
    further back. Shards are told of: an index and a manifest are looked at before anything is read.
    """
    for node, name in files:
        file = Path(copies[node], "step-00000010", name)
        flip(file, file.stat().st_size // 2)
    shards = [name for _, name in files if name.endswith(".distcp")]
    for step, in_memory, exact, passed_over, mended in run_ranks(go_on, 4, copies, kept[2]):
        assert (step, in_memory, exact, passed_over) == (70, True, True, ())
        assert len(mended) <= len(shards)
        assert all("are not what was written (in model.a)" in problem for problem in mended)
        assert all(any(name in problem for name in shards) for problem in mended)


def test_what_is_damaged_on_all_nodes_is_passed_over(kept, copies):
    """The same shard, at other places of it: the disk serves, and every rank is told why."""
    for node, folder in enumerate(copies):
        flip(Path(folder, "step-00000010", "__1_0.distcp"), -400 - node)
    for step, in_memory, exact, (problem,), mended in run_ranks(go_on, 4, copies, kept[2]):
        assert (step, in_memory, exact, mended) == (35, False, True, ())
        assert "__1_0.distcp: bytes 0 to " in problem


@pytest.fixture
def alone():
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    del os.environ["DISTPERF_MEMORY"]


def test_damage_without_another_copy_is_passed_over(kept, copies, alone):
    """A flipped byte is found and told with its tensor, and the disk serves, though it is further back."""
    file = Path(copies[0], "step-00000010", "__1_0.distcp")
    flip(file, file.stat().st_size // 2)
    step, in_memory, exact, (problem,), mended = go_on(copies[:1], kept[2])
    assert (step, in_memory, exact, mended) == (35, False, True, ())
    assert "__1_0.distcp: bytes 0 to " in problem
    assert "are not what was written (in model.a)" in problem


def test_too_little_room_is_told_before_the_first_step(tmp_path, alone):
    """Two generations must fit; the message has both numbers, the place, and what can be done."""
    (tmp_path / "a").mkdir()
    huge = torch.zeros(1).expand(1 << 46)
    owned = OwnedTensor((1 << 46,), torch.float32, pieces_of(huge, (1 << 46,), 0))
    with pytest.raises(CheckpointError) as caught:
        Keeper(at([str(tmp_path / "a")]), ORIGIN, copies=1).check_room({"model.a": owned})
    said = str(caught.value)
    assert "no room for checkpoints in memory (rank 0): 2 times 281,474,976,712,704 bytes are needed" in said
    assert f"and {tmp_path} has " in said
    assert "checkpoint.memory.copies to 0" in said

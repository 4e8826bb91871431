"""Saving and loading by real ranks: any division into pieces, damage, full disks, foreign files."""

from __future__ import annotations

import io
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from distperf.checkpoint.load import find_start, load
from distperf.checkpoint.manifest import Origin, list_checkpoints
from distperf.checkpoint.save import CheckpointWriter, Saved
from distperf.checkpoint.shards import _MetadataUnpickler
from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor, Piece, pieces_of

pytestmark = pytest.mark.slow

SHAPES = {"model.a": (7, 5), "model.b": (11,), "model.c": (3, 4, 5), "model.scalar": ()}
PROGRESS = {"step": 10, "optimizer_step": 10, "tokens": 0, "samples": 0, "loss_scale": None}
ORIGIN = Origin("run-a", "n", 1, 1, {"layers": 2}, "fp32", 2, {})


def divide(value: float | None = None) -> tuple[dict[str, OwnedTensor], dict[str, tuple[Tensor, int]]]:
    """This rank's share of every tensor, and the flat storage behind it; element i is i, or all are `value`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    owned, flats = {}, {}
    for name, shape in SHAPES.items():
        numel = math.prod(shape)
        length = -(-numel // world)
        start, stop = min(numel, rank * length), min(numel, (rank + 1) * length)
        flat = torch.arange(start, stop).float() if value is None else torch.full((stop - start,), value)
        owned[name] = OwnedTensor(shape, torch.float32, pieces_of(flat, shape, start))
        flats[name] = (flat, start)
    return owned, flats


def save_step(folder: str, step: int, keep: int = 0) -> Saved:
    find_start(folder, ORIGIN, "")
    return CheckpointWriter(folder, ORIGIN, keep).save(
        step, divide()[0], optimizer_step=step, tokens=0, samples=0
    )


def save_steps(folder: str, *steps: int) -> list[Saved]:
    return [save_step(folder, step, keep=2) for step in steps]


def load_newest(folder: str) -> tuple[int, tuple[str, ...]]:
    found = find_start(folder, replace(ORIGIN, attempt=2), "")
    assert found is not None
    owned, flats = divide(-1.0)
    load(found, owned)
    for name, (flat, start) in flats.items():
        assert torch.equal(flat, torch.arange(start, start + len(flat)).float()), name
    return found.manifest.step, found.passed_over


def save_until_the_disk_is_full(folder: str) -> str:
    """Saves 5, 10 and 20; then rank 1 may write no file longer than 1 kB, and 30 fails."""
    save_steps(folder, 5, 10, 20)
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(CheckpointError) as caught:
        save_step(folder, 30)
    return str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, list[str]]:
    """Steps 10 and 20, saved by 4 ranks, and what each of them said about step 30."""
    path = tmp_path_factory.mktemp("checkpoints")
    return path, run_ranks(save_until_the_disk_is_full, 4, str(path))


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    subprocess.run(["cp", "-a", f"{saved[0]}/.", str(tmp_path)], check=True)
    return tmp_path


@pytest.fixture
def alone():
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_late_writer_of_an_earlier_attempt_changes_nothing(tmp_path, alone):
    """Attempt 1 is somewhere still alive when 2 has begun: it can neither begin a checkpoint nor finish one, and what
    attempt 2 saves is what stands there.
    """
    folder, later = str(tmp_path), replace(ORIGIN, attempt=2)
    late, writer = CheckpointWriter(folder, ORIGIN, 1), CheckpointWriter(folder, later, 1)
    late.save(5, divide()[0], optimizer_step=5, tokens=0, samples=0)
    partial = tmp_path / ".step-00000010.partial-1-x"
    partial.mkdir()
    find_start(folder, later, "")
    for step in (5, 10):
        with pytest.raises(CheckpointError, match="attempt 2 of this run has begun, and this is 1"):
            late.save(step, divide()[0], optimizer_step=step, tokens=0, samples=0)
    with pytest.raises(CheckpointError, match="attempt 2 of this run has begun"):
        late._commit(
            partial,
            tmp_path / "step-00000010",
            [[]],
            PROGRESS,
        )
    assert [info.step for info in list_checkpoints(folder)] == [5]
    assert writer.save(10, divide()[0], optimizer_step=10, tokens=0, samples=0).written
    assert [(info.step, info.manifest.attempt) for info in list_checkpoints(folder)] == [(10, 2)]


def test_attempts_of_other_runs_are_not_shut_out(tmp_path, alone):
    """A claim is the run's own; and a run that saves nothing leaves no folder."""
    find_start(str(tmp_path / "none"), replace(ORIGIN, attempt=2), "", writes=False)
    assert not (tmp_path / "none").exists()
    find_start(str(tmp_path), replace(ORIGIN, run_id="run-b", attempt=3), "")
    assert save_step(str(tmp_path), 5).written


def test_retention_and_latest_after_several_saves(saved):
    """With keep 2 the newest two stay, and `latest` names the newest."""
    assert [info.step for info in list_checkpoints(saved[0])] == [10, 20]
    assert (saved[0] / "latest").readlink() == Path("step-00000020")


def test_a_full_disk_fails_on_all_ranks_with_a_plain_message_g13(saved):
    """G13: one rank cannot write: all ranks raise, naming rank and cause, the partial one goes, older ones stay."""
    folder, messages = saved
    assert len(set(messages)) == 1
    assert "(rank 1)" in messages[0]
    assert "File too large" in messages[0]
    assert sorted(p.name for p in folder.iterdir()) == ["latest", "step-00000010", "step-00000020"]


def test_a_disk_that_is_too_small_is_found_before_writing_g13(tmp_path, alone):
    """G13: the estimate is compared with what the volume of checkpoint.dir has free."""
    piece = Piece((0,), torch.empty(2**50, device="meta"))
    huge = {"model.huge": OwnedTensor((2**50,), torch.float32, (piece,))}
    with pytest.raises(CheckpointError, match=r"needs 4,503,599,627,370,496 bytes and .* free"):
        CheckpointWriter(str(tmp_path), ORIGIN, 0).save(1, huge, optimizer_step=1, tokens=0, samples=0)
    assert list(tmp_path.iterdir()) == []


def test_pieces_load_into_one_rank(saved, alone):
    """What 4 ranks saved in pieces comes back whole on one."""
    assert load_newest(str(saved[0])) == (20, ())


def test_pieces_load_into_any_other_division(saved):
    """What 4 ranks saved comes back exactly on 3, whatever rectangles they own."""
    assert run_ranks(load_newest, 3, str(saved[0])) == [(20, ())] * 3


def test_the_previous_one_is_loaded_when_the_newest_is_damaged_g03(copy, alone):
    """G03: a shard cut by one byte is found before any rank loads, and said; the older one serves."""
    shard = copy / "step-00000020" / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    step, passed_over = load_newest(str(copy))
    assert step == 10
    assert str(shard) in passed_over[0]


def test_a_damaged_one_of_the_same_step_is_replaced_and_a_complete_one_kept(tmp_path, alone):
    """A restart that comes to a step again writes it only where it is not whole."""
    assert [saved.written for saved in save_steps(str(tmp_path), 2, 3, 3)] == [True, True, False]
    (tmp_path / "step-00000003" / "__0_0.distcp").write_bytes(b"")
    assert save_step(str(tmp_path), 3).written
    assert [(i.step, i.complete) for i in list_checkpoints(tmp_path)] == [(2, True), (3, True)]


def test_a_tensor_of_another_shape_or_name_is_refused_naming_both(copy, alone):
    """The manifest's model is compared first; the tensors themselves are, too."""
    found = find_start(str(copy), ORIGIN, "")
    for name, shape, said in (
        ("model.a", (5, 7), r"\(7, 5\) there and \(5, 7\)"),
        ("model.z", (1,), "model.z"),
    ):
        with pytest.raises(CheckpointError, match=said):
            load(found, {name: OwnedTensor(shape, torch.float32, ())})


@pytest.mark.parametrize(
    ("member", "found"),
    [("_MEM_FORMAT_ENCODING\nVTORCH_PRESERVE_FORMAT", True), ("Metadata\nV__init__", False)],
)
def test_enumerations_as_some_pythons_pickle_them(member, found):
    """Python 3.11.2 (Debian 12's) writes a member of an enumeration as a getattr: that is read, any other is not."""
    text = f"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n{member}\ntR."
    with nullcontext() if found else pytest.raises(pickle.UnpicklingError, match="no checkpoint needs"):
        assert _MetadataUnpickler(io.BytesIO(text.encode())).load().name == "TORCH_PRESERVE_FORMAT"


def test_metadata_that_names_code_runs_none(copy, alone):
    """A checkpoint's pickled metadata may name DCP's classes only."""
    metadata = copy / "step-00000020" / ".metadata"
    evil = pickle.dumps(Evil(copy / "ran"))
    metadata.write_bytes(evil + b"\0" * (metadata.stat().st_size - len(evil)))
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        load_newest(str(copy))
    assert not (copy / "ran").exists()


class Evil:
    """Unpickles into a call."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


KILLED_WRITER = """
import os, signal, sys, torch.distributed as dist
sys.path[:0] = [{root!r}, {tests!r}]
import importlib.util
spec = importlib.util.spec_from_file_location("case", {file!r})
case = importlib.util.module_from_spec(spec); spec.loader.exec_module(case)
from distperf.checkpoint.manifest import list_checkpoints
folder = {folder!r}

def in_child(step, kill_at):
    pid = os.fork()
    if pid == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        touched = 0
        def hook(event, args):
            nonlocal touched
            changes = event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink")
            if changes and folder in str(args[0] if event != "os.symlink" else args[1]):
                touched += 1
                if touched == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        case.save_step(folder, step, keep=1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert in_child(10, 0) == 0
for kill_at in range(1, 200):
    code = in_child(20, kill_at)
    complete = [i.step for i in list_checkpoints(folder) if i.complete]
    latest = os.readlink(folder + "/latest")
    whole = all(i.complete for i in list_checkpoints(folder))
    print(kill_at, code, complete, latest, whole)
    if code == 0 or 20 in complete:
        break
"""


def test_a_writer_killed_at_any_point_leaves_the_older_or_the_newer_whole_g01(tmp_path):
    """G01: SIGKILL before each change to the folder in turn: the older one is whole until the newer one is.

    Every run also meets what the killed one before it left behind.
    """
    root = Path(__file__).parents[3]
    folder = str(tmp_path / "c")
    code = KILLED_WRITER.format(root=str(root), tests=str(root / "tests"), file=__file__, folder=folder)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 8, "several points were tried"
    for line in lines[:-1]:
        assert "-9 [10] step-00000010 True" in line
    assert "20]" in lines[-1]
    assert lines[-1].endswith("True")

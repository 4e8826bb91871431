"""Saving and loading by real ranks: any division into pieces, damage, full disks, foreign files."""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from distperf.checkpoint.blocks import hash_of
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import find_start, load, load_newest
from distperf.checkpoint.manifest import (
    Origin,
    Position,
    claim,
    list_checkpoints,
    read_manifest,
    write_manifest,
)
from distperf.checkpoint.save import CheckpointWriter, Saved
from distperf.checkpoint.verify import verify
from distperf.errors import CheckpointCorrupt, CheckpointError, CheckpointSuperseded
from distperf.parallel.pieces import OwnedTensor, Piece, pieces_of

pytestmark = pytest.mark.slow

SHAPES = {"model.a": (7, 5), "model.b": (11,), "model.c": (3, 4, 5), "model.scalar": ()}
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
    return writer(folder, ORIGIN, keep).save(at(step), divide()[0])


def writer(folder: str, origin: Origin, keep: int = 0) -> CheckpointWriter:
    return CheckpointWriter(folder, origin, Retention(keep))


def at(step: int) -> Position:
    return Position(step, optimizer_step=step, tokens=0, samples=0)


def save_steps(folder: str, *steps: int) -> list[Saved]:
    return [save_step(folder, step, keep=2) for step in steps]


def go_on(folder: str) -> tuple[int, tuple[str, ...]]:
    owned, flats = divide(-1.0)
    found = load_newest(folder, replace(ORIGIN, attempt=2), "", lambda: owned)
    assert found is not None
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
    late, newer = writer(folder, ORIGIN, 1), writer(folder, later, 1)
    late.save(at(5), divide()[0])
    partial = tmp_path / ".step-00000010.partial-1-x"
    partial.mkdir()
    find_start(folder, later, "")
    for step in (5, 10):
        with pytest.raises(CheckpointSuperseded, match="attempt 2 of this run has begun, and this is 1"):
            late.save(at(step), divide()[0])
    with pytest.raises(CheckpointSuperseded, match="attempt 2 of this run has begun"):
        late._commit(partial, tmp_path / "step-00000010", [], at(10))
    assert [info.step for info in list_checkpoints(folder)] == [5]
    assert newer.save(at(10), divide()[0]).written
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
    with pytest.raises(CheckpointError, match=r"needs 4,503,599,627,372,544 bytes and .* free"):
        writer(str(tmp_path), ORIGIN).save(at(1), huge)
    assert list(tmp_path.iterdir()) == []


def test_pieces_load_into_one_rank(saved, alone):
    """What 4 ranks saved in pieces comes back whole on one."""
    assert go_on(str(saved[0])) == (20, ())


def test_pieces_load_into_any_other_division(saved):
    """What 4 ranks saved comes back exactly on 3, whatever rectangles they own."""
    assert run_ranks(go_on, 3, str(saved[0])) == [(20, ())] * 3


def damages(path: Path) -> Iterator[None]:
    """Damages a file in one way after another: a bit flipped at begin, middle and end; cut by a byte, empty, gone."""
    whole = path.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        yield
    for length in (len(whole) - 1, 0):
        path.write_bytes(whole[:length])
        yield
    path.unlink()
    yield
    path.write_bytes(whole)


def test_damage_to_any_file_is_named_and_the_one_before_is_taken_g03(copy, alone):
    """G03: every file of the newest, the manifest too. `verify` names this file and no other; a load passes the
    checkpoint over, says why, and gives the older one's values to the last bit.
    """
    newest = copy / "step-00000020"
    names = sorted(path.name for path in newest.iterdir())
    assert names == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4)), "index.json", "manifest.json"]
    for name in names:
        for _ in damages(newest / name):
            (found,) = verify(newest)
            assert found.path == newest / name
            assert str(newest) in found.problem
            step, (said,) = go_on(str(copy))
            assert step == 10
            assert name in said
    assert verify(newest) == []
    assert go_on(str(copy)) == (20, ())


def test_nothing_is_begun_anew_over_what_is_damaged(copy, alone):
    """With every checkpoint of the run damaged, its next attempt says so and changes nothing."""
    for step in copy.glob("step-*"):
        (step / "manifest.json").write_text("{}")
    claim(copy, ORIGIN.run_id, 2)  # as any start of attempt 2 does
    before = sorted(copy.rglob("*"))
    with pytest.raises(CheckpointError, match=r"no complete checkpoint to start from\n.*00010.*\n.*00020"):
        go_on(str(copy))
    assert sorted(copy.rglob("*")) == before


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


def test_other_tools_read_what_is_saved(saved, alone):
    """It is a checkpoint of torch's own (DCP): `dcp.load` gives the values."""
    import torch.distributed.checkpoint as dcp

    state = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
    with warnings.catch_warnings(action="ignore"):
        dcp.load(state, checkpoint_id=saved[0] / "step-00000020", no_dist=True)
    for name, found in state.items():
        assert torch.equal(found.flatten(), torch.arange(found.numel()).float()), name


class Evil:
    """Unpickles into a call."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_strangers_checkpoint_runs_no_code(copy, alone):
    """Whoever makes a checkpoint can make its hashes fit: DCP's metadata, which is a pickle, is not loaded at all."""
    step = copy / "step-00000020"
    evil = pickle.dumps(Evil(copy / "ran"))
    (step / ".metadata").write_bytes(evil)
    manifest = read_manifest(step)
    sums = replace(manifest.files[".metadata"], bytes=len(evil), blocks=(hash_of(evil),))
    (step / "manifest.json").unlink()
    write_manifest(step, replace(manifest, files={**manifest.files, ".metadata": sums}))
    assert go_on(str(copy)) == (20, ())
    assert not (copy / "ran").exists()


def test_damage_is_named_with_the_tensors_that_have_it(copy, alone):
    """A flipped bit: file, bytes and tensors are told, and nothing of it reaches the caller unnoticed."""
    shard = copy / "step-00000020" / "__2_0.distcp"
    text = bytearray(shard.read_bytes())
    text[1000] ^= 1
    shard.write_bytes(text)
    found = find_start(str(copy), ORIGIN, "")
    with pytest.raises(CheckpointCorrupt, match=r"__2_0.distcp: bytes 0 to .* model\.a, model\.b"):
        load(found, divide()[0])


def test_a_rank_needs_only_the_files_that_hold_its_pieces(copy, alone):
    """The last rows of a tensor are read with every other file damaged."""
    for other in (copy / "step-00000020").glob("__[0-2]_0.distcp"):
        other.write_bytes(bytes(other.stat().st_size))
    found = find_start(str(copy), ORIGIN, "")
    row = torch.zeros(1, 5)
    load(found, {"model.a": OwnedTensor((7, 5), torch.float32, (Piece((6, 0), row),))})
    assert row.tolist() == [[30, 31, 32, 33, 34]]

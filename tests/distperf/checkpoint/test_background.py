"""Saves beside training: what is copied is what is saved, and how it went is never lost."""

from __future__ import annotations

from functools import partial
from threading import Event

import pytest
import torch
import torch.distributed as dist

from distperf.checkpoint.background import HostCopy, SaveThread, Snapshot
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Origin, Position
from distperf.checkpoint.save import CheckpointWriter
from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor, Piece

pytestmark = pytest.mark.slow
ORIGIN = Origin("run-a", "n", 1, 1, {}, "fp32", 0, {})


@pytest.fixture(autouse=True)
def alone():
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state(values: torch.Tensor, *, saves: bool = True) -> dict[str, OwnedTensor]:
    return {"model.a": OwnedTensor(tuple(values.shape), values.dtype, (Piece((0,), values),), saves)}


def test_what_training_changes_after_the_copy_is_not_saved(tmp_path):
    """The next update may come before the thread has written anything."""
    values = torch.arange(1000.0)
    writer = CheckpointWriter(str(tmp_path), ORIGIN, Retention(0))
    running = SaveThread(1, partial(writer.save, Position(1, 1, 0, 0), HostCopy().take(state(values))))
    values.fill_(-1)
    assert running.result().written
    assert running.has_ended
    assert not running.failed
    found = load_newest(str(tmp_path), ORIGIN, "", lambda: state(values))
    assert found is not None
    assert torch.equal(values, torch.arange(1000.0))


def test_an_update_waits_for_the_copy_and_no_longer(tmp_path):
    """Whoever waits goes on once the copy is made, before anything is written; what is saved is what there was."""
    values = torch.arange(1000.0)
    writer = CheckpointWriter(str(tmp_path), ORIGIN, Retention(0))
    snapshot, copied, may_write = Snapshot(HostCopy(), state(values)), Event(), Event()

    def save():
        taken = snapshot.take()
        copied.set()
        may_write.wait()
        return writer.save(Position(1, 1, 0, 0), taken)

    running = SaveThread(1, save)
    snapshot.wait()
    copied.wait()
    values.fill_(-1)
    may_write.set()
    running.result()
    assert load_newest(str(tmp_path), ORIGIN, "", lambda: state(values)) is not None
    assert torch.equal(values, torch.arange(1000.0))


def test_host_memory_is_used_again_and_only_for_what_this_rank_saves():
    """The second copy lies where the first did; what another rank saves takes no room."""
    copy, values = HostCopy(), torch.arange(10.0)
    first = copy.take(state(values))["model.a"].pieces[0].tensor
    values += 1
    second = copy.take(state(values))["model.a"].pieces[0].tensor
    assert first.data_ptr() == second.data_ptr() != values.data_ptr()
    assert torch.equal(second, values)
    assert copy.take(state(values, saves=False)) == {}


def test_a_failure_is_kept_until_it_is_asked_for(tmp_path):
    """The thread ends, and what went wrong comes out where the save is waited for."""
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(str(tmp_path / "file"), ORIGIN, Retention(0))
    running = SaveThread(1, partial(writer.save, Position(1, 1, 0, 0), state(torch.zeros(3))))
    with pytest.raises(CheckpointError, match=r"step-00000001 \(rank 0\): "):
        running.result()
    assert running.failed

"""The tiers themselves: what is taken is what was given, whatever is still under way; failures come out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from late_copies import Late

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.disk import DiskTier
from distperf.offload.files import StateFile
from distperf.offload.keeping import Offload, check_drives, keep, rank_files
from distperf.offload.lane import Lane
from distperf.offload.spans import Span, cut, lay_out

LENGTHS = [1, 100, 37, 160]
CPU = torch.device("cpu")


def tier_in(drives: list[Path], dtype: torch.dtype = torch.bfloat16) -> tuple[DiskTier, list[Span]]:
    """Of four buckets, in spans of up to 16 elements."""
    spans = [span for own in cut(LENGTHS, 1.0, 16) for span in own]
    places, sizes = lay_out(spans, DiskTier.kinds(dtype, moves=False), len(drives))
    paths = rank_files(list(map(str, drives)), "run-a", 0)
    files = [StateFile(path, size) for path, size in zip(paths, sizes, strict=True)]
    return DiskTier(places, files, [torch.zeros(n, dtype=dtype) for n in LENGTHS]), spans


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_come_back_as_they_were_given(tmp_path, dtype):
    """Over many more spans than there are buffers, several rounds and two drives; views show the same."""
    drives = [tmp_path / "a", tmp_path / "b"]
    for drive in drives:
        drive.mkdir()
    tier, spans = tier_in(drives, dtype)
    for round_ in range(4):
        tier.prepare()
        tier.prepare()
        for number, span in enumerate(spans):
            state = tier.take(span)
            for at, tensor in enumerate(state.kept):
                assert tensor.shape == (span.numel,)
                assert tensor.eq(100 * number + 10 * at + round_ if round_ else 0).all()
                tensor.fill_(100 * number + 10 * at + round_ + 1)
            tier.give(state)
        if round_ == 1:  # a checkpoint between two steps
            for number, span in enumerate(spans):
                assert [t.unique().item() for t in tier.view(span).kept] == [
                    100 * number + 10 * at + 2 for at in range(len(state.kept))
                ]
    assert tier.memory()["buckets_bytes"] <= 9 * 3 * 4096
    tier.close()
    assert [list(drive.iterdir()) for drive in drives] == [[], []]


def test_what_is_loaded_replaces_what_was_read_ahead(tmp_path):
    """Views that were overwritten are what the next update takes."""
    tier, spans = tier_in([tmp_path])
    tier.prepare()
    for span in spans:
        tier.view(span).moments.exp_avg.fill_(7.0)
    tier.settle()
    tier.prepare()
    for span in spans:
        state = tier.take(span)
        assert state.moments.exp_avg.eq(7).all()
        assert state.moments.exp_avg_sq.eq(0).all()
        tier.give(state)
    tier.close()


def test_a_drive_that_fails_ends_the_update(tmp_path):
    """An error of a request in the background is raised where its span, or its buffer, is wanted next."""
    tier, spans = tier_in([tmp_path])
    path = next(tmp_path.glob("*/*"))
    os.truncate(path, 0)
    tier.prepare()
    with pytest.raises(OffloadError, match=f"{path}: bytes 0 to 12,288 cannot be read"):
        tier.take(spans[0])
    tier.close()


def test_a_lane_waits_before_it_uses_a_buffer_again():
    """Gradients and weights of many spans arrive right though copies are late; a few staging buffers serve all."""
    (spans,) = cut([160], 1.0, 16)
    copies = Late()
    lane = Lane(copies, spans, torch.float32, torch.bfloat16)
    grads, working = torch.arange(160.0), torch.zeros(160, dtype=torch.bfloat16)
    for factor in (1, 2):
        lane.send(spans, grads * factor)
        for span in spans:
            found = lane.gradients(span)
            assert torch.equal(found, grads[span.part] * factor)
            lane.stage(span).copy_(found)
            lane.publish(working[span.part])
        lane.join()
        assert torch.equal(working, (grads * factor).bfloat16())
    assert copies.most <= 4
    lane.send(spans, grads)
    lane.forget()
    assert lane.bytes == 160 * 4 + 3 * 16 * 2


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

"""States on drives: what is taken is what was given, whatever is still under way; failures come out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from distperf.errors import OffloadError
from distperf.offload.disk import DiskTier
from distperf.offload.files import StateFile
from distperf.offload.keeping import rank_files
from distperf.offload.spans import Span, cut, lay_out

LENGTHS = [1, 100, 37, 160]


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

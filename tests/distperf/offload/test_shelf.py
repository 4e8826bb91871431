"""Regions on drives: what was stored comes back, memory is given back, and what a drive refuses is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.keeping import open_shelf
from distperf.offload.shelf import REQUEST, Shelf
from distperf.offload.spans import BLOCK

LENGTHS = [4, BLOCK, BLOCK + 4, 3 * REQUEST + BLOCK, 5 * BLOCK, 8]  # bytes; one takes several requests


def shelf_in(*drives: Path, lengths: list[int] = LENGTHS) -> Shelf:
    name = f"{folder.PREFIX}run-a/rank-00000{folder.SUFFIX}"
    return open_shelf([drive / name for drive in drives], "weights", lengths)


@pytest.fixture
def shelf(tmp_path):
    """On two drives."""
    drives = [tmp_path / "a", tmp_path / "b"]
    for drive in drives:
        drive.mkdir()
    shelf = shelf_in(*drives)
    yield shelf
    shelf.close()
    assert [list(drive.iterdir()) for drive in drives] == [[], []]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_was_stored_comes_back(shelf):
    """Through the same tensors each time, whether a region was read ahead, was still being written, or neither."""
    tensors = [shelf.values(at) for at in range(len(LENGTHS))]
    for round_ in range(1, 4):
        for at, values in enumerate(tensors):
            shelf.blank(at) if round_ == 1 else shelf.bring(at)
            assert values.eq(0 if round_ == 1 else 100 * (round_ - 1) + at).all()
            values.fill_(100 * round_ + at)
            if at + 1 < len(tensors) and round_ == 2:
                shelf.ahead(at + 1)
            shelf.store(at)
            if round_ == 3:
                shelf.bring(at)
                assert values.eq(300 + at).all()
                shelf.drop(at)
    for at in range(len(tensors)):
        assert shelf.view(at).eq(300 + at).all()


def test_what_is_dropped_is_as_it_was_stored(shelf):
    """And a view that was overwritten is what is read next."""
    shelf.blank(4)
    shelf.values(4).fill_(1)
    shelf.store(4)
    shelf.bring(4)
    shelf.values(4).fill_(2)
    shelf.drop(4)
    shelf.bring(4)
    assert shelf.values(4).eq(1).all()
    shelf.view(4).fill_(3)
    shelf.settle()
    shelf.bring(4)
    assert shelf.values(4).eq(3).all()


def test_memory_is_given_back(tmp_path):
    """Of many regions that are filled one after the other, a few are there at a time; at the end none."""
    shelf = shelf_in(tmp_path, lengths=[16 << 20] * 8)
    before = most = resident_bytes()
    for at in range(8):
        shelf.blank(at)
        shelf.values(at).fill_(at)
        most = max(most, resident_bytes())
        shelf.store(at)
    shelf.forget()
    assert most - before < 4 * 17 << 20
    assert resident_bytes() - before < 8 << 20
    assert shelf.peak_bytes == 3 * 16 << 20
    shelf.close()


def test_a_drive_that_fails_is_told_where_the_region_is_wanted(tmp_path):
    """Reads of a file that lost its end: short ones."""
    shelf = shelf_in(tmp_path, lengths=[REQUEST] * 2)
    path = next(tmp_path.glob("*/*"))
    os.truncate(path, REQUEST + 3 * BLOCK)
    shelf.bring(0)
    shelf.ahead(1)
    start, end = REQUEST + 3 * BLOCK, 2 * REQUEST
    with pytest.raises(OffloadError, match=f"{path}: bytes {start:,} to {end:,} cannot be read: 0 of"):
        shelf.bring(1)
    shelf.close()


def test_no_room(tmp_path):
    """More than the file system has is refused before anything is written, and nothing is left."""
    free = os.statvfs(tmp_path)
    with pytest.raises(OffloadError, match=r"rank-00000-weights\.state: cannot have .* are free there"):
        shelf_in(tmp_path, lengths=[free.f_bavail * free.f_frsize + (1 << 30)])
    assert not list(tmp_path.iterdir()), os.strerror(errno.ENOSPC)


def test_regions_are_views_as_long_as_they_like(shelf):
    """Tensors over a region that has no memory read as zeros, and keep their place."""
    view = shelf.values(2)[:1]
    shelf.blank(2)
    view.fill_(5)
    shelf.store(2)
    shelf.forget()
    assert view.item() == 0
    shelf.bring(2)
    assert view.item() == 5
    assert torch.equal(shelf.view(2)[:1], view)

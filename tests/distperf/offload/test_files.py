"""State files: exact round trips of any size, direct or through the page cache; every refusal names the file."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.files import StateFile
from distperf.offload.spans import BLOCK, padded

SIZES = [2, BLOCK - 2, BLOCK, BLOCK + 2, 28_824_000]  # bytes; the last are 14,412,000 fp16 values
SMALL_BYTES = 64 << 10
BROKEN_BYTES = 8 << 20


def path_in(drive: Path) -> Path:
    return drive / f"{folder.PREFIX}run-a" / f"rank-00000{folder.SUFFIX}"


def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system in memory, for as long as a test takes."""
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", *options, "none", folder], capture_output=True).returncode:
        pytest.skip("cannot mount: needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small(tmp_path):
    """A file system of 64 KiB."""
    yield from mounted(tmp_path / "small", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}")


@pytest.fixture
def indirect(tmp_path):
    """A file system that takes no direct I/O, and preallocates nothing by itself."""
    yield from mounted(tmp_path / "indirect", "-t", "ramfs")


def round_trip(file: StateFile, sizes: list[int]) -> None:
    """Values of all sizes, one behind the other, come back as they were written; maps show them too."""
    offset = 0
    for size in sizes:
        data = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
        buffer, back = (torch.frombuffer(mmap.mmap(-1, padded(size)), dtype=torch.uint8) for _ in range(2))
        buffer[:size] = data
        file.write(offset, buffer.numpy().data)
        file.read(offset, back.numpy().data)
        assert torch.equal(back[:size], data)
        assert file.map()[offset : offset + size] == data.numpy().tobytes()
        offset += padded(size)


def test_round_trips_past_the_page_cache(tmp_path):
    """One value, a block less two bytes, a block, two more, and many: no tail is lost. Then the file is gone."""
    file = StateFile(path_in(tmp_path), sum(map(padded, SIZES)))
    assert file.is_direct, f"{tmp_path} takes no direct I/O"
    round_trip(file, SIZES)
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_round_trips_through_the_page_cache(indirect):
    """A file system without direct I/O is used all the same, and that is said."""
    sizes = SIZES
    with pytest.warns(UserWarning, match=f"{indirect} takes no direct I/O"):
        file = StateFile(path_in(indirect), sum(map(padded, sizes)))
    assert not file.is_direct
    round_trip(file, sizes)
    file.close()


def test_what_is_stored_in_a_map_is_read_directly(tmp_path):
    """And what is written directly is seen in the same map after."""
    file = StateFile(path_in(tmp_path), 2 * BLOCK)
    mapped, buffer = file.map(), mmap.mmap(-1, BLOCK)
    for value in (b"a", b"b"):
        mapped[:BLOCK] = value * BLOCK
        file.flush(mapped)
        file.read(0, memoryview(buffer))
        assert buffer[:] == value * BLOCK
        buffer[:] = value.upper() * BLOCK
        file.write(BLOCK, memoryview(buffer))
        assert mapped[BLOCK:] == value.upper() * BLOCK
    file.close()


def test_a_drive_that_is_too_small(small):
    """Refused at once, with both numbers, and nothing is left."""
    with pytest.raises(
        OffloadError,
        match=r"rank-00000.state: cannot have 1,048,576 bytes \(\d+,\d+ are free there\): No space",
    ):
        StateFile(path_in(small), 1 << 20)
    assert list(small.iterdir()) == []


def test_a_drive_that_breaks(tmp_path):
    """A device whose blocks cannot be read any more (its backing file lost its end): EIO, with file and bytes."""
    image, drive = tmp_path / "image", tmp_path / "drive"
    drive.mkdir()
    image.touch()
    os.truncate(image, BROKEN_BYTES)
    make = ["mkfs.ext4", "-q", "-O", "^has_journal", image]
    if os.geteuid() or not shutil.which(make[0]) or subprocess.run(make, capture_output=True).returncode:
        pytest.skip("cannot make a file system: needs root and mkfs.ext4")
    if subprocess.run(["mount", "-o", "loop", image, drive], capture_output=True).returncode:
        pytest.skip("cannot mount a loop device")
    try:
        file = StateFile(path_in(drive), BROKEN_BYTES // 2)
        buffer = memoryview(mmap.mmap(-1, file.size))
        file.write(0, buffer)
        os.truncate(image, BROKEN_BYTES // 4)
        with pytest.raises(OffloadError, match=rf"{file.path}: bytes .* cannot be read: Input/output error"):
            file.read(0, buffer)
        file.close()
    finally:
        subprocess.run(["umount", "-l", drive], check=True)


def test_a_limit_on_file_sizes(tmp_path):
    """A quota's error is the user's to see."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, hard))
    try:
        with pytest.raises(OffloadError, match=r"cannot have 8,192 bytes .*File too large"):
            StateFile(path_in(tmp_path), 2 * BLOCK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def file(tmp_path):
    opened = StateFile(path_in(tmp_path), 4 * BLOCK)
    yield opened
    opened.close()


def test_a_short_read(file):
    """Somebody cut the file: said with the place, not read as zeros."""
    os.truncate(file.path, BLOCK)
    with pytest.raises(
        OffloadError, match=r"bytes 4,096 to 8,192 cannot be read: 0 of 4,096 bytes went through"
    ):
        file.read(0, memoryview(mmap.mmap(-1, 2 * BLOCK)))


def test_a_write_that_fails_half_way(file):
    """The first blocks go through, the rest may not: an error, with the place where it stopped."""
    os.truncate(file.path, BLOCK)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BLOCK, hard))
    try:
        with pytest.raises(
            OffloadError, match=r"rank-00000.state: bytes 8,192 to 16,384 cannot be written: File too large"
        ):
            file.write(0, memoryview(mmap.mmap(-1, 4 * BLOCK)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_requests_cut_short_go_on(file):
    """Bytes that arrive in pieces of odd lengths are asked for again from the last whole block on."""
    data = bytes(os.urandom(4 * BLOCK))
    file.write(0, memoryview(bytearray(data)) if not file.is_direct else _aligned(data))
    back = memoryview(mmap.mmap(-1, 4 * BLOCK))
    asked = []

    def little(part: memoryview, at: int) -> int:
        asked.append(at)
        count = min(len(part), BLOCK + 7)
        part[:count] = data[at : at + count]
        return count

    file._move("read", 0, back, little)
    assert bytes(back) == data
    assert asked == [0, BLOCK, 2 * BLOCK, 3 * BLOCK]


def _aligned(data: bytes) -> memoryview:
    block = mmap.mmap(-1, len(data))
    block[:] = data
    return memoryview(block)

"""Which files go along, when that is too much, and the parcels in which they are sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.sync.code import MIB, PARCEL_BYTES, CodeFile, parcels, too_much, wanted


def test_a_pattern_leaves_out_files_and_folders():
    """By the whole path, or by that of a folder above."""
    paths = ["train.py", "data/a.bin", "data/deep/b.bin", "database.py", "runs/x/log"]
    assert wanted(paths, ["data", "runs/"]) == ["database.py", "train.py"]
    assert wanted(paths, ["*.bin"]) == ["database.py", "runs/x/log", "train.py"]


def test_too_much_names_the_largest():
    """Largest first, with sizes; at the limit all is well."""
    sizes = {"a": 50 * MIB, "b": 60 * MIB, **{f"c{n}": 1 for n in range(9)}}
    told = too_much(sizes, 100, ".")
    assert told is not None
    assert told.index("60.0 MiB  b") < told.index("50.0 MiB  a")
    assert "holds 11 files of 110.0 MiB, more than launch.sync.limit_mib, 100" in told
    assert "c5" not in told
    assert too_much({"a": 100 * MIB}, 100, ".") is None


@given(
    st.lists(st.sampled_from([0, 1, PARCEL_BYTES - 1, PARCEL_BYTES, 3 * PARCEL_BYTES + 7, 1000]), max_size=8)
)
def test_parcels_hold_every_byte_once_in_order(sizes):
    """No parcel is larger than allowed; a file's parts follow each other, and the last one is marked."""
    files = [CodeFile(f"f{n}", 0o644, size, f"d{n}") for n, size in enumerate(sizes)]
    sent: dict[str, int] = {}
    ended = []
    for parcel in parcels(files):
        assert 0 <= sum(part.length for part in parcel) <= PARCEL_BYTES
        for part in parcel:
            assert part.offset == sent.get(part.digest, 0)
            sent[part.digest] = part.offset + part.length
            ended += [part.digest] if part.last else []
    assert sent == {file.digest: file.size for file in files}
    assert ended == [file.digest for file in files]

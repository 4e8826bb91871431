"""What a checkpoint folder says about itself, read without torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from distperf.checkpoint.blocks import FileSum
from distperf.checkpoint.manifest import (
    MANIFEST_SCHEMA,
    Manifest,
    hidden_name,
    leftovers,
    list_checkpoints,
    read_manifest,
    step_name,
    write_manifest,
)
from distperf.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing


def make_checkpoint(folder: Path, step: int, run_id: str = "run-a", shard: bytes = b"weights") -> Path:
    path = folder / step_name(step)
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(shard)
    write_manifest(path, make_manifest(step, run_id, {"__0_0.distcp": len(shard)}))
    return path


def make_manifest(step: int, run_id: str, sizes: dict[str, int]) -> Manifest:
    return Manifest(
        run_id=run_id,
        name="n",
        attempt=1,
        world_size=1,
        model={"layers": 2},
        precision="fp32",
        zero=0,
        data={},
        schema=MANIFEST_SCHEMA,
        step=step,
        optimizer_step=step,
        tokens=0,
        samples=0,
        loss_scale=None,
        files={name: FileSum(size, ()) for name, size in sizes.items()},
        hash="xxh3-128",
        block_bytes=1024,
        created="2026-01-01T00:00:00+00:00",
        distperf="0",
        torch="0",
    )


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    """write_manifest and read_manifest are inverses."""
    manifest = make_manifest(7, "r", {"a": 1})
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_steps_are_listed_in_numeric_order_g10(tmp_path):
    """G10: order is by number, whatever the width of the name."""
    for step in (10000, 9900, 123456789, 900):
        make_checkpoint(tmp_path, step)
    assert [info.step for info in list_checkpoints(tmp_path)] == [900, 9900, 10000, 123456789]


def test_no_folder_holds_no_checkpoints(tmp_path):
    """A checkpoint.dir that was never written is empty, not an error."""
    assert list_checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize("size", [6, 8, None])
def test_a_shard_of_another_size_is_found_before_loading_g03(tmp_path, size):
    """G03: one byte too few or too many, or a deleted shard, makes the checkpoint incomplete, and the file is named."""
    shard = make_checkpoint(tmp_path, 1) / "__0_0.distcp"
    shard.unlink() if size is None else shard.write_bytes(b"x" * size)
    (info,) = list_checkpoints(tmp_path)
    assert not info.complete
    assert str(shard) in str(info.problem)


BROKEN = json.dumps(
    {field.name: None for field in dataclasses.fields(Manifest)} | {"schema": MANIFEST_SCHEMA}
)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"schema": 1}', BROKEN])
def test_a_manifest_that_cannot_be_used_is_a_checkpoint_error(tmp_path, text):
    """Empty, cut, foreign and incomplete manifests are named, never a traceback."""
    path = make_checkpoint(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json"):
        read_manifest(path)
    assert not list_checkpoints(tmp_path)[0].complete


def test_no_byte_of_a_manifest_can_change_unseen(tmp_path):
    """Any byte flipped, and any cut: what follows the first line has the checksum that this line holds."""
    file = make_checkpoint(tmp_path, 1) / "manifest.json"
    whole = file.read_bytes()
    assert len(json.loads(whole)["checksum"]) == 32
    for at in range(len(whole)):
        for changed in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :]):
            file.write_bytes(changed)
            with pytest.raises(CheckpointCorrupt):
                read_manifest(file.parent)


def test_a_newer_schema_is_named(tmp_path):
    """Whole, but of another distperf."""
    write_manifest(tmp_path, dataclasses.replace(make_manifest(1, "r", {}), schema=99))
    with pytest.raises(CheckpointError, match=f"schema 99; this distperf reads {MANIFEST_SCHEMA}"):
        read_manifest(tmp_path)


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path):
    """The manifest is written last: without one, nothing there counts."""
    with pytest.raises(CheckpointMissing):
        read_manifest(tmp_path)


def test_only_this_runs_hidden_folders_are_leftovers(tmp_path):
    """Half-written folders of another run, which may be alive, are not ours to remove."""
    mine = tmp_path / hidden_name(50, "partial", 2, "run-a")
    for path in (mine, tmp_path / hidden_name(50, "partial", 1, "run-b"), tmp_path / ".other"):
        path.mkdir()
    make_checkpoint(tmp_path, 1)
    assert leftovers(tmp_path, "run-a") == [mine]


def test_reading_manifests_needs_no_torch():
    """The launcher lists checkpoints; it never imports torch."""
    code = (
        "import sys, distperf.checkpoint.verify, distperf.checkpoint.prune; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_manifest_fields_are_plain_json():
    """Nothing in a manifest needs more than JSON."""
    assert dataclasses.asdict(make_manifest(1, "r", {}))["model"] == {"layers": 2}

"""Files that the safetensors library reads, written one tensor at a time."""

from __future__ import annotations

import json

import pytest
import torch

from distperf.checkpoint.safetensors import Outgoing, plan_files, write_files

safetensors = pytest.importorskip("safetensors")

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.tensor(2.5),
    "c": torch.arange(5.0).to(torch.bfloat16),
    "empty": torch.empty(0, 3),
}
OUTGOING = [Outgoing(name, tuple(values.shape), values.dtype) for name, values in TENSORS.items()]


def read(folder, name):
    with safetensors.safe_open(folder / name, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def test_one_file(tmp_path):
    """The library reads the very tensors."""
    write_files(tmp_path, plan_files(OUTGOING), lambda tensor: TENSORS[tensor.name])
    found = read(tmp_path, "model.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], values) for name, values in TENSORS.items())


def test_several_files_have_an_index(tmp_path):
    """Files are cut between tensors; a tensor above the limit has one of its own; the index finds each."""
    files = plan_files(OUTGOING, limit=20)
    assert [[tensor.name for tensor in file] for file in files.values()] == [["a"], ["b", "c", "empty"]]
    write_files(tmp_path, files, lambda tensor: TENSORS[tensor.name])
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 24 + 4 + 10}
    for name, file in index["weight_map"].items():
        assert torch.equal(read(tmp_path, file)[name], TENSORS[name])


def test_values_are_written_in_the_dtype_that_was_planned(tmp_path):
    """fp32 to bf16 on the way out; a view of something larger is written as what it shows."""
    values = torch.arange(12.0).view(3, 4).t()
    write_files(tmp_path, plan_files([Outgoing("v", (4, 3), torch.bfloat16)]), lambda tensor: values)
    found = read(tmp_path, "model.safetensors")["v"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, values.to(torch.bfloat16))

"""What may be offloaded together, and where state is then counted."""

from __future__ import annotations

import pytest

from distperf.recipe.dividing import OffloadSection, ParallelSection
from distperf.recipe.estimate import model_state
from distperf.recipe.offload_rules import ShardGroups, offload_faults, offloaded
from distperf.recipe.runspec import OffloadSpec


def said(zero: int = 3, pp: int = 1, **offload: object) -> list[str]:
    parallel = ParallelSection(zero=zero, pp=pp)
    return [text for _, text in offload_faults(OffloadSection(**offload), parallel)]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_optimizer_state_goes_with_every_stage(zero):
    """In host memory or on drives."""
    assert said(zero, optimizer="cpu") == []
    assert said(zero, optimizer="nvme", path=("/a", "/b"), optimizer_fraction=0.5) == []


def test_parameters_go_with_stage_3():
    """With optimizer state in the same tier, or one farther away."""
    assert said(params="cpu", optimizer="cpu") == []
    assert said(params="cpu", optimizer="nvme", path=("/a",)) == []
    assert said(params="nvme", optimizer="nvme", path=("/a",)) == []


def test_what_cannot_be_is_refused_with_what_can():
    """Other stages, pipelines, moments that stay in memory."""
    (text,) = said(2, params="nvme", optimizer="nvme", path=("/a",))
    assert "parallel.zero is 2" in text
    assert "take zero: 3, or params: none" in text
    (text,) = said(pp=2, params="cpu", optimizer="cpu")
    assert "take pp: 1, or params: none" in text
    (text,) = said(params="nvme", optimizer="cpu")
    assert text.endswith("take optimizer: nvme, or params: none")
    (text,) = said(params="cpu")
    assert text.endswith("take optimizer: cpu or nvme, or params: none")


def test_nothing_is_lost():
    """Everything is counted once: in memory, in the host's, or on drives; of shelves also the few groups in memory."""
    state = model_state(1000, "bf16", 3, 1, 1, offloaded=True)
    groups = ShardGroups(outside=200, block=100, blocks=8)
    total = 16 * 1000
    for offload in (
        OffloadSpec("nvme", 1.0, ("/a",)),
        OffloadSpec("cpu", 0.5, ()),
        OffloadSpec("cpu", 1.0, (), "cpu"),
    ):
        found = offloaded(state, offload, groups)
        here = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
        assert here + found.host_bytes + found.disk_bytes == total
    found = offloaded(state, OffloadSpec("nvme", 1.0, ("/a",), "nvme"), groups)
    assert found.disk_bytes == total
    assert found.parameters_bytes == 4 * (200 + 3 * 100)
    assert found.gradients_bytes == 4 * (200 + 2 * 100)
    assert found.optimizer_bytes == 0

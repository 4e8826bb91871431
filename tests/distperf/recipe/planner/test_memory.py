"""The plan of a rank's memory, against real ranks and against published cases."""

from __future__ import annotations

import dataclasses

import pytest

from distperf.recipe.estimate import parameter_count
from distperf.recipe.load import load_recipe
from distperf.recipe.planner.hardware import UNKNOWN, of_device
from distperf.recipe.planner.memory import Memory, memories, memory
from distperf.recipe.planner.node import disk_bytes
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import ModelSpec, RunSpec


@pytest.fixture
def spec_of(tmp_path):
    def make(world=4, *sets):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            "model: {preset: llama-1b, vocab: 32000}\ndata: {synthetic: true, seq_len: 1024}\n"
            "train: {steps: 2, global_batch: 64, micro_batch: 4}\n"
        )
        return resolve(load_recipe(recipe, sets), run_id="r", world_size=world, checkpoint_dir="/c")

    return make


def planned(spec: RunSpec) -> Memory:
    found = memory(spec, UNKNOWN)
    assert found is not None
    return found


def test_the_zero_papers_figure(spec_of):
    """arXiv:1910.02054, figure 1: 7.5B parameters on 64 ranks in half precision, model state in GB."""
    model = ModelSpec("llama", 36, 4096, 32, 32, 11008, 32000, False, 1e4, 1e-5, 0.0)
    base = dataclasses.replace(spec_of(64, "train.micro_batch=1"), model=model)
    published = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    for stage, gigabytes in published.items():
        axes = dataclasses.replace(base.parallel, zero=stage)
        found = planned(dataclasses.replace(base, parallel=axes)).state_bytes / 1e9
        assert found == pytest.approx(gigabytes, rel=0.04)


def test_terms_add_up(spec_of):
    """Every term is in the total, whatever the stage and moment."""
    for sets in (
        ["parallel.zero=0"],
        ["parallel.zero=3"],
        ["parallel.pp=2", "parallel.zero=1"],
        ["parallel.tp=2"],
    ):
        found = planned(spec_of(4, *sets))
        assert sum(found.terms().values()) == found.total_bytes
        assert found.state_bytes + found.activations_bytes + found.other_bytes == found.total_bytes


def test_layers_on_drives_cost_nothing(spec_of):
    """With all state on drives, a model of twice the depth takes what its layers' inputs take; drives hold the rest."""
    keys = (
        "offload.optimizer=nvme",
        "offload.path=/a",
        "offload.params=nvme",
        "parallel.zero=3",
        "precision=fp32",
    )
    base = spec_of(1, *keys, "activation_checkpoint=full", "train.micro_batch=1")
    deep = dataclasses.replace(base, model=dataclasses.replace(base.model, layers=2 * base.model.layers))
    once, twice = planned(base), planned(deep)
    inputs = base.model.layers * 4 * base.model.hidden * base.data.seq_len
    assert twice.total_bytes - once.total_bytes == pytest.approx(inputs, rel=0.2)
    assert twice.state.disk_bytes == pytest.approx(2 * once.state.disk_bytes, rel=0.1)
    assert once.state.disk_bytes == 16 * parameter_count(base.model)


@pytest.mark.parametrize("key", ["train.micro_batch=8", "data.seq_len=2048"])
def test_activations_grow(spec_of, key):
    """K03: a micro-batch or sequence of twice the size takes nearly twice the activations."""
    once, twice = planned(spec_of(4)), planned(spec_of(4, key))
    assert twice.activations_bytes == pytest.approx(2 * once.activations_bytes, rel=0.05)
    assert twice.state_bytes == once.state_bytes


def test_the_largest_stage_is_what_counts(spec_of):
    """K06: with a large vocabulary the ends of a pipeline hold more than the middle, and the plan is theirs."""
    sets = [
        "parallel.pp=4",
        "parallel.zero=1",
        "model.vocab=128256",
        "model.layers=30",
        "train.micro_batch=1",
    ]
    places = memories(spec_of(4, *sets, "model.tied_embedding=true"), UNKNOWN)
    totals = [place.total_bytes for place in places]
    largest = planned(spec_of(4, *sets, "model.tied_embedding=true"))
    assert largest.total_bytes == max(totals) > 1.1 * sum(totals) / len(totals)
    tied = 128256 * 2048
    assert places[0].state.parameters_bytes > 2 * tied
    assert places[-1].state.parameters_bytes > 2 * tied


def test_recomputation_takes_less(spec_of):
    """Each mode less than the one before, by the activations alone."""
    found = [planned(spec_of(4, f"activation_checkpoint={mode}")) for mode in ("none", "selective", "full")]
    assert found[0].activations_bytes > 1.5 * found[1].activations_bytes > 1.5 * found[2].activations_bytes
    assert len({each.state_bytes for each in found}) == 1


def test_a_gpus_kernels_keep_less(spec_of):
    """RMSNorm is one kernel there, without fp32 copies."""
    spec = spec_of(4)
    on_gpu = memory(spec, of_device("H100", "bf16", "a test"))
    assert on_gpu is not None
    assert on_gpu.activations_bytes < planned(spec).activations_bytes


def test_checkpoints_that_are_kept_and_one_more(spec_of):
    """12 bytes a parameter, keep + 1 times; nothing where none is written."""
    spec = spec_of(4, "checkpoint.keep=2")
    assert disk_bytes(spec) == 3 * 12 * 1_038_682_112 == pytest.approx(37.4e9, rel=0.01)
    assert disk_bytes(spec_of(4, "checkpoint.every_steps=0", "checkpoint.save_last=false")) == 0

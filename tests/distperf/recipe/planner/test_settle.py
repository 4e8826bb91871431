"""What "auto" becomes by the memory there is."""

from __future__ import annotations

import pytest

from distperf.recipe.load import load_recipe
from distperf.recipe.planner.hardware import CPU, GIB, UNKNOWN, Hardware
from distperf.recipe.planner.memory import memory
from distperf.recipe.planner.tiers import tiers_of
from distperf.recipe.resolve import resolve


@pytest.fixture
def resolved(tmp_path):
    def make(room, *sets):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            "model: {preset: llama-350m, vocab: 32000}\ndata: {synthetic: true, seq_len: 1024}\n"
            "train: {steps: 2, global_batch: 32}\nactivation_checkpoint: auto\n"
            "checkpoint: {every_steps: 0, save_last: false}\n"
        )
        hardware = UNKNOWN if room is None else Hardware(CPU, int(room * GIB), "a test")
        spec = resolve(
            load_recipe(recipe, sets), run_id="r", world_size=2, checkpoint_dir="/c", hardware=hardware
        )
        return spec, memory(spec, hardware).total_bytes / GIB

    return make


def test_with_room_the_simple_rules_stand(resolved):
    """The largest micro-batch up to 8, nothing recomputed, and the reason has both numbers."""
    spec, total = resolved(64)
    assert (spec.train.micro_batch, spec.activation_checkpoint) == (8, "none")
    assert (
        f"{total * 1024:,.0f} MiB a rank fit into 65,536 MiB (a test)"
        in spec.reasons["activation_checkpoint"]
    )
    assert spec.reasons["train.micro_batch"].startswith("8: the largest divisor")


def test_less_room_takes_smaller_micro_batches_first(resolved):
    """Then recomputation; always the same global batch, and what is chosen fits."""
    seen = []
    for room in (14, 9, 5, 4.2):
        spec, total = resolved(room)
        assert total <= room
        assert spec.train.micro_batch * spec.train.accumulation * 2 == 32
        seen.append((spec.activation_checkpoint, spec.train.micro_batch))
    assert [mode for mode, _ in seen] == sorted(
        (mode for mode, _ in seen), key=["none", "selective", "full"].index
    )
    assert seen[0][0] == "none"
    assert seen[0][1] < 8
    assert "the largest that fits" in spec.reasons["train.micro_batch"] or spec.train.micro_batch == 8


def test_where_nothing_fits_the_most_sparing_is_said_not_to(resolved):
    """The run is not refused here, but nobody is told that it fits."""
    spec, total = resolved(1)
    assert total > 1
    assert (spec.activation_checkpoint, spec.train.micro_batch) == ("full", 1)
    assert "do not fit into 1,024 MiB" in spec.reasons["activation_checkpoint"]


def test_nothing_known_nothing_changed(resolved):
    """The rule, and that it is one for want of knowledge."""
    spec, _ = resolved(None)
    assert (spec.train.micro_batch, spec.activation_checkpoint) == (8, "none")
    assert "not known" in spec.reasons["activation_checkpoint"]


def test_what_the_recipe_says_is_left_alone(resolved):
    """Neither a given micro-batch nor given checkpointing is touched, however little room there is."""
    spec, _ = resolved(1, "train.micro_batch=4", "activation_checkpoint=none")
    assert (spec.train.micro_batch, spec.activation_checkpoint) == (4, "none")


def test_a_schedule_that_splits_the_backward_pass_is_never_given_recomputation(resolved):
    """Smaller micro-batches are all that is left."""
    spec, _ = resolved(1, "parallel.pp=2", "parallel.pp_schedule=zbv")
    assert spec.activation_checkpoint == "none"


def test_offload_is_the_last_resort(resolved):
    """With a drive named and nothing else that fits; then checkpoints are not written beside training any more."""
    open_ = ("offload.optimizer=auto", "offload.path=/d", "checkpoint={every_steps: 1}")
    assert resolved(64, *open_)[0].offload.optimizer == "none"
    spec, total = resolved(3.0, *open_)
    assert total <= 3.0
    assert spec.offload.optimizer == "nvme"
    assert spec.reasons["offload.optimizer"].startswith("nvme: ")
    assert not spec.checkpoint.asynchronous
    assert "drives" in spec.reasons["checkpoint.async"]


def test_without_a_drive_there_is_nothing_to_offload_to(resolved):
    """On CPUs host memory is the ranks' own."""
    spec, _ = resolved(1, "offload.optimizer=auto")
    assert spec.offload.optimizer == "none"
    assert "do not fit" in spec.reasons["offload.optimizer"]


def test_checkpoints_in_memory_keep_state_off_drives(resolved):
    """Where nvme would be the last resort it is not taken, and the reason says why; a candidate never has it either."""
    open_ = ("offload.optimizer=auto", "offload.path=/d", "checkpoint.memory={every_steps: 1}")
    spec, _ = resolved(3.0, *open_)
    assert spec.offload.optimizer == "none"
    assert "not nvme beside checkpoint.memory" in spec.reasons["offload.optimizer"]
    hardware = Hardware(CPU, 3 * GIB, "a test")
    assert [tier.optimizer for tier in tiers_of(spec, hardware)] == ["none"]
    assert "checkpoint.memory" not in resolved(3.0, *open_[:2])[0].reasons["offload.optimizer"]

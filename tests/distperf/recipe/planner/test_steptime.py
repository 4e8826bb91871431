"""A step's time follows from rates: measured ones first, and what a recipe says before those."""

from __future__ import annotations

import pytest

from distperf.recipe.estimate import parameter_count
from distperf.recipe.load import load_recipe
from distperf.recipe.planner.hardware import CPU, UNKNOWN, Hardware, of_device, overlaid
from distperf.recipe.planner.rates import Measure, Rates
from distperf.recipe.planner.steptime import step_time
from distperf.recipe.resolve import resolve
from distperf.recipe.stages import model_costs


def measured(**more):
    """FLOP/s of layers by width 1e10, of products 2e10; messages at 1 GB/s inside a host."""
    flat = {"layer": 1e10, "matmul": 2e10, "loss": 1e9}
    found = [Measure(what, "fp32", ((128.0, rate), (1024.0, rate))) for what, rate in flat.items()]
    found += [Measure(what, "", ((1.0, 1e10),)) for what in ("copy", "update")]
    found += [Measure(what, "host", ((1e6, 1e-3), (1e7, 1e-2))) for what in ("reduce", "gather")]
    found += [Measure(what, where, ((1.0, value),)) for (what, where), value in more.items()]
    return Hardware(CPU, None, "a test", rates=Rates("bench", tuple(found)))


@pytest.fixture
def spec_of(tmp_path):
    def make(world=1, *sets):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            "model: {family: llama, layers: 4, hidden: 256, heads: 4, ffn: 704, vocab: 1000}\n"
            "data: {synthetic: true, seq_len: 128}\ntrain: {steps: 2, global_batch: 16, micro_batch: 4}\n"
            "precision: fp32\n"
        )
        return resolve(load_recipe(recipe, sets), run_id="r", world_size=world, checkpoint_dir="/c")

    return make


def test_arithmetic_at_measured_rates(spec_of):
    """Layers at the rate of layers, the head at that of products, the loss at its own."""
    spec = spec_of()
    costs, positions = model_costs(spec.model, 128), 16 * 128
    expected = positions * (3 * sum(costs.layers) / 1e10 + 3 * costs.head / 2e10 + 1000 / 1e9)
    assert step_time(spec, measured(), 1).compute_s == pytest.approx(expected)


def test_nothing_hides_communication_on_cpus(spec_of):
    """What ZeRO sends adds to a step on CPUs, by its bytes at the measured rate."""
    spec = spec_of(2)
    time = step_time(spec, measured(), 2)
    sent = (
        4 * parameter_count(spec.model) / 2
    )  # (N - 1) / N of fp32 gradients; weights go once, gradients twice a step
    assert time.data_s == pytest.approx(3 * sent / 1e9, rel=0.02)


def test_several_hosts_where_one_was_measured(spec_of):
    """Better the host's own links than none; what the recipe says of the network comes first."""
    spec = spec_of(2)
    inside, outside = step_time(spec, measured(), 2), step_time(spec, measured(), 1)
    assert outside.data_s == inside.data_s
    said = overlaid(measured(), network_rate=1e6)
    assert step_time(spec, said, 1).data_s > 100 * inside.data_s


def test_drives_are_hidden_behind_the_update_or_add_to_it(spec_of):
    """At the measured rate, or the recipe's; without either nobody knows how long a step takes."""
    spec = spec_of(1, "offload.optimizer=nvme", "offload.path=/d")
    assert step_time(spec, measured(), 1) is None
    fast, slow = (step_time(spec, overlaid(measured(), drive_rate=rate), 1) for rate in (1e12, 1e7))
    assert fast.offload_s == 0
    assert slow.offload_s == pytest.approx(
        2 * 8 * parameter_count(spec.model) / 1e7 - slow.update_s, rel=0.02
    )
    assert slow.limit == "offload"


def test_host_memory_costs_its_link(spec_of):
    """On devices optimizer state in the host's memory takes longer than in the device's."""
    device = of_device("A100", "bf16", "a test")
    here, away = (
        step_time(spec_of(1, "precision=bf16", f"offload.optimizer={tier}"), device, 1)
        for tier in ("none", "cpu")
    )
    assert here.offload_s == 0
    assert away.offload_s > 0


def test_nothing_known_no_time(spec_of):
    """No rate is made up."""
    assert step_time(spec_of(), UNKNOWN, 1) is None

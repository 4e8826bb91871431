"""A step's time follows from rates: measured ones first, and what a recipe says before those."""

from __future__ import annotations

import pytest

from distperf.recipe.estimate import parameter_count
from distperf.recipe.load import load_recipe
from distperf.recipe.planner.hardware import CPU, UNKNOWN, Hardware, of_device, overlaid
from distperf.recipe.planner.rates import Measure, Rates
from distperf.recipe.planner.steptime import step_time
from distperf.recipe.planner.traffic import layer_bytes
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import ModelSpec
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


def test_parameters_on_drives_come_for_every_pass(spec_of):
    """Weights twice and gradients once a micro-batch, gradients of earlier ones besides, as far as arithmetic does not
    hide it; in the update weights both ways, gradients one.
    """
    keys = ("parallel.zero=3", "offload.optimizer=nvme", "offload.path=/d", "offload.params=nvme")
    spec = spec_of(1, *keys)
    shard, rate = 4 * parameter_count(spec.model), 1e6
    time = step_time(spec, overlaid(measured(), drive_rate=rate), 1)
    passes = (4 * 3 + 3) * shard / rate - time.compute_s
    update = (2 * 2 + 2 + 1) * shard / rate - time.update_s
    assert time.offload_s == pytest.approx(passes + update, rel=0.01)


@pytest.mark.parametrize(
    ("key", "what"), [("parallel.tp=2", "tensor"), ("parallel.cp=2", "ulysses"), ("cp_method=ring", "ring")]
)
def test_dividing_layers_takes_what_was_measured(spec_of, key, what):
    """What it added to a layer, for every layer and micro-batch; over tp once more for both ends of the model."""
    keys = ("parallel.cp=2", "parallel.cp_method=ring") if what == "ring" else (key,)
    spec = spec_of(2, *keys)
    found = measured().rates.measures
    rates = Rates("bench", (*found, Measure(what, "host", ((1e9, 0.5),))))
    time = step_time(spec, overlaid(measured(), rates=rates), 2)
    turns = spec.train.accumulation * (spec.model.layers + (what == "tensor"))
    without = step_time(spec, measured(), 2)  # over cp, ZeRO's traffic alone
    assert time.tensor_s - without.tensor_s == pytest.approx(0.5 * turns)


@pytest.mark.parametrize(
    ("what", "sent"), [("tensor", 8 * 256), ("ulysses", 4 * (256 + 64) / 2), ("ring", 8 * 64)]
)
def test_bytes_of_a_divided_layer(what, sent):
    """As the docstrings of distperf.parallel have it: two ranks in fp32, by position of the sequence."""
    model = ModelSpec("llama", layers=1, hidden=256, heads=8, kv_heads=2, ffn=704, vocab=1, tied_embedding=True,
                      rope_theta=1e4, norm_eps=1e-5, dropout=0.0)  # fmt: skip
    assert layer_bytes(what, model, 100, 4, 2) == pytest.approx(100 * sent * 4 / 2)


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

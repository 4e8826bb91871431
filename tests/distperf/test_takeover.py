"""What can be taken over, alone in a process, and what is refused, in words."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist
from own_loops import batch, by_hand, drive, loss_of, model, optimizer, taken_over

import distperf
from distperf.errors import DistperfError, RecipeError


@pytest.fixture(autouse=True)
def meets_nobody():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_alone_without_a_launcher():
    """One process, no variables, no process group: the plain loop; close ends the group that was made."""
    engine, rule = taken_over({"train": {"grad_clip": 0.5}})
    curve = drive(engine, 0, 3)
    assert curve.losses == pytest.approx(by_hand(3, 1, 1).losses, rel=1e-5)
    held = {id(parameter) for group in rule.param_groups for parameter in group["params"]}
    assert held == {id(p) for p in engine.module.parameters() if p.requires_grad}
    engine.close()
    assert not dist.is_initialized()


def test_the_defaults_change_no_number():
    """Without a recipe: fp32, no clipping, an update a backward pass."""
    engine, _ = taken_over({})
    assert drive(engine, 0, 3).losses == pytest.approx(by_hand(3, 1, 1, clip=None).losses, rel=1e-6)


def test_a_recompute_changes_no_number():
    """activation_checkpoint: full."""
    engine, _ = taken_over({"activation_checkpoint": "full"})
    assert drive(engine, 0, 3).losses == pytest.approx(by_hand(3, 1, 1, clip=None).losses, rel=1e-6)


def test_sigterm_is_an_answer_of_the_next_update():
    """And ends nobody: the loop saves, and leaves."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    engine, _ = taken_over({})
    try:
        engine.stop_on_sigterm()
        told = []
        for _ in range(2):
            engine.backward(loss_of(engine(batch(0, 0, 0)[0]), batch(0, 0, 0)[1]))
            told.append(engine.step().asked.stop)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert told == [0, 1]


def test_floating_point_inputs_come_in_the_working_dtype():
    """A model of numbers, not of tokens, in bf16."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    said = {"precision": "bf16", "optimizer": {"lr": 0.01, "schedule": {"name": "constant"}}}
    engine = distperf.initialize(net, recipe=said)
    losses = []
    for _ in range(3):
        engine.backward((engine(torch.ones(2, 4)).float() - 3).square().mean())
        losses.append(engine.step().loss)
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"parallel": {"tp": 2}}, "parallel.tp is 2; a loop of one's own is divided by dp_shard and dp_replicate only"),
        ({"train": {"global_batch": 4}}, "missing key train.micro_batch"),
        ({"train": {"global_batch": 4, "micro_batch": 3}}, "global_batch 4 is not a multiple of 3"),
        ({"parallel": {"dp_shard": 2}}, "the mesh takes 2 ranks"),
        ({"precision": "fp8"}, "precision is fp8; it takes"),
        ({"model": {}}, "unknown key model"),
        ({"train": {"steps": object()}}, "holds a value that no YAML file could"),
        ({"offload": {"optimizer": "cpu", "params": "cpu"}}, "take zero: 3, or params: none"),
        ({"offload": {"optimizer": "auto"}}, "offload.optimizer is auto, which a plan settles"),
    ],
)  # fmt: skip
def test_a_recipe_that_does_not_fit(recipe, words):
    """All told before anything is done, without a file's positions where there is no file."""
    with pytest.raises(RecipeError) as found:
        taken_over(recipe)
    assert words in str(found.value)


def test_a_recipe_file_is_told_with_positions(tmp_path):
    """As of a run's recipe."""
    (tmp_path / "r.yaml").write_text("parallel: {zero: 4}\n")
    with pytest.raises(RecipeError, match=r"r\.yaml:1:18: parallel.zero is 4"):
        distperf.initialize(model(), recipe=tmp_path / "r.yaml")


def with_state(net):
    rule = optimizer(net)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    rule.step()
    return rule


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda net: torch.optim.SGD(net.parameters()), "the optimizer is SGD; it takes torch.optim.AdamW"),
        (lambda net: torch.optim.Adam(net.parameters(), weight_decay=0.1), "Adam without weight decay"),
        (lambda net: torch.optim.AdamW(net.parameters(), amsgrad=True), "without amsgrad"),
        (lambda net: torch.optim.AdamW(net.embed.parameters()), "blocks.0.0.weight and 6 more of the model's"),
        (lambda net: torch.optim.AdamW(torch.nn.Linear(1, 1).parameters()), "parameters that the model has not"),
        (with_state, "has made steps, whose moments would be lost"),
    ],
)  # fmt: skip
def test_an_optimizer_that_would_do_something_else(rule, words):
    """Named, with what to do."""
    net = model()
    with pytest.raises(DistperfError) as found:
        distperf.initialize(net, rule(net))
    assert words in str(found.value)


def test_a_model_that_is_wrapped_already():
    """torch.compile comes afterwards; both ways to say what the optimizer is are one too many."""
    compiled = torch.compile(model(), backend="eager")
    with pytest.raises(DistperfError, match=r"takes the model before torch\.compile"):
        distperf.initialize(compiled)
    net = model()
    with pytest.raises(DistperfError, match="take out one of the two"):
        distperf.initialize(net, optimizer(net), {"optimizer": {"lr": 1.0, "schedule": {"name": "constant"}}})
    with pytest.raises(RecipeError, match=r"until train\.steps, which the recipe does not say"):
        distperf.initialize(net)

"""The whole program on models of a user's own and of transformers: parity, exact resume, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from train_program import make_spec, train, training

from distperf.recipe.runspec import CheckpointSpec, FactorySpec, GroupSpec, HfSpec, RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def own(dropout: float = 0.0) -> FactorySpec:
    return FactorySpec("factory", "own_models:build", {"vocab": 128, "dropout": dropout}, 128)


def with_groups(spec: RunSpec, *groups: GroupSpec) -> RunSpec:
    return dataclasses.replace(spec, optimizer=dataclasses.replace(spec.optimizer, groups=groups))


def test_a_model_of_ones_own_goes_on_exactly_after_a_kill(tmp_path):
    """Ties, frozen parameters, groups and torch's own dropout: losses after a resume are to the last bit as without."""
    layout = {"world": 2, "zero": 3, "steps": 12, "model": own(dropout=0.3), "frozen": ("blocks.0.1.*",)}
    groups = (GroupSpec(("embed.*",), 0.5, 0.0),)
    whole = train(with_groups(make_spec(tmp_path, **layout), *groups))
    checkpoint = CheckpointSpec(
        every_steps=4, save_last=False, keep=5, dir=str(tmp_path / "c"), asynchronous=False
    )
    spec = with_groups(make_spec(tmp_path, **layout, checkpoint=checkpoint), *groups)
    with training(spec) as first:
        first.wait_until(lambda: any(r["step"] >= 9 for r in first.ranks[0].of("progress")))
        first.kill()
    second = train(spec, attempt=2)
    (resumed,) = [r for r in second.ranks[0].of("event") if r["event"] == "resume"]
    assert resumed["step"] == 8
    assert second.losses() == {step: loss for step, loss in whole.losses().items() if step > 8}
    assert len(set(whole.losses().values())) == 12


def test_a_model_of_ones_own_has_the_losses_of_one_process(tmp_path):
    """On two ranks with accumulation as on one."""
    one = train(make_spec(tmp_path, steps=8, model=own()))
    two = train(make_spec(tmp_path, steps=8, model=own(), world=2, zero=2, accumulation=3))
    assert two.losses() == {step: pytest.approx(loss, rel=1e-5) for step, loss in one.losses().items()}
    assert one.losses()[8] < one.losses()[1]


def test_a_folder_of_transformers_trains(tmp_path):
    """From a config alone: two ranks as one, with recomputed blocks and a frozen layer."""
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    layout = {
        "steps": 6,
        "model": HfSpec("hf", str(tmp_path)),
        "frozen": ("model.layers.0.*",),
        "activation_checkpoint": "full",
    }
    one = train(make_spec(tmp_path, **layout))
    two = train(make_spec(tmp_path, **layout, world=2, zero=3))
    assert two.losses() == {step: pytest.approx(loss, rel=1e-5) for step, loss in one.losses().items()}
    assert one.losses()[6] < one.losses()[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": FactorySpec("factory", "own_models:bulid", {}, 128)},
            "model.factory own_models:bulid: bulid has no such name in",
        ),
        (
            {"precision": "fp8"},
            "precision: fp8: this device (cpu) has no fp8 matrix units; set precision: bf16",
        ),
        ({"frozen": ("layer.0.*",)}, "model.frozen: layer.0.* matches no parameter of this model"),
        (
            {"groups": GroupSpec(("*.biass",), 1.0, 0.0)},
            "optimizer.groups[0].match: *.biass matches no parameter",
        ),
        (
            {"model": FactorySpec("factory", "own_models:build", {"vocab": 256}, 128)},
            "for tokens (12, 16) the module returned (12, 16, 256) torch.float32; it must return logits (12, 16, 128)",
        ),
    ],
)
def test_what_cannot_be_trained_ends_the_run_in_plain_words(tmp_path, changes, words):
    """Exit code 1, a message that is an answer, no traceback."""
    groups = [changes.pop("groups")] if "groups" in changes else []
    with training(with_groups(make_spec(tmp_path, **changes), *groups)) as run:
        assert run.wait() == [1]
        assert words in run.output
        assert "Traceback" not in run.output


def test_a_checkpoint_of_another_family_is_refused(tmp_path):
    """Resuming a Llama's checkpoint with a model of one's own names what differs."""
    checkpoint = CheckpointSpec(every_steps=0, save_last=True, keep=1, dir=str(tmp_path / "c"))
    train(make_spec(tmp_path, steps=1, checkpoint=checkpoint))
    spec = make_spec(tmp_path, steps=2, model=own())
    with training(spec, resume=str(Path(checkpoint.dir))) as run:
        assert run.wait() == [1]
        assert "is of another model: family llama there, factory in the recipe" in run.output

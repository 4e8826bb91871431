"""Recipe + world -> RunSpec: complete, reproducible, with a reason for every auto."""

import pytest

from distperf.errors import BatchError, MeshError, RecipeError
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import FactorySpec, GroupSpec, HfSpec, RunSpec, from_json, to_json
from distperf.recipe.schema import Recipe

TEXT = """\
name: tiny
model: {preset: llama-1m}
data: {text: [a.txt], seq_len: 64}
train: {steps: 100, global_batch: 256}
"""


def run(recipe: Recipe, world_size: int = 8) -> RunSpec:
    return resolve(recipe, run_id="id", world_size=world_size, checkpoint_dir="/c")


def test_nothing_is_left_open(load):
    """Every auto became a number, with its reason, and what was said is there."""
    spec = run(load(TEXT, "optimizer.schedule.warmup_steps=20"))
    assert (spec.train.micro_batch, spec.train.accumulation, spec.parallel.dp_shard) == (8, 4, 8)
    assert (spec.model.vocab, spec.model.kv_heads, spec.model.tied_embedding) == (257, 4, False)
    assert spec.optimizer.schedule.decay_steps == 80
    assert (spec.data.text, spec.data.tokens, spec.checkpoint.dir) == (("a.txt",), (), "/c")
    assert "auto" not in to_json(spec)
    assert set(spec.reasons) == {
        "parallel.dp_shard",
        "train.micro_batch",
        "train.accumulation",
        "model.vocab",
        "optimizer.schedule.decay_steps",
    }
    assert all(str(number) in spec.reasons["train.accumulation"] for number in (256, 8, 4))


def test_equal_recipes_are_equal_bytes_that_come_back(load):
    """Ranks on all hosts read the same; a RunSpec survives its JSON."""
    spec = run(load(TEXT))
    assert to_json(spec) == to_json(run(load(TEXT + "# said otherwise\nprecision: bf16\n")))
    assert from_json(RunSpec, to_json(spec)) == spec
    off = run(load(TEXT, "train.grad_clip=null"))
    assert off.train.grad_clip is None
    assert from_json(RunSpec, to_json(off)) == off


def test_a_preset_with_overrides(load):
    """Single sizes replace the preset's; kv_heads follows heads where the preset says no more."""
    model = run(load(TEXT, "model={layers: 2, heads: 2, vocab: 300, rope_theta: 5e5}")).model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.vocab) == (2, 128, 2, 2, 300)
    assert model.rope_theta == 5e5
    model = run(load(TEXT, "model.preset=llama-8b", "model.layers=1")).model
    assert (model.layers, model.kv_heads, model.ffn) == (1, 8, 14336)


def test_sizes_without_a_preset(load):
    """Defaults: kv_heads as heads, an untied head."""
    text = TEXT.replace("{preset: llama-1m}", "{family: llama, layers: 1, hidden: 8, heads: 2, ffn: 16}")
    model = run(load(text)).model
    assert (model.kv_heads, model.vocab, model.tied_embedding, model.rope_theta, model.norm_eps) == (
        2,
        257,
        False,
        1e4,
        1e-5,
    )


@pytest.mark.parametrize(
    ("schedule", "decay"),
    [
        ("{name: constant}", 0),
        ("{name: linear, warmup_steps: 100}", 0),
        ("{name: cosine, decay_steps: 7}", 7),
        ("{name: wsd}", 10),
        ("{name: wsd, warmup_steps: 95}", 5),
        ("{name: linear}", 100),
    ],
)
def test_decay(load, schedule, decay):
    """auto is all after warm-up, or a tenth for wsd."""
    assert run(load(TEXT + f"optimizer: {{schedule: {schedule}}}\n")).optimizer.schedule.decay_steps == decay


def test_a_batch_that_does_not_fit_is_told_where_it_stands(load):
    """J06, with place, all numbers and the nearest valid ones."""
    with pytest.raises(BatchError) as caught:
        run(load(TEXT), 7)
    assert str(caught.value) == (
        "r.yaml:4:35: train.global_batch 256 is not a multiple of 7 (7 data-parallel ranks); "
        "nearest that fit: global_batch 252, 259, or a world size of 4, 8"
    )
    with pytest.raises(BatchError, match=r"^--set train.global_batch=3: "):
        run(load(TEXT, "train.global_batch=3"), 2)


def test_a_mesh_that_does_not_fit_is_told_where_it_stands(load):
    """With the product and every factor."""
    recipe = load(TEXT + "parallel: {dp_shard: 4}\n")
    assert run(recipe, 4).parallel.dp_shard == 4
    assert "parallel.dp_shard" not in run(recipe, 4).reasons
    with pytest.raises(
        MeshError, match=r"^r.yaml:5:22: the mesh takes 4 ranks \(pp 1 .* dp_shard 4 .*, but there are 6"
    ):
        run(recipe, 6)
    assert issubclass(MeshError, RecipeError)


def test_a_pipeline_gets_layers_and_micro_batches(load):
    """Layers by cost, and a micro-batch small enough that every rank has four; each with its reason."""
    spec = run(load(TEXT, "parallel.pp=2", "model.layers=6", "parallel.pp_schedule=zbv"))
    assert sum(spec.parallel.pp_layers) == 6
    assert len(spec.parallel.pp_layers) == 4
    assert (spec.train.micro_batch, spec.train.accumulation) == (8, 8)
    assert "dearest" in spec.reasons["parallel.pp_layers"]
    assert "leaves the pipeline 8" in spec.reasons["train.micro_batch"]
    spec = run(load(TEXT, "parallel.pp=2", "train.global_batch=8"))
    assert (spec.train.micro_batch, spec.train.accumulation) == (1, 2)
    assert "smallest" in spec.reasons["train.micro_batch"]


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["parallel.pp=8", "model.layers=4"], r"parallel\.pp is 8: 8 stages .* for 4 layers"),
        (["parallel.pp=2", "parallel.pp_layers=[3, 2]", "model.layers=4"], r"places 5 layers \(3 \+ 2\)"),
        (["parallel.pp=2", "train.micro_batch=64"], r"1f1b with pp 2 cannot run 1 micro-batches"),
        (
            [
                "parallel.pp=2",
                "train.global_batch=20",
                "train.micro_batch=1",
                "parallel.pp_schedule=zero_bubble",
            ],
            r"zero_bubble with pp 2 cannot run 5 micro-batches.*nearest that fit: 4, 6",
        ),
    ],
)
def test_a_pipeline_that_could_not_run_is_refused(load, sets, text):
    """Before anything starts, with the place of the key and what would fit."""
    with pytest.raises(RecipeError, match=text):
        run(load(TEXT, *sets))


def test_models_of_ones_own(load):
    """A function's arguments and a folder survive their JSON, each as what it is."""
    text = TEXT.replace("{preset: llama-1m}", "{factory: 'm.n:f', vocab: 300, args: {a: 1, b: [x, 2.5]}}")
    spec = run(load(text))
    assert spec.model == FactorySpec("factory", "m.n:f", {"a": 1, "b": ["x", 2.5]}, 300)
    assert from_json(RunSpec, to_json(spec)) == spec
    text = TEXT.replace("preset: llama-1m", "hf: folder, frozen: ['*.bias']")
    spec = run(load(text, "data.tokenizer=byte"))
    assert (spec.model, spec.frozen) == (HfSpec("hf", "folder"), ("*.bias",))
    assert from_json(RunSpec, to_json(spec)) == spec


def test_groups_of_parameters(load):
    """A learning rate becomes a factor of optimizer.lr; weight decay is said or left to the rule."""
    groups = "[{match: [a, b], lr: 1e-4}, {match: ['*'], lr_scale: 2, weight_decay: 0}, {match: [c], weight_decay: 1}]"
    spec = run(load(TEXT, f"optimizer={{lr: 4e-4, groups: {groups}}}"))
    assert spec.optimizer.groups == (
        GroupSpec(("a", "b"), 0.25, None),
        GroupSpec(("*",), 2.0, 0.0),
        GroupSpec(("c",), 1.0, 1.0),
    )
    assert from_json(RunSpec, to_json(spec)) == spec

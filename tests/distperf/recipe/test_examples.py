"""Every example that is shipped loads and resolves on the ranks it speaks of."""

from pathlib import Path

import pytest

from distperf.recipe.estimate import parameter_count
from distperf.recipe.load import dump_recipe, load_recipe
from distperf.recipe.resolve import resolve

EXAMPLES = Path("distperf/recipe/examples").resolve()
WORLDS = {"demo": (1, 2, 4), "demo-longer": (2,), "llama-8b": (8, 64, 512), "llama-70b": (128, 1024)}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_load_and_resolve(path: Path, tmp_path: Path):
    """And their merged copy loads to the same recipe."""
    recipe = load_recipe(path)
    assert recipe.name == (path.stem if path.stem != "script" else "my-script")
    for world_size in WORLDS[path.stem] if recipe.script is None else ():
        spec = resolve(recipe, run_id="id", world_size=world_size, checkpoint_dir="/c")
        assert spec.parallel.dp_shard == world_size
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_recipe(recipe))
    assert load_recipe(copy) == recipe


def test_the_70b_example_takes_from_the_8b_one_what_it_does_not_say():
    """extends at work."""
    recipe = load_recipe(EXAMPLES / "llama-70b.yaml")
    spec = resolve(recipe, run_id="id", world_size=256, checkpoint_dir="/c")
    assert round(parameter_count(spec.model) / 1e9, 1) == 70.6
    assert (spec.data.seq_len, spec.parallel.zero, spec.optimizer.schedule.warmup_steps) == (4096, 3, 2000)
    assert spec.optimizer.schedule.min_lr == 1.5e-5


def test_the_demo_fits_a_desk():
    """Two ranks of a byte model of about a million parameters."""
    spec = resolve(load_recipe(EXAMPLES / "demo.yaml"), run_id="id", world_size=2, checkpoint_dir="/c")
    assert parameter_count(spec.model) < 3.1e6
    assert (spec.precision, spec.parallel.zero, spec.train.steps) == ("fp32", 2, 120)

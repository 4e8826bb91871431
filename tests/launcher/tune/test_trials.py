import pytest

from distperf.recipe.load import load_recipe
from distperf.recipe.planner.candidates import ranked
from distperf.recipe.planner.hardware import CPU, GIB, Hardware
from distperf.recipe.resolve import resolve
from launcher.tune.trials import OF_TRIALS, Outcome, Trial, best, chosen, of_metrics

RECIPE = """
model: {family: llama, layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, vocab: 1000}
data: {synthetic: true, seq_len: 128}
train: {steps: 100, global_batch: 16, micro_batch: 2}
optimizer: {schedule: {name: wsd, warmup_steps: 10, decay_steps: 50}}
precision: fp32
parallel: {pp: 2, pp_schedule: interleaved_1f1b, pp_layers: [1, 1, 1, 1], zero: 1}
"""


@pytest.fixture
def spec_of(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)

    def make(*sets):
        recipe = load_recipe(tmp_path / "r.yaml", sets)
        return resolve(recipe, run_id="r", world_size=2, checkpoint_dir="/c")

    return make


def way(spec):
    parallel = spec.parallel
    return str(parallel.mesh), parallel.zero, parallel.pp_layers, spec.train, spec.activation_checkpoint


def test_the_recipe_itself_comes_first_and_every_trial_can_be_launched(spec_of):
    """The keys of each make the recipe resolve to that very candidate, with or without a pipeline."""
    spec = spec_of()
    candidates = ranked(spec, Hardware(CPU, 8 * GIB, "a test"), 2)
    trials = chosen(spec, candidates, 12)
    assert len({trial.name for trial in trials}) == len(trials) == 12
    found = [spec_of(*(f"{key}={value}" for key, value in trial.keys.items())) for trial in trials]
    assert found[0] == spec
    assert [trial.as_is for trial in trials] == [True] + [False] * 11
    assert set(map(way, found)) <= {way(candidate.spec) for candidate in candidates}
    assert {one.parallel.pp for one in found} == {1, 2}


@pytest.mark.parametrize("tier", ["auto", "nvme"])
def test_trials_with_a_drive_and_without(spec_of, tier):
    """What is about drives alone is taken out where a trial uses none."""
    flat = "parallel={pp: 1, pp_schedule: 1f1b, pp_layers: auto, zero: 1}"
    own = (flat, f"offload.optimizer={tier}", "offload.path=/d")
    spec = spec_of(*own)
    trials = chosen(spec, ranked(spec, Hardware(CPU, 8 * GIB, "a test"), 2), 200)
    found = [spec_of(*own, *(f"{key}={value}" for key, value in trial.keys.items())) for trial in trials]
    assert {one.offload.optimizer for one in found} == {"none", "nvme"}
    assert {one.offload.path for one in found} == {(), ("/d",)}


def test_what_does_not_fit_by_the_plan_is_not_tried(spec_of):
    """Neither a candidate nor the recipe as it is."""
    spec = spec_of("train.micro_batch=8")
    room = 350 << 20
    trials = chosen(spec, ranked(spec, Hardware(CPU, room, "a test"), 2), 100)
    assert trials
    assert all(trial.planned_bytes <= room for trial in trials)


def test_a_trial_is_short_and_leaves_nothing(spec_of):
    """Whatever schedule and reports the recipe has."""
    spec = spec_of("train.steps=4", *(f"{key}={value}" for key, value in OF_TRIALS.items()))
    assert (spec.train.steps, spec.checkpoint.is_on, spec.evaluation.every_steps) == (4, False, 0)


def test_the_first_steps_do_not_count():
    """Medians of the rest; the peak is of all."""
    lines = [{"step_s": s, "tokens_per_s": 10 / s, "peak_bytes": 7 - s} for s in (5, 4, 1, 2, 3)]
    found = of_metrics(lines, "/r")
    assert (found.verdict, found.step_s, found.tokens_per_s, found.peak_bytes) == ("ok", 2, 5, 6)
    assert of_metrics([], "/r").verdict == "failed"


def test_the_fastest_of_those_that_went_well():
    """None where there is none."""
    trials = [Trial({"k": str(at)}, 0, None, outcome) for at, outcome in enumerate(
        (Outcome("out of memory"), Outcome("ok", step_s=2.0), Outcome("ok", step_s=1.0), None)
    )]  # fmt: skip
    assert best(trials) == trials[2]
    assert best(trials[:1]) is None

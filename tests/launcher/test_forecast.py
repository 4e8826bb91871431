import json

import pytest

from launcher import dryrun
from launcher.errors import PreflightError, UsageError
from launcher.launch import launch
from launcher.planning import Request

RECIPE = """
model: {preset: llama-8b, vocab: 128256}
data: {synthetic: true, seq_len: 4096}
train: {steps: 10, global_batch: 1024}
"""


@pytest.fixture
def plan_of(tmp_path):
    """plan_of(what is assumed, --set ...) -> the plan as JSON and as text, with candidates and the largest model."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE)
    wanted = dryrun.Wanted(candidates=3, largest=True)

    def make(assume, *sets):
        found = dryrun.outcome(Request(recipe=recipe, assume=assume, sets=sets), probe=False)
        value = json.loads(json.dumps(dryrun.as_json(found, False, wanted)))
        return value, dryrun.as_text(found, False, wanted)

    return make


def test_every_key_has_its_number(plan_of):
    """Memory adds up, time is there, and the limit that binds."""
    plan, text = plan_of("64x8xH100")
    each = plan["per_rank"]
    kinds = ("parameters", "gradients", "optimizer", "activations", "other")
    assert sum(each[f"{kind}_bytes"] for kind in kinds) == each["total_bytes"]
    assert sum(plan["terms"].values()) == each["total_bytes"]
    assert plan["fits"] is True
    assert plan["host_bytes"] > 0
    assert plan["disk_bytes"] == 4 * 12 * plan["parameters"]
    assert plan["step_s"] == pytest.approx(sum(plan["step_terms"].values()))
    assert isinstance(plan["binding_limit"], str)
    assert any(line.startswith("per rank") and "fits" in line for line in text)
    assert any("logits and loss" in line for line in text)


def test_candidates_and_the_largest_model(plan_of):
    """As many as asked for, ranked, in both forms; the largest model with its shape."""
    plan, text = plan_of("64x8xH100")
    assert len(plan["candidates"]) == 3
    assert all(c["fits"] and c["reason"] for c in plan["candidates"])
    assert plan["largest"]["parameters"] > 100e9
    assert any("billion parameters" in line for line in text)
    assert any(line.startswith("1  ") for line in text)


def test_what_does_not_fit_is_said(plan_of):
    """fits is false, memory binds, and a warning has both numbers and where to look further."""
    plan, text = plan_of("1x8xA10G", "train.micro_batch=8", "parallel.zero=1")
    assert (plan["fits"], plan["binding_limit"]) == (False, "memory")
    assert any("--candidates" in warning for warning in plan["warnings"])
    assert any("does not fit" in line for line in text)


def test_a_launch_that_cannot_fit_is_refused(tmp_path):
    """By more than a plan may be off; nothing is left but the message, which says how to start it all the same."""
    (tmp_path / "r.yaml").write_text(RECIPE)
    sets = ("hardware.device=cpu", "hardware.memory_gib=8", "train.global_batch=2")
    request = Request(recipe=tmp_path / "r.yaml", nproc=2, sets=sets, run_dir=tmp_path / "runs")
    with pytest.raises(PreflightError, match=r"the plan of memory is .* --no-check"):
        launch(request, lambda line: None)
    assert not (tmp_path / "runs").exists()


def test_auto_is_settled_by_the_plan(plan_of):
    """On small devices layers are computed again, with the reason."""
    plan, _ = plan_of("8x8xA10G", "activation_checkpoint=auto", "parallel.zero=3")
    assert plan["fits"] is True
    assert "fit into" in plan["reasons"]["activation_checkpoint"]
    assert not plan["reasons"]["activation_checkpoint"].startswith("none")


def test_hosts_of_which_nothing_is_known(tmp_path, plan_of):
    """A hostfile alone: bytes are planned, but not judged, and no time is made up."""
    recipe, hosts = tmp_path / "r.yaml", tmp_path / "hosts"
    recipe.write_text(RECIPE)
    hosts.write_text("gpu-[1-2] slots=8\n")
    plan = dryrun.as_json(dryrun.outcome(Request(recipe=recipe, hosts=hosts), probe=False), False)
    assert (plan["fits"], plan["step_s"], plan["binding_limit"]) == (None, None, None)
    assert plan["per_rank"]["total_bytes"] > 0
    with pytest.raises(UsageError, match="--assume"):
        dryrun.outcome(Request(recipe=recipe, hosts=hosts, assume="1x1xH100"), probe=False)

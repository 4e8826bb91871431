import json

import pytest

from distperf.errors import BatchError
from launcher.dryrun import as_json, as_text
from launcher.errors import UsageError
from launcher.planning import Request, find_checkpoint, parse, plan, plan_again

RECIPE = """
name: small
model: {preset: llama-1m}
data: {synthetic: true, seq_len: 16}
train: {steps: 20, global_batch: 12}
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """planned("a slots=2", ..., sets) for a recipe with a global batch of 12."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE)

    def make(*hosts, sets=()):
        (tmp_path / "hosts").write_text("\n".join(hosts))
        request = Request(recipe=tmp_path / "r.yaml", hosts=tmp_path / "hosts", sets=tuple(sets))
        return plan(parse(request))

    return make


def spec(planned):
    return json.loads(planned.program.env["DISTPERF_RUNSPEC"])


def shape(planned):
    train = planned.spec.train
    hosts = [(rank.host, rank.slot) for rank in planned.placement.ranks]
    return hosts, (train.global_batch, train.micro_batch, train.accumulation)


def test_spares_hold_no_rank(planned):
    """The last hosts of the file; the dry run says whose place each can take, and warns of one that can take none."""
    found = planned("a slots=2", "b slots=4", "c slots=2", "d slots=1", sets=["launch.spares=2"])
    assert [node.host.name for node in found.placement.nodes] == ["a", "b"]
    assert as_json(found, with_commands=False)["spares"] == {"c": ["a"], "d": []}
    text = as_text(found, with_commands=False)
    assert "spare c: for a" in text
    assert "warning: spare d has fewer slots than any node, and can take the place of none" in text


def test_a_spare_with_more_slots_gives_as_many_as_the_place_has(planned):
    """The world stays the same: same spec, same token, other host."""
    before = planned("a slots=2", "b slots=2", "c gpus=4,5,6", sets=["launch.spares=1"])
    after = plan_again(before, ("c", "b"))
    assert shape(after)[0] == [("c", 0), ("c", 1), ("b", 0), ("b", 1)]
    assert after.placement.nodes[0].host.devices == (4, 5)
    assert (spec(after), after.program.token) == (spec(before), before.program.token)


def test_fewer_nodes_keep_the_global_batch(planned):
    """Ranks take larger shares; run id and checkpoint folder stay."""
    before = planned("a slots=2", "b slots=2", sets=["launch.min_nodes=1"])
    after = plan_again(before, ("", "b"))
    assert (shape(before)[1], shape(after)[1]) == ((12, 3, 1), (12, 6, 1))
    assert after.placement.world_size == after.spec.world_size == spec(after)["world_size"] == 2
    assert spec(after)["run_id"] == spec(before)["run_id"]
    assert spec(after)["checkpoint"] == spec(before)["checkpoint"]
    assert [node.node_rank for node in after.placement.nodes] == [0]


def test_slots_stay_empty_where_the_batch_does_not_divide(planned):
    """5 ranks and a batch of 12: 4 of them work, the last slot does not."""
    before = planned("a slots=3", "b slots=2", "c slots=1", sets=["launch.min_nodes=1"])
    after = plan_again(before, ("a", "b", ""))
    assert shape(after) == ([("a", 0), ("a", 1), ("a", 2), ("b", 0)], (12, 3, 1))


def test_slots_stay_empty_where_they_are_no_whole_pipeline(planned):
    """A pipeline of 2 on 3 ranks: the third has no partner."""
    before = planned(
        "a slots=2",
        "b slots=1",
        "c slots=1",
        sets=["launch.min_nodes=1", "parallel.pp=2", "train.micro_batch=1"],
    )
    after = plan_again(before, ("a", "b", ""))
    assert shape(after) == ([("a", 0), ("a", 1)], (12, 1, 12))
    assert after.mesh.pp == 2


def test_too_few_nodes_for_the_batch(planned):
    """Where that would leave a node out that may not be missing, it is refused with the batch's numbers."""
    before = planned("a slots=4", "b slots=1", "c slots=7", sets=["launch.min_nodes=2"])
    with pytest.raises(BatchError, match="global_batch 12 is not a multiple of 5"):
        plan_again(before, ("a", "b", ""))


def test_a_script_takes_what_is_there(tmp_path):
    """torchrun's way: another WORLD_SIZE, and nothing else that must fit."""
    (tmp_path / "hosts").write_text("a slots=3\nb slots=2\n")
    before = plan(parse(Request(script="x.py", hosts=tmp_path / "hosts", sets=("launch.min_nodes=1",))))
    assert plan_again(before, ("", "b")).placement.world_size == 2


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["launch.spares=2"], "launch.spares is 2, but there are 2 hosts: at least one must be no spare"),
        (["launch.min_nodes=3"], "launch.min_nodes is 3, but there are 2 hosts: at most 2 is possible"),
        (
            ["launch.min_nodes=2", "launch.spares=1"],
            "there are 2 hosts, 1 of them spare: at most 1 is possible",
        ),
    ],
)
def test_numbers_that_do_not_fit_the_hosts(planned, sets, words):
    """Refused before anybody is contacted."""
    with pytest.raises(UsageError, match=words):
        planned("a slots=1", "b slots=1", sets=sets)


@pytest.mark.parametrize("key", ["spares", "min_nodes"])
def test_this_machine_has_no_other_hosts(tmp_path, key):
    """Without a hostfile neither key means anything."""
    (tmp_path / "r.yaml").write_text(RECIPE)
    with pytest.raises(UsageError, match=f"launch.{key} is about the hosts of a hostfile"):
        parse(Request(recipe=tmp_path / "r.yaml", sets=(f"launch.{key}=1",)))


def test_resume_means_the_run_that_latest_is_now(tmp_path):
    """`--resume runs/latest/checkpoints/latest`: pinned before the new run becomes the latest."""
    step = tmp_path / "runs/first/checkpoints/step-00000003"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    (tmp_path / "runs/latest").symlink_to("first")
    (step.parent / "latest").symlink_to(step.name)
    asked = tmp_path / "runs/latest/checkpoints/latest"
    assert find_checkpoint(str(asked), tmp_path / "runs") == str(step)

import pytest

from launcher.dryrun import SECRET, as_json, as_text, outcome
from launcher.planning import Request


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    """request_of(hostfile text) for a script with a secret, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_KEY", "hunter2")

    def make(text):
        (tmp_path / "hosts").write_text(text)
        return Request(script="x.py", hosts=tmp_path / "hosts", sets=("launch.env_secret=[API_KEY]",))

    return make


def test_unequal_hosts(request_of):
    """A01: the plan of 8, 2, 4 and 1 slots, contacting nobody and without the secret's value."""
    found = outcome(request_of("gpu-a slots=8\ngpu-b slots=2\ngpu-c slots=4\ngpu-d slots=1\n"), probe=False)
    plan = as_json(found, with_commands=True)
    assert plan["world_size"] == 15
    assert [rank["local_rank"] for rank in plan["ranks"]] == [*range(8), 0, 1, *range(4), 0]
    assert plan["ranks"][14]["env"]["API_KEY"] == SECRET
    assert "hunter2" not in str(plan) + "\n".join(as_text(found, with_commands=True))


def test_unknown_slots(request_of):
    """Hosts that must be asked are shown as unknown, and how to ask is said."""
    found = outcome(request_of("gpu-a\ngpu-b slots=2\n"), probe=False)
    plan = as_json(found, with_commands=False)
    assert (plan["world_size"], plan["ranks"]) == (None, None)
    assert [host["slots"] for host in plan["hosts"]] == [None, 2]
    assert "--probe" in as_text(found, with_commands=False)[-1]


def test_whether_a_script_is_watched(tmp_path):
    """The plan says what a stall is for a script, which may report no steps."""
    auto = as_text(outcome(Request(script="x.py"), probe=False), with_commands=False)
    assert "stalls     watched for stalls from its first distperf.report on" in auto
    given = as_text(
        outcome(Request(script="x.py", sets=("launch.stall_timeout_s=9",)), probe=False), with_commands=False
    )
    assert any("stalled after 9 s without a step" in line for line in given)


def test_a_model_that_only_its_own_code_knows(tmp_path):
    """Bytes of state are unknown before it is built, and the plan says so instead of guessing."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: {factory: 'mine:build', vocab: 300}\ndata: {synthetic: true}\ntrain: {steps: 1, global_batch: 8}\n"
    )
    found = outcome(Request(recipe=recipe, nproc=2), probe=False)
    plan = as_json(found, with_commands=False)
    assert plan["parameters"] is None
    assert set(plan["per_rank"].values()) == {None}
    assert plan["unknown"]["per_rank"].startswith("known once built")
    assert any(
        line.startswith("per rank   known once built: only the model's own code")
        for line in as_text(found, with_commands=False)
    )

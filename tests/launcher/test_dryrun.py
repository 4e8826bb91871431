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

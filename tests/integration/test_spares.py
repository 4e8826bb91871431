"""Hosts that die for good: a spare takes over, or fewer nodes go on, and the curve is as if nothing had been."""

from __future__ import annotations

import json

import pytest
from integration.launches import RECIPE, gone, start

pytestmark = [pytest.mark.lab, pytest.mark.slow]
LAB_HOSTS = 3

LAUNCH = "heartbeat_timeout_s: 1, lease_s: 3, grace_s: 1"


@pytest.fixture
def place(lab, request, monkeypatch):
    """A folder that all hosts see at the same path, with all hosts running."""
    for k in (1, 2, 3):
        lab.testbed("boot", k)
    folder = lab.dir / "shared" / request.node.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "recipe.yaml").write_text(RECIPE)
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Losses of the same recipe in one process."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "recipe.yaml").write_text(RECIPE)
    run = start(folder, "recipe.yaml", "--nproc", "1", "--set", "train.steps=40")
    _, err = run.end()
    assert run.process.returncode == 0, err
    return run.losses()


def launch_and_lose_host2(lab, place, hosts, launch):
    """Switch host2 off after step 12 of 40, when two checkpoints are there; the run's end."""
    (place / "hosts").write_text(hosts)
    flags = ["--set", "train.steps=40", "--set", f"launch={{{LAUNCH}, {launch}}}"]
    run = start(place, "recipe.yaml", "--hosts", "hosts", *flags)
    run.until(lambda s: s["metrics"].get("step", 0) >= 12)
    lab.testbed("off", 2)
    _, err = run.end()
    assert run.process.returncode == 0, err
    status = run.status()
    assert (status["state"], status["attempt"]) == ("finished", 2)
    assert (status["first_failure"]["host"], status["first_failure"]["cause"]) == ("host2", "node_lost")
    assert gone(run.token(), within_s=2)
    return run, status, err


def assert_same_curve(found, expected):
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), step


def test_a_spare_takes_over(lab, place, one_process):
    """Power off a node: the spare gets its ranks, and the run goes on from the newest checkpoint."""
    hosts = "host1 slots=2\nhost2 slots=2\nhost3 slots=2\n"
    run, status, err = launch_and_lose_host2(lab, place, hosts, "spares: 1")
    assert "(1 spare: host3)" in err
    assert "host3 takes the place of host2" in err
    assert [rank["host"] for rank in status["ranks"]] == ["host1", "host1", "host3", "host3"]
    assert [rank["host"] for rank in json.loads((run.run / "placement.json").read_text())][2:] == [
        "host3"
    ] * 2
    assert_same_curve(run.losses(), one_process)


def test_fewer_nodes_with_the_same_batch(lab, place, one_process):
    """No spare, min_nodes 1: two ranks do what four did, with the same global batch and curve."""
    run, status, err = launch_and_lose_host2(lab, place, "host1 slots=2\nhost2 slots=2\n", "min_nodes: 1")
    assert "going on without host2" in err
    assert [rank["host"] for rank in status["ranks"]] == ["host1", "host1"]
    spec = json.loads((run.run / "runspec.json").read_text())
    assert (spec["world_size"], spec["train"]["global_batch"]) == (2, 12)
    assert_same_curve(run.losses(), one_process)

"""A host that dies with its memory: its neighbour's copies serve a spare, or fewer nodes, and no disk is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.launches import RECIPE, gone, metrics, start
from integration.test_memory_tier import EVERY, resumes

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(400)]
LAB_HOSTS = 3
LAUNCH = "heartbeat_timeout_s: 1, lease_s: 6, grace_s: 1"
STEPS = 120  # so many that a run does not end while a host is being switched off
CHECKPOINT = f"{{every_steps: 0, save_last: false, dir: disk, memory: {{every_steps: {EVERY}, dir: %s}}}}"


@pytest.fixture
def place(lab, request, monkeypatch):
    """A folder that all hosts see at the same path, with a folder that stands for the memory of each."""
    for k in (1, 2, 3):
        lab.testbed("boot", k)
    folder = lab.dir / "shared" / request.node.name.partition("[")[0]
    (folder / "memory").mkdir(parents=True)
    for path in (folder, folder / "memory"):
        path.chmod(0o777)
    recipe = RECIPE.replace("{every_steps: 5, dir: checkpoints}", CHECKPOINT % (folder / "memory"))
    assert recipe != RECIPE
    (folder / "recipe.yaml").write_text(recipe)
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


def lose_host2(lab, place, hosts: str, launch: str):
    """Switch host2 off after step 12; the run when it has ended, and where its second attempt began."""
    (place / "hosts").write_text(hosts)
    flags = ["--set", f"train.steps={STEPS}", "--set", f"launch={{{LAUNCH}, {launch}}}"]
    run = start(place, "recipe.yaml", "--hosts", "hosts", *flags)
    run.until(lambda s: s["metrics"].get("step", 0) >= 12)
    lab.testbed("off", 2)
    out, err = run.end(within_s=200)
    assert run.process.returncode == 0, err
    assert gone(run.token(), within_s=2)
    (resumed,) = resumes(run.run)
    assert [line["host"] for line in metrics(run.run, "events.jsonl") if line["event"] == "NodeLost"] == [
        "host2"
    ]
    assert f"resumed from memory, step {resumed['step']}" in out + err
    assert resumed["step"] >= 12 - 2 * EVERY
    assert not (place / "disk").exists()
    return run


def folders(place: Path) -> set[str]:
    return {path.name for path in (place / "memory").iterdir()}


def test_a_spare_gets_the_lost_ranks_state_from_the_neighbour(lab, place):
    """The spare takes host2's place with host1's copies; host2's own folder, that nobody could remove, is taken back
    by the spare's agent, and nothing is left. The curve is an undisturbed run's, to the last bit.
    """
    hosts = "host1 slots=2\nhost2 slots=2\nhost3 slots=2\n"
    run = lose_host2(lab, place, hosts, "spares: 1")
    assert [rank["host"] for rank in run.status()["ranks"]] == ["host1", "host1", "host3", "host3"]
    assert folders(place) == set()
    undisturbed = start(place, "recipe.yaml", "--nproc", "4", "--set", f"train.steps={STEPS}")
    _, err = undisturbed.end(within_s=200)
    assert undisturbed.process.returncode == 0, err
    assert run.losses() == undisturbed.losses()


def test_fewer_nodes_go_on_from_it(lab, place):
    """Two ranks on host1 go on from what four on two hosts have kept; the folder of the host that is off waits for the
    next run that looks there.
    """
    run = lose_host2(lab, place, "host1 slots=2\nhost2 slots=2\n", "min_nodes: 1")
    assert [rank["host"] for rank in run.status()["ranks"]] == ["host1", "host1"]
    assert run.losses().keys() == set(range(1, STEPS + 1))
    assert len(folders(place)) == 1
    again = start(place, "recipe.yaml", "--hosts", "hosts", "--include", "host1", "--set", "train.steps=4")
    _, err = again.end()
    assert again.process.returncode == 0, err
    assert folders(place) == set()

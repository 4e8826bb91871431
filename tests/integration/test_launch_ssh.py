"""A run over real SSH, from recipe to checkpoint, and what becomes of it when something is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zlib

import pytest
from integration.launches import RECIPE, distperf, gone, metrics, processes_of, start

from distperf.checkpoint.manifest import list_checkpoints

pytestmark = [pytest.mark.lab, pytest.mark.slow]
LAB_HOSTS = 3


@pytest.fixture
def place(lab, request, monkeypatch):
    """A folder that this machine and all hosts see at the same path, with the recipe and a hostfile of two hosts."""
    folder = lab.dir / "shared" / request.node.name.replace("[", "-").rstrip("]")
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # ranks run as the lab's own user
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "hosts").write_text("host1 slots=2\nhost2 slots=2\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


@pytest.fixture(scope="session")
def one_process(tmp_path_factory):
    """Losses of the same recipe in one process, by flags."""
    known = {}

    def losses(*flags):
        if flags not in known:
            folder = tmp_path_factory.mktemp("one")
            (folder / "recipe.yaml").write_text(RECIPE)
            run = start(folder, "recipe.yaml", "--nproc", "1", *flags)
            _, err = run.end()
            assert run.process.returncode == 0, err
            known[flags] = run.losses()
        return known[flags]

    return losses


def assert_same_curve(found, expected):
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), step


@pytest.mark.parametrize("flags", [(), ("--set", "train.micro_batch=2", "--set", "parallel.zero=3")])
def test_unequal_nodes_train_as_one_process_does(place, one_process, flags):
    """2 slots + 1 slot: the losses are those of one process, and ranks and local ranks follow the hostfile (A01)."""
    (place / "hosts").write_text("host1 slots=2\nhost2 slots=1\n")
    run = start(place, "recipe.yaml", "--hosts", "hosts", *flags)
    out, err = run.end()
    assert run.process.returncode == 0, out + err
    assert_same_curve(run.losses(), one_process("--set", "train.micro_batch=2") if flags else one_process())
    ranks = [(r["host"], r["rank"], r["local_rank"], r["node_rank"]) for r in run.status()["ranks"]]
    assert ranks == [("host1", 0, 0, 0), ("host1", 1, 1, 0), ("host2", 2, 0, 1)]
    assert "host1 0 | " in out
    assert "checkpoint" in err
    assert (place / "checkpoints" / "step-00000020" / "manifest.json").exists()


def test_killed_rank_leads_to_one_restart_and_the_curve_goes_on(place, one_process):
    """SIGKILL of a random rank at a random step: one restart, every step once, losses as if nothing had happened."""
    run = start(place, "recipe.yaml", "--hosts", "hosts", "--set", "train.steps=40")
    step, victim = random.randint(6, 15), random.randrange(4)
    status = run.until(lambda s: s["state"] == "running" and s["metrics"].get("step", 0) >= step)
    os.kill(pid_here(status["ranks"][victim], run), signal.SIGKILL)
    _out, err = run.end()
    assert run.process.returncode == 0, err
    assert_same_curve(run.losses(), one_process("--set", "train.steps=40"))
    final = run.status()
    assert final["attempt"] == 2
    assert f"rank {victim} on host{victim // 2 + 1}: killed by SIGKILL" in err
    again = {line["step"]: line["loss"] for line in metrics(run.run)}
    for line in metrics(run.run, "metrics.superseded.jsonl"):
        assert line["loss"] == again[line["step"]], "a resumed run repeats its steps to the last bit"


def test_without_restarts_left_the_failure_is_told_first(place):
    """max_restarts 0: exit code 1; host, rank and signal by name stand first, then the rank's last lines."""
    run = start(
        place, "recipe.yaml", "--hosts", "hosts", "--set", "launch.max_restarts=0", "--set", "train.steps=400"
    )
    status = run.until(lambda s: s["metrics"].get("step", 0) >= 3)
    killed_at = time.monotonic()
    os.kill(pid_here(status["ranks"][0], run), signal.SIGKILL)
    _, err = run.end(within_s=30)
    assert run.process.returncode == 1
    assert time.monotonic() - killed_at < 10
    report = err[err.index("first failure:") :].splitlines()
    assert report[0].startswith("first failure: rank 0 on host1 (pid ")
    assert "SIGKILL" in report[0]
    assert report[1].strip() == "its last lines:"
    assert "step" in "".join(report[2:10])
    failure = run.status()["first_failure"]
    assert (failure["host"], failure["rank"], failure["cause"], failure["signal"]) == (
        "host1",
        0,
        "signal",
        "SIGKILL",
    )
    assert gone(run.token(), within_s=1)


@pytest.mark.parametrize("how", ["ctrl-c", "stop", "sigterm"])
def test_stopping_leaves_no_process_on_any_node(place, how):
    """Ctrl-C, `distperf stop` and SIGTERM: the code of each, and nothing left within grace + 5 s."""
    run = start(
        place, "recipe.yaml", "--hosts", "hosts", "--set", "train.steps=4000", "--set", "launch.grace_s=2"
    )
    run.until(lambda s: s["metrics"].get("step", 0) >= 2)
    assert len(processes_of(run.token())) >= 4
    if how == "stop":
        assert distperf(place, "stop").returncode == 0
    else:
        run.process.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGTERM)
    assert gone(run.token(), within_s=7)
    _, err = run.end(within_s=10)
    assert run.process.returncode == (143 if how == "sigterm" else 130), err
    assert run.status()["state"] == "stopped"


def test_ctrl_c_keeps_the_last_step_and_a_resume_goes_on_to_the_last_bit(place):
    """At a random step over 2 nodes: one checkpoint, of the last step that all ranks have finished."""
    flags = [
        "recipe.yaml",
        "--hosts",
        "hosts",
        "--set",
        "train.steps=400",
        "--set",
        "checkpoint.every_steps=1000",
    ]
    run, at = start(place, *flags), random.randint(2, 12)
    run.until(lambda s: s["metrics"].get("step", 0) >= at)
    run.process.send_signal(signal.SIGINT)
    _, err = run.end(within_s=30)
    assert run.process.returncode == 130, err
    first, status = run.losses(), run.status()
    assert {rank["step"] for rank in status["ranks"]} == {len(first)}
    (saved,) = list_checkpoints(place / "checkpoints")
    assert (saved.step, saved.complete) == (len(first), True)
    assert f"go on with  distperf launch {run.run}/recipe.yaml --resume {run.run}" in err
    resumed = start(place, *flags, "--resume", run.run.name)
    assert f"resumed after step {len(first)}" in resumed.end()[0]
    rest = {line["step"]: line["loss"] for line in metrics(resumed.run)}
    whole = start(place, *flags, "--set", "checkpoint.dir=whole")
    whole.end()
    assert {**first, **rest} == whole.losses()
    assert min(rest) == len(first) + 1


def test_controller_killed_leaves_nothing(place):
    """SIGKILL of the controller: status says lost; after their lease the agents end the ranks, which save together."""
    run = start(
        place, "recipe.yaml", "--hosts", "hosts", "--set", "train.steps=4000", "--set", "checkpoint.every_steps=9999",
        "--set",
        "launch={grace_s: 2, lease_s: 3, heartbeat_timeout_s: 2}",
    )  # fmt: skip
    run.until(lambda s: s["metrics"].get("step", 0) >= 2)
    run.process.kill()
    run.process.communicate()
    assert gone(run.token(), within_s=10)
    assert run.status()["state"] == "lost"
    assert [info.complete for info in list_checkpoints(place / "checkpoints")] == [True]


def test_cut_link_ends_ranks_by_the_lease(lab, place):
    """Packets vanish for ever: the node's ranks end themselves after lease + grace, and the run ends with node_lost."""
    run = start(
        place, "recipe.yaml", "--hosts", "hosts", "--set", "train.steps=4000", "--set",
        "launch={grace_s: 1, lease_s: 3, heartbeat_timeout_s: 2, max_restarts: 1}",
    )  # fmt: skip
    run.until(lambda s: s["metrics"].get("step", 0) >= 2)
    lab.testbed("cut", 2)
    try:
        assert gone(run.token(), within_s=20)
        _, err = run.end(within_s=40)
    finally:
        lab.testbed("mend", 2)
    assert run.process.returncode == 1
    assert "host2 is unreachable" in err
    assert run.status()["first_failure"]["cause"] == "node_lost"


def test_memory_in_status_is_the_table(place):
    """bytes per rank counted on live tensors equal DESIGN's table for every stage, within padding."""
    n, ranks = 2 * (32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 2 * 257 * 32 + 32, 4
    for zero in range(4):
        flags = [
            "--set",
            f"parallel.zero={zero}",
            "--set",
            "train.steps=3",
            "--set",
            "checkpoint.save_last=false",
        ]
        run = start(place, "recipe.yaml", "--hosts", "hosts", *flags)
        _, err = run.end()
        assert run.process.returncode == 0, err
        plan = json.loads(distperf(place, "plan", "recipe.yaml", "--hosts", "hosts", "--json", *flags).stdout)
        expected = {
            "parameters_bytes": 4 * n // (ranks if zero == 3 else 1),
            "gradients_bytes": 4 * n // (ranks if zero >= 2 else 1),
            "optimizer_bytes": 8 * n // (ranks if zero >= 1 else 1),
        }
        for rank in run.status()["ranks"]:
            for kind, size in expected.items():
                assert rank["memory"][kind] == pytest.approx(size, rel=0.02), (zero, kind)
                assert plan["per_rank"][kind] == pytest.approx(size, rel=0.001)


def test_ports_are_open_to_the_chosen_interface_only(lab, place):
    """No rank listens on all addresses: torch's store and gloo bind to the node's own one."""
    run = start(place, "recipe.yaml", "--hosts", "hosts", "--set", "train.steps=4000")
    run.until(lambda s: s["metrics"].get("step", 0) >= 2)
    listening = [lab.ssh(k, "cat /proc/net/tcp /proc/net/tcp6", user="root") for k in (1, 2)]
    run.process.send_signal(signal.SIGINT)
    run.end()
    for text in listening:
        rows = [line.split() for line in text.splitlines() if ": " in line]
        open_to_all = {int(row[1].split(":")[1], 16) for row in rows
                       if row[3] == "0A" and set(row[1].split(":")[0]) == {"0"}}  # fmt: skip
        assert open_to_all == {22}
        assert any(row[3] == "0A" and set(row[1].split(":")[0]) != {"0"} for row in rows)


def test_trains_over_ipv6(lab, place, one_process):
    """Bare and bracketed IPv6 hosts: MASTER_ADDR is one gloo can use (A20)."""
    (place / "hosts").write_text(f"2001:db8:18:{lab.net}::1 slots=1\n[2001:db8:18:{lab.net}::2] slots=1\n")
    run = start(place, "recipe.yaml", "--hosts", "hosts")
    out, err = run.end()
    assert run.process.returncode == 0, out + err
    assert_same_curve(run.losses(), one_process())


ODD = {"A": "64(x2)", "B": "a b", "C": 'a"b', "D": "it's", "E": "$HOME `id` ; *", "F": "日本", "G": "", "H": "x\ny",
       "I": "z" * 100_000}  # fmt: skip


def test_arguments_and_environment_arrive_byte_for_byte(lab, place):
    """B14 over SSH: nothing is expanded or executed; /proc/self of the rank shows what was given."""
    (place / "show.py").write_text(
        "import os\n"
        "for kind in ('environ', 'cmdline'):\n"
        "    with open(f'/proc/self/{kind}', 'rb') as f, open(f\"{kind}-{os.environ['RANK']}\", 'wb') as out:\n"
        "        out.write(f.read())\n"
    )
    recipe = {
        "name": "show",
        "script": {"path": "show.py", "args": list(ODD.values())},
        "launch": {"env": ODD},
    }
    (place / "odd.yaml").write_text(json.dumps(recipe))
    run = start(place, "odd.yaml", "--hosts", "hosts")
    _, err = run.end()
    assert run.process.returncode == 0, err
    for rank in range(4):
        environ = (place / f"environ-{rank}").read_bytes().split(b"\0")
        assert {f"{name}={value}".encode() for name, value in ODD.items()} <= set(environ)
        arguments = (place / f"cmdline-{rank}").read_bytes().split(b"\0")[:-1]
        assert arguments[-len(ODD) :] == [value.encode() for value in ODD.values()]


def test_hosts_that_cannot_be_reached_are_named_together(lab, place):
    """Two dead hosts and a good one: exit code 3, one error, nothing started."""
    (place / "hosts").write_text(f"host1 slots=1\n{lab.address(200)} slots=1\n{lab.address(201)} slots=1\n")
    run = start(place, "recipe.yaml", "--hosts", "hosts", "--set", "train.micro_batch=1")
    _, err = run.end(within_s=40)
    assert run.process.returncode == 3, err
    assert "2 hosts" in err
    assert "Traceback" not in err
    assert not (place / "runs").exists()


def test_checkpoint_folder_that_nodes_do_not_share_is_refused(place):
    """/var/tmp is each host's own: refused before any rank starts, exit code 4, saying what to do."""
    run = start(place, "recipe.yaml", "--hosts", "hosts", "--set", "checkpoint.dir=/var/tmp/checkpoints")
    _, err = run.end(within_s=30)
    assert run.process.returncode == 4, err
    assert "host2" in err
    assert "checkpoint.dir" in err


def test_interpreter_that_is_not_there_is_refused(place):
    """B18: the interpreter is named with its node before any rank starts."""
    (place / "hosts").write_text("host1 slots=1\nhost2 slots=1 workdir=/nowhere\n")
    run = start(place, "recipe.yaml", "--hosts", "hosts", "--set", "launch.python=/opt/none/bin/python")
    _, err = run.end(within_s=30)
    assert run.process.returncode == 4, err
    assert "host1: cannot run /opt/none/bin/python" in err
    assert "host2: no folder /nowhere" in err


def pid_here(rank, run):
    """The rank's pid as this machine sees it: agents tell pids of their own namespace.

    Of a forked rank, /proc shows the environment of the process that it was forked from: the node's token, no RANK.
    """
    token = f"-{zlib.crc32(rank['host'].encode()):08x}\0".encode()
    for pid in processes_of(run.token()):
        with open(f"/proc/{pid}/status") as status, open(f"/proc/{pid}/environ", "rb") as environ:
            inner = next(line.split()[-1] for line in status if line.startswith("NSpid:"))
            at = environ.read().partition(b"DISTPERF_JOB_TOKEN=")[2]
        if inner == str(rank["pid"]) and at[: at.index(b"\0") + 1].endswith(token):
            return pid
    raise AssertionError(f"no process of rank {rank['rank']}")

import os
import subprocess
import sys
import time

import pytest

from launcher.agent import processes
from launcher.agent.processes import rank_environment, visible_devices


def order(**more):
    return {"env": {}, "defaults": {}, "slots": [0], "devices": None, **more}


@pytest.mark.parametrize(
    ("mask", "slots", "devices", "visible"),
    [
        (None, [0, 1], None, None),  # all places, nothing hidden: as it is
        (None, [1], None, b"1"),  # a filter chose a place
        (None, [0, 2], None, b"0,2"),
        (b"1", [0], None, b"1"),  # A15: physical device 1 is local device 0
        (b"4,5,6,7", [1, 3], None, b"5,7"),
        (b"GPU-aaa,GPU-bbb", [1], None, b"GPU-bbb"),
        (b"1", [0, 1], None, None),  # fewer devices than places: as it is
        (b"", [1], None, None),  # all devices are hidden: none is shown
        (b"0,1", [0], [2, 3], b"2,3"),  # the hostfile names devices
        (None, [0], [7], b"7"),
        (None, [], None, None),
    ],
)
def test_visible_devices(mask, slots, devices, visible):
    """CUDA_VISIBLE_DEVICES by the node's own mask, the places chosen of it, and the hostfile's gpus=."""
    assert visible_devices(mask, slots, devices) == visible


def test_the_launchers_mask_does_not_leak():
    """A15: a node's own environment counts; the order brings no mask along."""
    assert b"CUDA_VISIBLE_DEVICES" not in rank_environment({b"PATH": b"/bin"}, order())
    assert rank_environment({b"CUDA_VISIBLE_DEVICES": b"1"}, order())[b"CUDA_VISIBLE_DEVICES"] == b"1"
    given = order(env={"CUDA_VISIBLE_DEVICES": "3"})
    assert rank_environment({b"CUDA_VISIBLE_DEVICES": b"1"}, given)[b"CUDA_VISIBLE_DEVICES"] == b"3"


def test_what_another_launcher_left_is_removed():
    """A launch from inside another run's rank starts clean; everything else of the node's environment stays."""
    foreign = {
        b"RANK": b"3", b"WORLD_SIZE": b"8", b"MASTER_ADDR": b"x", b"TORCHELASTIC_RUN_ID": b"y", b"LOCAL_RANK": b"1",
        b"TORCHELASTIC_ERROR_FILE": b"z", b"DISTPERF_JOB_TOKEN": b"t", b"DISTPERF_REPORT_FD": b"5", b"ROLE_NAME": b"r",
    }  # fmt: skip
    kept = {b"PATH": b"/bin", b"RANKS": b"1", b"ODD": b"\xff"}
    assert rank_environment({**foreign, **kept}, order()) == kept


def test_defaults_give_way():
    """A default is set where neither the node nor the order says otherwise."""
    given = order(defaults={"A": "default", "B": "default", "C": "default"}, env={"B": "order"})
    env = rank_environment({b"A": b"node"}, given)
    assert (env[b"A"], env[b"B"], env[b"C"]) == (b"node", b"order", b"default")


def test_token_must_match_whole():
    """A token that begins like ours is another run's."""
    child = subprocess.Popen(["sleep", "30"], env={"DISTPERF_JOB_TOKEN": "tok-test-12"})
    try:
        assert processes.with_token("tok-test-1") == []
        assert processes.with_token("tok-test-12") == [child.pid]
        assert processes.with_token("tok-test-12", spare=[child.pid]) == []
    finally:
        child.kill()
        child.wait()


def test_signals_to_nobody():
    """A process that has ended meanwhile is fine."""
    child = subprocess.Popen(["true"])
    child.wait()
    processes.send([child.pid], 15)
    processes.send_group(child.pid, 15)
    assert processes.group(child.pid) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("last_word", "spared"), [(b"", False), (b"bye\n", True)])
def test_guardian(tmp_path, last_word, spared):
    """When its pipe ends it kills what carries the token, and removes the folder, unless the agent has said bye."""
    token = f"guardian-{os.getpid()}-{spared}"
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={"DISTPERF_JOB_TOKEN": token}
    )
    folder = tmp_path / "kept here"
    folder.mkdir()
    told = b"an-older-token\n" + token.encode() + f"\n{folder}\n".encode() + last_word
    code = f"""
import os, sys
sys.path.insert(0, {os.getcwd()!r})
from launcher.agent import processes
fd = processes.start_guardian()
os.write(fd, {told!r})
"""
    try:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
        if spared:
            time.sleep(0.3)
            assert child.poll() is None
        else:
            assert child.wait(timeout=10) == -9
            deadline = time.monotonic() + 10
            while folder.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        assert folder.exists() == spared
    finally:
        child.kill()
        child.wait()


def test_a_rank_is_no_task_of_slurms():
    """What an srun says of its one task, the agent, is not said to ranks; what it says of the job is."""
    job = {b"SLURM_JOB_ID": b"7", b"SLURM_JOB_NODELIST": b"n[1-2]"}
    names = (b"SLURM_PROCID", b"SLURM_NTASKS", b"SLURM_STEP_ID", b"SRUN_DEBUG", b"PMIX_RANK")
    assert rank_environment({**job, **dict.fromkeys(names, b"0")}, order()) == job

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent.memory import CGROUPS, KernelLog, MemoryWatch, group_of

V1 = Path(CGROUPS, "memory")


def tree(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(folder, cgroup, **files):
    tree(folder, {"proc/7/cgroup": cgroup, **files})
    return group_of(7, str(folder / "proc"), str(folder / "cg"))


def test_version_2(tmp_path):
    """The group of the one hierarchy; its kills; the tightest limit on the way up."""
    files = {
        "cg/job/step/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        "cg/job/step/memory.max": "max\n",
        "cg/job/memory.max": "268435456\n",
    }
    group = found(tmp_path, "0::/job/step\n", **files)
    assert (group.kills(), group.limit_bytes()) == (2, 256 << 20)


def test_version_1(tmp_path):
    """The memory controller's line among those of the other hierarchies; "no limit" is a number near 2 ** 63."""
    files = {
        "cg/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "cg/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
    }
    group = found(tmp_path, "9:cpu,cpuacct:/\n4:memory:/job\n0::/unified\n", **files)
    assert (group.kills(), group.limit_bytes()) == (1, None)


def test_container(tmp_path):
    """The path is the host's, the mount is the container's own: its root is the group."""
    files = {"cg/memory.events": "oom_kill 5\n", "cg/memory.max": "1048576\n"}
    group = found(tmp_path, "0::/docker/abc\n", **files)
    assert (group.kills(), group.limit_bytes()) == (5, 1 << 20)


@pytest.mark.parametrize("cgroup", ["", "0::/x\n", "nonsense\n", "1:name=systemd:/\n"])
def test_nothing_to_go_by(tmp_path, cgroup):
    """No controller, no file, no sense: no verdict, and nothing raises."""
    assert found(tmp_path, cgroup) is None
    watch = MemoryWatch()
    assert watch.verdict(4_000_000) is None
    watch.close()


def test_kernel_log_lines(tmp_path):
    """Whose memory ran out, by pid; a process that is not named was killed by somebody else."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,2,-;Out of memory: Killed process 7 (python) total-vm:1kB\n")
    kernel = KernelLog(str(log))
    with log.open("a") as file:
        file.write("3,2,3,-;Memory cgroup out of memory: Killed process 11 (python) total-vm:2kB\n")
        file.write("3,3,4,-;Out of memory: Killed process 12 (python) total-vm:2kB\n")
    expected = (
        [None, "cgroup", "host"] if kernel._fd >= 0 else [None] * 3
    )  # in a pid namespace its pids are not ours
    assert [kernel.killed(pid) for pid in (7, 11, 12)] == expected
    kernel.close()
    assert KernelLog(str(tmp_path / "none")).killed(7) is None


@pytest.fixture
def limited():
    """A cgroup of our own with 64 MiB."""
    group = V1 / f"distperf-test-{os.getpid()}"
    if not os.access(V1 / "memory.oom_control", os.W_OK):
        pytest.skip("needs root and a cgroup v1 memory controller")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield group
    group.rmdir()


def die(group, code):
    """A process in the group, watched from its start to the end that the code brings it."""
    argv = [sys.executable, "-c", f"input()\n{code}"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    (group / "cgroup.procs").write_text(str(process.pid))
    watch = MemoryWatch()
    watch.add(process.pid)
    process.communicate(b"\n", timeout=30)
    assert process.returncode == -signal.SIGKILL
    verdict = watch.verdict(process.pid)
    assert watch.verdict(process.pid) is None, "one kill explains one end"
    watch.close()
    return verdict


@pytest.mark.slow
def test_a_real_limit(limited):
    """The kernel's own kill is told with the limit, and a kill by somebody else in the same group is not."""
    said = "killed by the kernel: memory limit of its cgroup (64 MiB) reached"
    assert die(limited, "x = bytearray(256 << 20)") == said
    assert die(limited, "import os; os.kill(os.getpid(), 9)") is None

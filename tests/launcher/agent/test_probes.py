import os
import socket
import subprocess
import sys
import tempfile
import threading

import pytest

from launcher.agent import probes
from launcher.agent.spool import Spool
from launcher.transport import bundle

RUN_ID = "gone-20260101-000000-abcd"


@pytest.fixture
def temp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_survey_is_all_there(tmp_path):
    """Every part is there, for every folder asked for and the temporary one."""
    found = probes.survey([str(tmp_path)])
    assert set(found["folders"]) == {str(tmp_path), found["temp"]}
    assert found["hostname"] == socket.gethostname()
    assert found["shm"]["total_bytes"] > 0


def test_space_of_what_does_not_exist_yet(tmp_path):
    """A folder to be made is judged where it would be; the test leaves nothing behind."""
    found = probes.space(str(tmp_path / "a" / "b"))
    assert (found["at"], found["error"]) == (str(tmp_path), None)
    assert 0 < found["free_bytes"] <= found["total_bytes"]
    assert list(tmp_path.iterdir()) == []


def test_space_that_cannot_be_written():
    """The kernel's own word, even for root, whom permission bits do not stop."""
    assert probes.space("/proc/self/nothing")["error"]


@pytest.mark.parametrize(
    ("script", "rows", "error"),
    [
        ("echo '0, NVIDIA H, 8, 10, 40, 0, 550.1'", [["0", "NVIDIA H", "8", "10", "40", "0", "550.1"]], None),
        ("echo 'NVML: version mismatch'; exit 18", [], "NVML: version mismatch"),
        ("echo 'nonsense'", [], "nonsense"),
    ],
)
def test_nvidia_smi(tmp_path, monkeypatch, script, rows, error):
    """Rows of a good answer; the text of any other."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert probes.nvidia_smi() == {"rows": rows, "error": error}


def test_no_nvidia_smi(tmp_path, monkeypatch):
    """Where there is none, that is the answer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.nvidia_smi() is None


def sleeper(*above):
    """A process with a token, under a parent whose command line ends with `above`."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    environ = {**os.environ, "DISTPERF_JOB_TOKEN": f"{RUN_ID}-0011223344556677-0"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *above], env=environ, stdout=subprocess.PIPE, text=True
    )


def test_leftover_processes():
    """A process with a token is left over, unless an agent is among its ancestors."""
    stray, ranks = sleeper(), sleeper(bundle.FIRST_STAGE)
    try:
        pids = {process: int(process.stdout.readline()) for process in (stray, ranks)}
        found = {left["pid"]: left for left in probes.left_processes([bundle.FIRST_STAGE.encode()])}
        assert pids[stray] in found
        assert found[pids[stray]]["token"].startswith(RUN_ID)
        assert found[pids[stray]]["command"] == "sleep 60"
        assert pids[ranks] not in found
    finally:
        for process, pid in pids.items():
            os.kill(pid, 9)
            process.wait()
            process.stdout.close()


def test_leftover_spools(temp):
    """A spool is left over when no process holds it; folders of other names are nobody's business."""
    alive, dead = Spool(RUN_ID), Spool(RUN_ID)
    os.close(dead._owned_fd)
    (temp / "distperf-0").mkdir()
    assert probes.left_spools() == [dead.folder]
    alive.remove()


def test_dial_tells_open_from_closed_ports():
    """A port that is listened on is reached, however often; one that is not says why."""
    threads = threading.active_count()
    first, second = probes.listen("127.0.0.1", [0, 0])
    targets = {"up": ["127.0.0.1", [first, second]]}
    for _ in range(3):
        assert probes.dial(targets, 5.0) == {"up": [None, None]}
    probes.unlisten()
    assert threading.active_count() == threads
    assert probes.dial(targets, 5.0) == {"up": ["Connection refused"] * 2}
    with pytest.raises(OSError, match="Cannot assign"):
        probes.listen("198.51.100.1", [0])
    probes.unlisten()

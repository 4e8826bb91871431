"""A transport from a file of the user's."""

import json
import os
import subprocess
import sys

import pytest

from launcher.errors import UsageError
from launcher.transport.own import load

OURS = """
from launcher.transport.command import CommandTransport

def here():
    return CommandTransport(lambda host: ["env", f"POD={host.name}"])

def nothing():
    return object()

def broken():
    return undefined
"""


def test_a_run_over_a_command(tmp_path):
    """Three lines in a file beside the recipe reach a host that SSH does not know."""
    (tmp_path / "pods.py").write_text(OURS)
    (tmp_path / "t.py").write_text("import os; print('in', os.environ['POD'])")
    (tmp_path / "hosts").write_text("trainer-0 slots=2\n")
    (tmp_path / "r.yaml").write_text(
        'script: {path: t.py}\nlaunch: {transport: "pods.py:here", warm_start: false}\n'
    )
    command = [sys.executable, "-m", "launcher", "launch", "r.yaml", "--hosts", "hosts"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    logs = [path.read_text() for path in (tmp_path / "runs" / "latest" / "logs" / "attempt-1").iterdir()]
    assert logs == ["in trainer-0\n"] * 2
    placement = json.loads((tmp_path / "runs" / "latest" / "placement.json").read_text())
    assert {rank["host"] for rank in placement} == {"trainer-0"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("no.py:here", "FileNotFoundError"),
        ("pods.py:other", "AttributeError"),
        ("pods.py:broken", "NameError"),
        ("pods.py:nothing", "has no connect, describe, close, link_may_return"),
    ],
)
def test_what_is_no_transport(tmp_path, text, wrong):
    """Told with the file and what is wrong about it, before anything starts."""
    (tmp_path / "pods.py").write_text(OURS)
    with pytest.raises(UsageError, match=wrong):
        load(text, tmp_path)

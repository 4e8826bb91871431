import os
import socket
import sys

import pytest

from launcher.agent.questions import answer


def test_pick_port():
    """A port that can be bound now, below those that the kernel gives to outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    port = answer("pick_port", {"address": "127.0.0.1"})
    assert 10000 <= port < max(12000, first)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_pick_port_of_a_foreign_address():
    """An address that is not this node's has no port; the error names it."""
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        answer("pick_port", {"address": "192.0.2.1", "tries": 3})


def test_source_address():
    """The address on the way to a peer; none to a name that does not exist."""
    assert answer("source_address", {"peer": "127.0.0.1"}) == "127.0.0.1"
    assert answer("source_address", {"peer": "no-such-host.invalid"}) is None


def test_unknown_question():
    """A question of another version is an error that the agent's loop turns into an answer."""
    with pytest.raises(KeyError):
        answer("invented", {})


@pytest.mark.slow
def test_python(tmp_path):
    """The first interpreter that is there, with versions of modules; None for what is missing."""
    ask = {
        "candidates": ["/nowhere/python", sys.executable],
        "workdir": str(tmp_path),
        "modules": ["pytest", "nothing-such"],
    }
    found = answer("python", ask)
    assert found["python"] == sys.executable
    versions = found["versions"]
    assert (versions["pytest"], versions["nothing-such"]) == (pytest.__version__, None)


def test_python_that_cannot_be(tmp_path):
    """No interpreter, and no folder to start in, are told apart."""
    ask = {"candidates": ["/nowhere/python"], "workdir": str(tmp_path), "modules": []}
    assert answer("python", ask) == {"workdir": True, "python": None, "versions": {}}
    assert answer("python", {**ask, "workdir": str(tmp_path / "none")})["workdir"] is False


def test_marks(tmp_path):
    """What one node writes another can read until it is removed, with the folders that were made for it."""
    mark = {"folder": str(tmp_path / "a" / "b"), "name": ".mark"}
    assert answer("read_mark", mark) is None
    made = answer("write_mark", {**mark, "text": "x"})
    assert made == str(tmp_path / "a")
    assert answer("read_mark", mark) == "x"
    assert answer("remove_mark", {**mark, "made": made})
    assert os.listdir(tmp_path) == []

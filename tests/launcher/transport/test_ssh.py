"""What can be shown without an sshd; the rest is in tests/integration/test_testbed.py."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from launcher.errors import ConnectFailed
from launcher.hostfile import Host
from launcher.transport.ssh import SshTransport


@pytest.fixture
def transport(tmp_path):
    """Short limits, and none of the user's own configuration."""
    (tmp_path / "config").write_text("")
    made = SshTransport(config_path=str(tmp_path / "config"), auth_timeout_s=0.3, refused_retry_s=0.3)
    yield made
    made.close()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def at(server: socket.socket) -> Host:
    return Host("127.0.0.1", None, port=server.getsockname()[1])


def test_a_server_that_hangs_up_is_tried_again(transport, listener):
    """Hanging up before a word is what sshd does over MaxStartups: tried again, and named when it stays so."""
    calls = []

    def hang_up():
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            calls.append(time.monotonic())
            peer.close()

    threading.Thread(target=hang_up, daemon=True).start()
    with pytest.raises(ConnectFailed, match=r"closed the connection before any login.*MaxStartups"):
        transport.connect(at(listener))
    assert len(calls) > 1
    listener.shutdown(socket.SHUT_RDWR)


def test_a_server_that_says_nothing_is_given_up(transport, listener):
    """A port that accepts and stays silent costs the time limit, not for ever."""
    with pytest.raises(ConnectFailed, match=r"says nothing for 0.3 s; is that an SSH server"):
        transport.connect(at(listener))


def test_a_closed_port_and_an_unknown_name(transport, listener):
    """Both are told apart, and neither is tried again."""
    listener.close()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1 port \d+ refuses connections"):
            transport.connect(at(unused))
    with pytest.raises(ConnectFailed, match=r"no address for no-such-host\.invalid"):
        transport.connect(Host("no-such-host.invalid", None))


def test_closing_ends_the_waiting(tmp_path, listener):
    """A transport that is closed does not sit out its retries."""
    listener.listen(64)
    (tmp_path / "config").write_text("ProxyCommand false\n")
    transport = SshTransport(config_path=str(tmp_path / "config"), refused_retry_s=60)
    threading.Timer(0.2, transport.close).start()
    started = time.monotonic()
    with pytest.raises(ConnectFailed):
        transport.connect(Host("anywhere", None))
    assert time.monotonic() - started < 10
    transport.close()


def test_config_path_from_the_environment(tmp_path, monkeypatch, listener):
    """DISTPERF_SSH_CONFIG names the configuration when no argument does."""
    (tmp_path / "config").write_text(f"Host here\n  HostName 127.0.0.1\n  Port {at(listener).port}\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(tmp_path / "config"))
    with pytest.raises(ConnectFailed, match=f"port {at(listener).port} says nothing"):
        SshTransport(auth_timeout_s=0.2).connect(Host("here", None))


def test_describe_shows_user_options_and_ours(tmp_path):
    """B13: the command to try by hand holds the user's options beside our defaults; the user's value wins."""
    (tmp_path / "config").write_text("Host slow\n  ConnectTimeout 33\n")
    path = str(tmp_path / "config")
    transport = SshTransport(config_path=path, options={"ConnectTimeout": "3", "LogLevel": "ERROR"})
    command = transport.describe(Host("gpu-a", None, user="train"))
    assert command == (f"ssh -F {path} -l train -o ConnectTimeout=3 -o LogLevel=ERROR -o BatchMode=yes gpu-a")
    assert "ConnectTimeout=33" in SshTransport(config_path=path).describe(Host("slow", None))


def test_paramiko_does_not_write_to_the_terminal():
    """The library's own complaints stay off stderr unless somebody sets up logging."""
    code = "import logging, launcher.transport.ssh; logging.getLogger('paramiko.transport').error('noise')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert logging.getLogger("paramiko").handlers

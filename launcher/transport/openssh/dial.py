"""The first bytes on the way to a host: TCP, or a ProxyCommand of the user's."""

from __future__ import annotations

import os
import socket
import subprocess

from launcher.errors import ConnectFailed, TransportError
from launcher.transport.openssh.config import Target

# A cut link is an error on the socket after 10 s at most, idle or not: well within a run's lease.
TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 4,  # Linux
    "TCP_KEEPALIVE": 4,  # the same on macOS
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,  # Linux only, ms; elsewhere the controller's heartbeats have to do
}


class Refused(ConnectFailed):
    """Closed before the server had said a word, as sshd does over MaxStartups; worth another try."""


def dial(target: Target, limit_s: float) -> socket.socket:
    """TCP to the first address of the host that answers, `limit_s` for each as with ssh."""
    where = f"{target.hostname} port {target.port}"
    try:
        addresses = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConnectFailed(target.name, f"no address for {target.hostname}: {error.strerror}") from None
    failure: TransportError | None = None
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(limit_s)
            sock.connect(address)
            _tune(sock)
        except TimeoutError:
            reason = f"{where} did not answer within {limit_s:g} s"
            failure = ConnectFailed(target.name, f"{reason}; is it up, and does a firewall let this through?")
        except ConnectionRefusedError:
            failure = ConnectFailed(
                target.name, f"{where} refuses connections; does sshd listen on that port?"
            )
        except ConnectionResetError:
            failure = turned_away(target)
        except OSError as error:
            failure = ConnectFailed(target.name, f"cannot connect to {where}: {error.strerror}")
        else:
            return sock
        sock.close()
    assert failure is not None  # getaddrinfo gives an address or raises
    raise failure


def start_proxy(target: Target) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Run ProxyCommand in the user's shell, as ssh does; the socket is its stdin and stdout."""
    assert target.proxy_command is not None
    ours, theirs = socket.socketpair()
    shell = os.environ.get("SHELL") or "/bin/sh"
    with theirs:
        try:
            proxy = subprocess.Popen(
                [shell, "-c", f"exec {target.proxy_command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is for the controller alone
            )
        except OSError as error:
            ours.close()
            raise ConnectFailed(target.name, f"cannot start ProxyCommand: {error}") from None
    return ours, proxy


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def turned_away(target: Target) -> Refused:
    """The error for a server that hangs up first."""
    if target.proxy_command:
        return Refused(target.name, f"ProxyCommand `{target.proxy_command}` ended before any login")
    reason = f"{target.hostname} port {target.port} closed the connection before any login"
    advice = "sshd does so while more logins are under way than its MaxStartups allows; or that is no sshd"
    return Refused(target.name, f"{reason}; {advice}")

"""Agents over SSH: one connection and one session a node. The only file that knows paramiko.

Logging in follows OpenSSH (configuration, order of keys, known_hosts) with three differences: nothing is ever asked
(no password, no passphrase, no yes/no), a changed host key is refused whatever StrictHostKeyChecking says, and
every step has a time limit. `accept-new` and `no` in the user's own configuration are the user's word on unknown
hosts: the key is added to known_hosts, with a warning.
"""

from __future__ import annotations

import logging
import os
import random
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import paramiko
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from launcher.errors import AuthFailed, ConnectFailed, HostKeyRejected, TransportError
from launcher.hostfile import Host
from launcher.transport import bundle
from launcher.transport.openssh import knownhosts
from launcher.transport.openssh.config import SSH_CONFIG_ENV, SshConfig, Target, ssh_command
from launcher.transport.openssh.dial import Refused, dial, start_proxy, turned_away
from launcher.transport.openssh.files import add_known_host, public_part, read_known_hosts
from launcher.transport.openssh.knownhosts import Verdict

STDERR_BYTES = 4096
WRITE_BYTES = 1 << 15  # paramiko's largest packet
ENDED_WAIT_S = 1.0  # exit status and last stderr may come a moment after end of file
FAILURES = (paramiko.SSHException, EOFError, OSError)  # how paramiko tells of a peer's or the network's fault

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # or it writes to the user's terminal


class SshStream:
    """One session: stdin and stdout of the remote command; the end of its stderr is kept for `explain`."""

    shipped: str | None = None

    def __init__(self, link: paramiko.Transport, session: paramiko.Channel) -> None:
        self._link = link
        self._session = session
        self._closed = False
        self._stderr = b""
        # stderr shares its flow control with stdout: were it not read, a chatty one would stop both.
        self._reader = threading.Thread(target=self._keep_stderr, name="ssh stderr", daemon=True)
        self._reader.start()

    def read(self, size: int) -> bytes:
        """See Stream."""
        try:
            return self._session.recv(size)
        except FAILURES:
            return b""

    def write(self, data: bytes) -> None:
        """See Stream. Blocks while the other side does not read; `close` ends that too."""
        while data:
            try:
                sent = self._session.send(data[:WRITE_BYTES])
            except (paramiko.SSHException, EOFError) as error:
                raise BrokenPipeError(f"the connection ended: {error}") from None
            if sent == 0:
                raise BrokenPipeError("the connection ended")
            data = data[sent:]

    def close(self) -> None:
        """See Stream. The connection goes at once: a goodbye could wait for a peer that does not read."""
        self._closed = True
        self._link.close()

    def explain(self) -> str:
        """See Stream."""
        self._session.status_event.wait(ENDED_WAIT_S)
        self._reader.join(ENDED_WAIT_S)
        status = self._session.exit_status
        said = self._stderr.decode("utf-8", "replace").strip()
        if status >= 0:
            what = f"the remote command ended with status {status}"
        elif self._closed:
            what = ""
        elif not self._link.is_active():
            what = "the connection was lost"
        else:  # sshd tells the signal, but paramiko drops that message
            what = "the remote command was killed by a signal" if self._session.closed else ""
        return "; it said:\n".join(filter(None, (what, said)))

    def _keep_stderr(self) -> None:
        try:
            while data := self._session.recv_stderr(STDERR_BYTES):
                self._stderr = (self._stderr + data)[-STDERR_BYTES:]
        except FAILURES:
            pass


class _Shared:
    """A connection to a jump host, made by the first who asks. Who waited while it failed shares the failure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: paramiko.Transport | None = None
        self._failure: tuple[float, TransportError] | None = None

    def get(self, make: Callable[[], paramiko.Transport]) -> paramiko.Transport:
        asked = time.monotonic()
        with self._lock:
            if self._failure is not None and self._failure[0] >= asked:
                raise self._failure[1]
            if self._link is None or not self._link.is_active():
                try:
                    self._link = make()
                except TransportError as error:
                    self._failure = (time.monotonic(), error)
                    raise
            return self._link

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


class SshTransport:
    """Starts agents over SSH; at most `window` logins are under way at once.

    `command` gives the remote command line of a host, which must hold no user data. `config_path` is what
    `ssh -F` takes (default: $DISTPERF_SSH_CONFIG, else ~/.ssh/config), `options` are what `ssh -o` takes and win
    over the file. A server that hangs up before any login (sshd's MaxStartups) is tried again for `refused_retry_s`.
    """

    link_may_return = True

    def __init__(
        self,
        command: Callable[[Host], str] = lambda host: bundle.command(host.python or "python3"),
        *,
        config_path: str | None = None,
        options: Mapping[str, str] | None = None,
        connect_timeout_s: float = 10.0,
        auth_timeout_s: float = 15.0,
        refused_retry_s: float = 15.0,
        window: int = 32,
    ) -> None:
        path = config_path or os.environ.get(SSH_CONFIG_ENV) or None
        self._config = SshConfig(path, tuple((options or {}).items()))
        self._command = command
        self._connect_timeout_s = connect_timeout_s
        self._auth_timeout_s = auth_timeout_s
        self._refused_retry_s = refused_retry_s
        self._window = threading.BoundedSemaphore(window)
        self._lock = threading.Lock()
        self._jumps: dict[tuple[Target, ...], _Shared] = {}
        self._proxies: list[subprocess.Popen[bytes]] = []
        self._closing = threading.Event()

    def connect(self, host: Host) -> SshStream:
        """See Transport. Raises ConnectFailed, AuthFailed or HostKeyRejected."""
        give_up = time.monotonic() + self._refused_retry_s
        pause = 0.1
        while True:
            try:
                with self._window:
                    return self._open(host)
            except Refused:
                delay = pause * random.uniform(0.5, 1.5)
                if time.monotonic() + delay > give_up or self._closing.wait(delay):
                    raise
                pause = min(2 * pause, 2.0)

    def describe(self, host: Host) -> str:
        """The `ssh` command line that logs in the same way, for people to read and try. Contacts nobody."""
        target = self._config.route(host.name, host.user, host.port)[-1]
        defaults = [("BatchMode", "yes"), ("ConnectTimeout", f"{self._limit(target):g}")]
        return shlex.join(ssh_command(self._config, host.name, host.user, host.port, defaults))

    def close(self) -> None:
        """See Transport. Streams behind a jump host end with it."""
        self._closing.set()
        with self._lock:
            for jump in self._jumps.values():
                jump.close()
            for proxy in self._proxies:
                proxy.kill()
                proxy.wait()

    def _open(self, host: Host) -> SshStream:
        link = self._login(self._config.route(host.name, host.user, host.port))
        # paramiko's exec_command has no limit of its own
        watchdog = threading.Timer(self._auth_timeout_s, link.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            session = link.open_session(timeout=self._auth_timeout_s)
            session.exec_command(self._command(host))
        except FAILURES as error:
            link.close()
            raise ConnectFailed(host.name, f"logged in, but no command could be started: {error}") from None
        finally:
            watchdog.cancel()
        return SshStream(link, session)

    def _login(self, route: tuple[Target, ...]) -> paramiko.Transport:
        target = route[-1]
        sock = self._reach(route)
        link = paramiko.Transport(sock)
        try:
            _shake_hands(link, target, self._auth_timeout_s)
            _authenticate(link, target, self._auth_timeout_s)
        except TransportError:
            link.close()
            sock.close()
            raise
        return link

    def _reach(self, route: tuple[Target, ...]) -> socket.socket | paramiko.Channel:
        """A byte stream to the SSH server of the last target."""
        target = route[-1]
        if len(route) == 1:
            if not target.proxy_command:
                return dial(target, self._limit(target))
            sock, proxy = start_proxy(target)
            with self._lock:
                self._proxies.append(proxy)
            return sock
        with self._lock:
            shared = self._jumps.setdefault(route[:-1], _Shared())
        try:
            jump = shared.get(lambda: self._login(route[:-1]))
        except TransportError as error:
            raise type(error)(target.name, f"on the way there, jump host {error}") from None
        address = (target.hostname, target.port)
        try:
            return jump.open_channel("direct-tcpip", address, ("127.0.0.1", 0), timeout=self._limit(target))
        except FAILURES as error:
            where = f"{target.hostname} port {target.port}"
            raise ConnectFailed(
                target.name, f"jump host {route[-2].name} cannot reach {where}: {error}"
            ) from None

    def _limit(self, target: Target) -> float:
        return self._connect_timeout_s if target.connect_timeout_s is None else target.connect_timeout_s


def _shake_hands(link: paramiko.Transport, target: Target, limit_s: float) -> None:
    """Agree on keys, and make sure that the host is the one it claims to be."""
    names = knownhosts.lookup_names(target.hostname, target.port, target.key_name)
    entries = read_known_hosts(target.known_hosts)
    # Ask for a type of key that is on file, as ssh does: any other would make a known host look unknown.
    known = knownhosts.known_types(entries, names)
    options = link.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda algorithm: _key_type(algorithm) not in known)
    link.banner_timeout = link.handshake_timeout = limit_s
    try:
        link.start_client(timeout=2 * limit_s)
        key = link.get_remote_server_key()
    except FAILURES as error:
        if isinstance(error.__context__, TimeoutError):
            silent = f"{target.hostname} port {target.port} says nothing for {limit_s:g} s"
            raise ConnectFailed(target.name, f"{silent}; is that an SSH server?") from None
        if not link.remote_version:
            raise turned_away(target) from None
        raise ConnectFailed(target.name, f"no SSH handshake with {target}: {error or 'it hung up'}") from None
    verdict, entry = knownhosts.judge(entries, names, key.asbytes())
    if verdict is Verdict.UNKNOWN and target.accept_new:
        add_known_host(target, f"{names[0]} {key.get_name()} {key.get_base64()}")
    elif verdict is not Verdict.KNOWN:
        shown = f"{key.get_name()} {knownhosts.fingerprint(key.asbytes())}"
        raise HostKeyRejected(target.name, knownhosts.why_rejected(verdict, entry, names[0], target, shown))


def _key_type(algorithm: str) -> str:
    """Signature algorithm -> type of key as known_hosts names it."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


class _Agent(AgentSSH):
    """The ssh-agent at a socket of our choice (IdentityAgent), with a time limit on every answer."""

    def __init__(self, path: str | None, limit_s: float) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(limit_s)
        try:
            if path:
                self._socket.connect(path)
                self._connect(self._socket)  # type: ignore[attr-defined] # not in the stubs
        except FAILURES:
            self.close()  # no agent, no keys: files may do

    def close(self) -> None:
        self._socket.close()


def _authenticate(link: paramiko.Transport, target: Target, limit_s: float) -> None:
    """Log in with a key; keys are offered in ssh's order. Raises AuthFailed."""
    give_up = time.monotonic() + limit_s
    problems: list[str] = []
    agent = _Agent(target.agent, limit_s)
    try:
        for key in _keys(target, agent.get_keys(), problems):
            link.auth_timeout = max(0.1, give_up - time.monotonic())
            if _offer(link, target.user, key, problems):
                return
            if not link.is_active():
                problems.append(
                    "it hung up; of many keys, name the right one: IdentityFile and IdentitiesOnly"
                )
                break
    finally:
        agent.close()
    advice = f"distperf never asks for a password or passphrase; `ssh-copy-id {target.name}` puts a key there"
    raise AuthFailed(target.name, "; ".join([f"no login as {target}", *dict.fromkeys(problems), advice]))


def _offer(link: paramiko.Transport, user: str, key: paramiko.PKey | None, problems: list[str]) -> bool:
    """Try one key, or none at all (some servers ask for nothing). True when logged in."""
    try:
        further = link.auth_none(user) if key is None else link.auth_publickey(user, key)
    except paramiko.BadAuthenticationType as error:
        problems.append(f"the server takes {', '.join(error.allowed_types)}")
        return False
    except FAILURES as error:
        problems.append(f"key {knownhosts.fingerprint(key.asbytes())}: {error}" if key else str(error))
        return False
    if further:
        problems.append(f"the server wants {', '.join(further)} as well")
    return not further


def _keys(
    target: Target, held: Sequence[paramiko.PKey], problems: list[str]
) -> Iterator[paramiko.PKey | None]:
    """What to offer: the agent's keys that are configured, its others, then files; None where there is no key.

    What stands in the way of a key is added to `problems`.
    """
    files = [path for path in target.keys if os.path.exists(path) or os.path.exists(f"{path}.pub")]
    configured = {part for path in files if (part := public_part(path))}
    in_agent = {key.asbytes() for key in held}
    for key in sorted(held, key=lambda key: key.asbytes() not in configured):
        if key.asbytes() in configured or not target.only_these_keys:
            yield key
    for path in files:
        if public_part(path) in in_agent:
            continue
        try:
            yield paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # TypeError: how cryptography says it
            problems.append(f"{path} has a passphrase and no ssh-agent holds it: run `ssh-add {path}`")
        except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
            problems.append(f"{path} cannot be used: {error}")
    if not files and not held:
        problems.append(
            f"there is no key: none of {', '.join(target.keys)} exists and no ssh-agent holds one"
        )
        yield None

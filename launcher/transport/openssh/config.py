"""Which way leads to a host: ~/.ssh/config as OpenSSH itself reads it.

Where there is an `ssh` program, `ssh -G NAME` is asked once a connection (about 10 ms), so Include, patterns
and Match (also `Match exec`, which runs its command, as for ssh) mean what they mean to ssh, by construction.
Where there is none, Host and Include lines of the same files are read here; Match is refused, not guessed at.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConnectFailed

SSH_CONFIG_ENV = "DISTPERF_SSH_CONFIG"  # another file instead of ~/.ssh/config, as `ssh -F` takes it
MAX_HOPS = 8
MAX_INCLUDE_DEPTH = 16  # as in OpenSSH
ASK_TIMEOUT_S = 20.0  # a `Match exec` command that hangs must not hang us
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

Pairs = Sequence[
    tuple[str, str]
]  # keyword in small letters, value; a keyword's first value counts, as in ssh


@dataclass(frozen=True)
class Target:
    """How to log in to one host, with nothing left to look up."""

    name: str  # as the user wrote it
    hostname: str
    port: int
    user: str
    keys: tuple[str, ...]  # private key files, some of which may not exist
    only_these_keys: bool  # IdentitiesOnly
    agent: str | None  # socket of the ssh-agent
    jumps: tuple[str, ...]  # ProxyJump, first hop first
    proxy_command: str | None  # tokens expanded
    known_hosts: tuple[str, ...]  # files; a new key goes to the first
    key_name: str | None  # HostKeyAlias
    accept_new: bool  # StrictHostKeyChecking is accept-new or no
    connect_timeout_s: float | None
    family: socket.AddressFamily

    def __str__(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}:{self.port}"


@dataclass(frozen=True)
class SshConfig:
    """The user's ssh configuration, and options given on our command line, which win (`ssh -o`)."""

    path: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def route(self, name: str, user: str | None = None, port: int | None = None) -> tuple[Target, ...]:
        """Every host on the way to `name`, which is the last; a user and port given here win.

        As with ssh, options of the command line are for the last host alone. Raises ConnectFailed.
        """
        hops = [self._target(name, user, port, self.options)]
        jumps = hops[0].jumps
        while jumps:
            hop = self._target(*split_jump(jumps[-1]), ())
            jumps = jumps[:-1] or hop.jumps
            hops.insert(0, hop)
            if len(hops) > MAX_HOPS:
                raise ConnectFailed(name, f"more than {MAX_HOPS} jump hosts; does ProxyJump go in circles?")
        return tuple(hops)

    def _target(self, name: str, user: str | None, port: int | None, options: Pairs) -> Target:
        given = [("user", user), ("port", None if port is None else str(port)), *options]
        pairs = [(key, value) for key, value in given if value is not None]
        return make_target(
            name, ask_ssh(name, pairs, self.path) if shutil.which("ssh") else read(name, pairs, self.path)
        )


def ssh_command(
    config: SshConfig, name: str, user: str | None, port: int | None, defaults: Pairs
) -> list[str]:
    """The ssh command line that logs in the same way; options of the user win over our defaults."""
    given = {key.lower() for key, _ in config.options}
    options = [*config.options, *((key, value) for key, value in defaults if key.lower() not in given)]
    command = ["ssh", *(["-F", config.path] if config.path else [])]
    command += ["-l", user] if user else []
    command += ["-p", str(port)] if port else []
    for key, value in options:
        command += ["-o", f"{key}={value}"]
    return [*command, name]


def ask_ssh(name: str, given: Pairs, path: str | None) -> Pairs:
    """What `ssh -G` makes of a name. Raises ConnectFailed with ssh's own words where it refuses."""
    command = ["ssh", "-G", *(["-F", path] if path else []), *(f"-o{key}={value}" for key, value in given)]
    try:
        done = subprocess.run(
            [*command, "--", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except subprocess.TimeoutExpired:
        raise ConnectFailed(
            name, f"`ssh -G {name}` took over {ASK_TIMEOUT_S:.0f} s; does a Match exec hang?"
        ) from None
    if done.returncode != 0:
        raise ConnectFailed(name, f"ssh refuses its configuration: {' '.join(done.stderr.split())}")
    return [(key, value) for key, _, value in (line.partition(" ") for line in done.stdout.splitlines())]


def read(name: str, given: Pairs, path: str | None) -> Pairs:
    """The same without an ssh program, from Host and Include lines of the user's and the system's file.

    Raises ConnectFailed for a file that cannot be read and for a Match line.
    """
    pairs = list(given)
    for file in [path] if path else ["~/.ssh/config", "/etc/ssh/ssh_config"]:
        if path or Path(_in_home(file)).exists():
            pairs += _read_file(Path(_in_home(file)), name, depth=0)
    return pairs


def _read_file(file: Path, name: str, depth: int) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise ConnectFailed(name, f"cannot read the ssh configuration {file}: {error.strerror}") from None
    active = True
    for number, line in enumerate(lines, 1):
        found = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)", line)
        if found is None:
            continue
        key, value = found[1].lower(), found[2]
        if key == "host":
            active = _host_line_matches(shlex.split(value), name)
        elif key == "match":
            if value.lower() != "all":
                reason = f"{file}:{number}: only ssh can evaluate Match, and there is no ssh program here"
                raise ConnectFailed(name, f"{reason}; install openssh-client")
            active = True
        elif key == "include" and active and depth < MAX_INCLUDE_DEPTH:
            for included in _included(value):
                yield from _read_file(included, name, depth + 1)
        elif active:
            yield key, value if key == "proxycommand" else " ".join(shlex.split(value))


def _included(value: str) -> Iterator[Path]:
    for pattern in shlex.split(value):
        where = os.path.join(_in_home("~/.ssh"), _in_home(pattern))  # relative means: in ~/.ssh
        yield from map(Path, sorted(glob.glob(where)))


def _host_line_matches(patterns: Sequence[str], name: str) -> bool:
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    return matches(wanted, name) and not matches(unwanted, name)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a name fits one of ssh's patterns: `*` and `?` are special, and nothing else."""
    regexes = (re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".") for pattern in patterns)
    return any(re.fullmatch(regex, name.lower()) for regex in regexes)


def make_target(name: str, pairs: Pairs) -> Target:
    """Flat configuration -> Target: defaults filled in, tokens expanded."""
    first: dict[str, str] = {}
    for key, value in pairs:
        if value.lower() != "none":
            first.setdefault(key.lower(), value)
        else:
            first.setdefault(key.lower(), "")  # "none" switches a thing off, and wins over later lines
    tokens = _tokens(name, first)
    keys = [value for key, value in pairs if key.lower() == "identityfile"] or DEFAULT_KEYS
    known = first.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    known += first.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()
    seconds = first.get("connecttimeout")
    return Target(
        name=name,
        hostname=tokens["h"],
        port=int(tokens["p"]),
        user=tokens["r"],
        keys=tuple(_path(file, tokens) for file in keys if file.lower() != "none"),
        only_these_keys=first.get("identitiesonly") in ("yes", "true"),
        agent=_agent_socket(first.get("identityagent", "SSH_AUTH_SOCK"), tokens),
        jumps=tuple(filter(None, first.get("proxyjump", "").split(","))),
        proxy_command=_expand(first["proxycommand"], tokens) if first.get("proxycommand") else None,
        known_hosts=tuple(_path(file, tokens) for file in known),
        key_name=first.get("hostkeyalias"),
        accept_new=first.get("stricthostkeychecking") in ("accept-new", "no", "off", "false"),
        connect_timeout_s=float(seconds) if seconds else None,
        family=FAMILIES.get(first.get("addressfamily", "any"), socket.AF_UNSPEC),
    )


def split_jump(text: str) -> tuple[str, str | None, int | None]:
    """`[user@]host[:port]`, `[user@][IPV6]:port` or `ssh://...` -> name, user, port."""
    user, at, host = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    found = re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?", host)
    if found is None:
        return host, user if at else None, None  # a bare IPv6 address
    port = found[2] or found[4]
    return found[1] or found[3], user if at else None, int(port) if port else None


def _tokens(name: str, first: Mapping[str, str]) -> dict[str, str]:
    """What %h and its like stand for; see TOKENS in ssh_config(5)."""
    account = pwd.getpwuid(os.getuid())  # not $HOME, as ssh
    return {
        "%": "%",
        "d": account.pw_dir,
        "h": first.get("hostname", name).replace("%h", name).replace("%%", "%").lower(),
        "i": str(account.pw_uid),
        "k": first.get("hostkeyalias", name),
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
        "n": name,
        "p": first.get("port", "22"),
        "r": first.get("user", account.pw_name),
        "u": account.pw_name,
    }


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _in_home(path: str) -> str:
    return (
        path.replace("~", pwd.getpwuid(os.getuid()).pw_dir, 1)
        if path.startswith("~/")
        else os.path.expanduser(path)
    )


def _path(text: str, tokens: Mapping[str, str]) -> str:
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
    return _in_home(_expand(text, tokens))


def _agent_socket(text: str, tokens: Mapping[str, str]) -> str | None:
    """IdentityAgent: a path, SSH_AUTH_SOCK or $VARIABLE; "" for none."""
    if text == "SSH_AUTH_SOCK" or re.fullmatch(r"\$\w+", text):
        text = os.environ.get(text.removeprefix("$"), "")
    return _path(text, tokens) if text else None

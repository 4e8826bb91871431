"""Is this the host it claims to be? What known_hosts files say about a key. Pure: text in, a verdict out.

Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT: `[@marker] names keytype base64 [comment]`, names plain, with
patterns and negation, or hashed; `[name]:port` for ports other than 22.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from launcher.transport.openssh.config import Target, matches


class Verdict(Enum):
    """What is known about a key that a host has shown."""

    KNOWN = "known"
    UNKNOWN = "unknown"  # nothing is known of the host
    CHANGED = "changed"  # another key is known
    REVOKED = "revoked"  # this very key is marked @revoked
    CERTIFICATE = "certificate"  # the host is known by a @cert-authority only


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str  # "@revoked", "@cert-authority" or ""
    names: str
    key_type: str
    key: bytes

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def parse(text: str, file: str) -> list[Entry]:
    """Entries of one file; lines that are no entries are passed over, as ssh does."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        marker, _, rest = line.strip().partition(" ") if line.lstrip().startswith("@") else ("", "", line)
        fields = rest.split()
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        entries.append(Entry(file, number, marker, fields[0], fields[1], key))
    return entries


def lookup_names(hostname: str, port: int, alias: str | None) -> tuple[str, ...]:
    """Names to look a host up by, in order. As with ssh, a bare name serves other ports too."""
    if alias:
        return (alias,)
    return (hostname,) if port == 22 else (f"[{hostname}]:{port}", hostname)


def about(entries: Iterable[Entry], name: str) -> list[Entry]:
    """The entries that speak of `name`."""
    return [entry for entry in entries if _speaks_of(entry.names, name)]


def judge(entries: Sequence[Entry], names: Sequence[str], key: bytes) -> tuple[Verdict, Entry | None]:
    """Verdict on `key`, and the line it rests on. A revoked key is never good, whatever other lines say."""
    for name in names:
        for entry in about(entries, name):
            if entry.marker == "@revoked" and entry.key == key:
                return Verdict.REVOKED, entry
    for name in names:
        for entry in about(entries, name):
            if not entry.marker and entry.key == key:
                return Verdict.KNOWN, entry
    mine = about(entries, names[0])
    for verdict, marker in ((Verdict.CHANGED, ""), (Verdict.CERTIFICATE, "@cert-authority")):
        for entry in mine:
            if entry.marker == marker:
                return verdict, entry
    return Verdict.UNKNOWN, None


def known_types(entries: Sequence[Entry], names: Sequence[str]) -> list[str]:
    """Key types on file for the host: those to ask it for first, or it may show one that nobody noted."""
    types = [entry.key_type for name in names for entry in about(entries, name) if not entry.marker]
    return list(dict.fromkeys(types))


def fingerprint(key: bytes) -> str:
    """As ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _speaks_of(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    patterns = names.split(",")
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return matches((pattern for pattern in patterns if pattern[:1] != "!"), name) and not matches(
        unwanted, name
    )


def _hash_matches(hashed: str, name: str) -> bool:
    """`|1|salt|hash`: HMAC-SHA1 of the name, keyed with the salt."""
    try:
        salt, wanted = (base64.b64decode(part, validate=True) for part in hashed.split("|")[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.lower().encode(), hashlib.sha1).digest(), wanted)


def why_rejected(verdict: Verdict, entry: Entry | None, name: str, target: Target, shown: str) -> str:
    """What to tell the user of a host whose key is not known, and what to do next.

    `shown`: type and fingerprint of the key that the host has; `name`: what it was looked up by.
    """
    if entry is None:
        scan = f"ssh-keyscan -p {target.port} {target.hostname} >> {(*target.known_hosts, 'FILE')[0]}"
        return (
            f"unknown host key: no known_hosts file has {name}, which shows {shown}. Compare that with the "
            f"host's own key, then run `ssh {target.name}` once, or `{scan}`"
        )
    if verdict is Verdict.REVOKED:
        return f"its host key {shown} is revoked by {entry}"
    if verdict is Verdict.CERTIFICATE:
        return f"{entry} trusts a @cert-authority, which distperf does not support; add the host's own key, {shown}"
    return (
        f"the host key has changed: {entry} has {entry.key_type} {fingerprint(entry.key)}, the host shows "
        f"{shown}. If it was reinstalled, run `ssh-keygen -f {entry.file} -R {shlex.quote(name)}` and then "
        f"`ssh {target.name}`; if it was not, somebody may be listening in"
    )

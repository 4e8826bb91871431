"""What is read from ~/.ssh besides the configuration, and the one thing that is written there."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable
from pathlib import Path

from launcher.transport.openssh.config import Target
from launcher.transport.openssh.knownhosts import Entry, parse

log = logging.getLogger(__name__)


def read_known_hosts(files: Iterable[str]) -> list[Entry]:
    """Entries of all files in order; as with ssh, a file that cannot be read knows no host."""
    entries = []
    for file in files:
        try:
            entries += parse(Path(file).read_text(encoding="utf-8", errors="replace"), file)
        except OSError:
            continue
    return entries


def add_known_host(target: Target, entry: str) -> None:
    """Write down the key of a host that was unknown; only for users whose configuration says accept-new or no."""
    log.warning(
        "%s: new host key accepted, as StrictHostKeyChecking in the ssh configuration says", target.name
    )
    if not target.known_hosts:
        return
    file = Path(target.known_hosts[0])
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{entry}\n")
    except OSError as error:
        log.warning("%s: cannot write its key to %s: %s", target.name, file, error.strerror)


def public_part(key_file: str) -> bytes | None:
    """The public key beside a private key file, by which an agent's key is recognised."""
    path = Path(key_file if key_file.endswith(".pub") else f"{key_file}.pub")
    try:
        return base64.b64decode(path.read_text(encoding="utf-8", errors="replace").split()[1], validate=True)
    except (OSError, IndexError, binascii.Error):
        return None

"""Sends code to one host over its fresh agent: what it lacks, parcel by parcel, then how the folder is made of it."""

from __future__ import annotations

import base64
import secrets
import zlib
from collections.abc import Callable
from typing import Any

from launcher import protocol, words
from launcher.errors import SyncFailed
from launcher.sync.code import Code, CodeFile, Part, parcels

FAST = 1  # zlib's level: a link is rarely slower than a better one

Ask = Callable[[str, dict[str, Any]], protocol.Answer]


class Carrier:
    """Called for every fresh agent, of several hosts at once, also for that of a host which comes back."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self._sent: dict[str, int] = {}  # bytes, by host

    def __call__(self, host: str, ask: Ask) -> str:
        """The folder there. Raises SyncFailed."""
        files = self.code.by_digest()
        missing = self._asked(host, ask, "code_missing", digests=list(files))
        sent, token = 0, secrets.token_hex(8)  # of half-sent files, which hosts may see of each other
        for parcel in parcels([files[digest] for digest in missing]):
            parts = [self._wire(host, files[part.digest], part) for part in parcel]
            self._asked(host, ask, "code_store", parts=parts, token=token)
            sent += sum(part.length for part in parcel)
        self._sent[host] = sent
        listed = [file.wire() for file in self.code.files]
        name = f"{self.code.name}-{zlib.crc32(host.encode()):08x}"  # hosts may share a home
        return str(self._asked(host, ask, "code_lay_out", name=name, files=listed, keep=self.code.keep))

    @property
    def sent_bytes(self) -> int:
        """To all hosts."""
        return sum(self._sent.values())

    def as_json(self) -> dict[str, Any]:
        """What a plan says of it."""
        return {"source": self.code.source, "files": len(self.code.files), "bytes": self.code.size_bytes}

    def told(self, hosts: int) -> str:
        """What went along, and how much of it was new."""
        sent = (
            f"{words.size(self.sent_bytes)} sent to {words.plural(hosts, 'host')}"
            if self.sent_bytes
            else "all there"
        )
        return f"launch.sync: {self.code.text}; {sent}"

    def _asked(self, host: str, ask: Ask, question: str, **args: Any) -> Any:
        answer = ask(question, args)
        if answer.error is not None:
            raise SyncFailed(host, f"launch.sync: {answer.error.removeprefix(question + ': ')}")
        return answer.value

    def _wire(self, host: str, file: CodeFile, part: Part) -> dict[str, Any]:
        try:
            with open(file.origin, "rb") as source:
                source.seek(part.offset)
                data = source.read(part.length)
        except OSError as error:
            raise SyncFailed(host, f"launch.sync: {file.path} is gone here: {error.strerror}") from None
        if len(data) < part.length:
            raise SyncFailed(host, f"launch.sync: {file.path} has become shorter while it was sent")
        packed = base64.b64encode(zlib.compress(data, FAST)).decode("ascii")
        return {"digest": part.digest, "offset": part.offset, "last": part.last, "data": packed}

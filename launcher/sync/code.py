"""Which files go along, whether that is too much, and in which parcels what a node lacks is sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from launcher import words

PARCEL_BYTES = 1 << 20  # of file contents in one message: a heartbeat waits behind no more
NAMED = 5  # files that a refusal names
MIB = 1 << 20


@dataclass(frozen=True)
class CodeFile:
    """A file of the folder, or a symbolic link in it. `path` is relative; a name that is not UTF-8 has escapes.

    `origin`: where its bytes are on this machine.
    """

    path: str
    mode: int
    size: int
    digest: str | None  # sha256 of its bytes; None: a link to `target`
    target: str = ""
    origin: str = ""

    def wire(self) -> list[str | int | None]:
        """As the agent takes it (launcher.agent.stock)."""
        return (
            [self.path, 0, None, self.target] if self.digest is None else [self.path, self.mode, self.digest]
        )


@dataclass(frozen=True)
class Code:
    """What goes along: files of `source`, which is absolute, into a folder `name` of each node."""

    source: str
    files: tuple[CodeFile, ...]
    keep: bool
    name: str

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)

    @property
    def text(self) -> str:
        """In words."""
        return f"{words.plural(len(self.files), 'file')}, {words.size(self.size_bytes)}"

    def by_digest(self) -> dict[str, CodeFile]:
        """One file for each content."""
        return {file.digest: file for file in self.files if file.digest is not None}


@dataclass(frozen=True)
class Part:
    """Bytes of a file, and whether they are its last."""

    digest: str
    offset: int
    length: int
    last: bool


def wanted(paths: Collection[str], exclude: Sequence[str]) -> list[str]:
    """The paths without what matches a pattern, as a whole or by a folder above it; sorted."""
    return sorted(path for path in paths if not any(_matches(path, pattern) for pattern in exclude))


def _matches(path: str, pattern: str) -> bool:
    parts = path.split("/")
    return any(fnmatchcase("/".join(parts[:n]), pattern.rstrip("/")) for n in range(1, len(parts) + 1))


def too_much(sizes: dict[str, int], limit_mib: int, source: str) -> str | None:
    """Why so many bytes do not go along, with the largest files by name; None where they do."""
    total = sum(sizes.values())
    if total <= limit_mib * MIB:
        return None
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:NAMED]
    named = "".join(f"\n  {words.size(sizes[path]):>10}  {path}" for path in largest)
    return (
        f"launch.sync.source {source} holds {words.plural(len(sizes), 'file')} of {words.size(total)}, more than "
        f"launch.sync.limit_mib, {limit_mib}; the largest are{named}\nleave files out with launch.sync.exclude (or "
        ".gitignore), keep data on the nodes, or raise the limit"
    )


def parcels(files: Sequence[CodeFile]) -> Iterator[list[Part]]:
    """The bytes of files in messages of at most PARCEL_BYTES, each file's parts in order."""
    parcel: list[Part] = []
    room = PARCEL_BYTES
    for file in files:
        assert file.digest is not None, "links are sent by name"
        offset = 0
        while True:
            length = min(room, file.size - offset)
            last = offset + length == file.size
            parcel.append(Part(file.digest, offset, length, last))
            offset, room = offset + length, room - length
            if room == 0:
                yield parcel
                parcel, room = [], PARCEL_BYTES
            if last:
                break
    if parcel:
        yield parcel

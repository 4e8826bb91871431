"""Hostfile text -> Hostfile. (grammar to be written here)"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One host of the run, in hostfile order. Its identity is `name`, whole and as written."""

    name: str
    slots: tuple[int, ...] | None  # ids of the slots to use; None: ask the host how many devices it has
    user: str | None = None
    port: int | None = None
    devices: tuple[int, ...] | None = None  # `gpus=`: physical device of each slot id, in order
    python: str | None = None
    workdir: str | None = None
    line: int = 0  # in the hostfile, from 1; 0 where there is no file


@dataclass(frozen=True)
class Hostfile:
    """All hosts of a file, ranges expanded, and what was ignored."""

    path: str
    hosts: tuple[Host, ...]
    warnings: tuple[str, ...] = ()

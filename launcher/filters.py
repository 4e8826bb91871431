"""`--include` and `--exclude`: which hosts and slots of a hostfile take part.

    filter := node { "@" node }                       worker-0@worker-1:0,2@node[01-04]
    node   := names [ ":" slot { "," slot } ]         no slots: all of them
    names  := nodelist | "[" ipv6 "]"

The grammar is DeepSpeed's, with nodelists and IPv6 added. Names that come again add up; the result keeps the
hostfile's order. A name stands for every host with that name, whatever its port or user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import HostfileError, UsageError
from launcher.hostfile import Host, host_names
from launcher.nodeset import fold, fold_numbers

_NODE = re.compile(r"(\[[^\]]*:[^\]]*\]|[^:]*)(?::(.*))?", re.DOTALL)
_SLOTS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")


def apply_filters(hosts: Sequence[Host], include: str | None, exclude: str | None) -> tuple[Host, ...]:
    """Hosts left by one of the filters, each with the slots left; without a filter, all.

    Raises:
        UsageError: both filters are given.
        HostfileError: malformed, naming a host or slot that is not there, or leaving nothing.
    """
    if include is not None and exclude is not None:
        raise UsageError("--include and --exclude exclude each other; give one of them")
    try:
        if include is not None:
            return _include(hosts, _chosen_slots(hosts, include))
        if exclude is not None:
            return _exclude(hosts, _chosen_slots(hosts, exclude))
    except HostfileError as error:
        flag = f"--exclude {exclude!r}" if include is None else f"--include {include!r}"
        raise HostfileError(f"{flag}: {error}") from None
    return tuple(hosts)


def _chosen_slots(hosts: Sequence[Host], text: str) -> dict[str, set[int] | None]:
    """Slots that a filter names on each host; None: all of them."""
    known = {host.name for host in hosts}
    chosen: dict[str, set[int] | None] = {}
    for node in text.split("@"):
        names, slots = _parse_node(node)
        if unknown := [name for name in names if name not in known]:
            raise HostfileError(f"no host {fold(unknown)}; the hosts are {fold(known)}")
        for name in names:
            before = chosen.get(name, set())
            chosen[name] = None if slots is None or before is None else before | slots
    for host in hosts:
        _check_slots(host, chosen.get(host.name))
    return chosen


def _parse_node(text: str) -> tuple[tuple[str, ...], set[int] | None]:
    match = _NODE.fullmatch(text)
    names, slots = match.groups() if match else ("", None)
    if slots is not None and not _SLOTS.fullmatch(slots):
        raise HostfileError(f"{text!r}: slots are written host:0,2 and an IPv6 address [2001:db8::1]:0,2")
    if not names:
        raise HostfileError(f"a host is missing in {text!r}; write host or host:0,2 and join them with '@'")
    return host_names(names), None if slots is None else {int(slot) for slot in slots.split(",")}


def _check_slots(host: Host, slots: set[int] | None) -> None:
    if slots is None or host.slots is None:
        return
    if unknown := slots.difference(host.slots):
        raise HostfileError(
            f"{host.name} has no slot {fold_numbers(unknown)}; it has {fold_numbers(host.slots)}"
        )


def _include(hosts: Sequence[Host], chosen: dict[str, set[int] | None]) -> tuple[Host, ...]:
    return tuple(_with_slots(host, chosen[host.name]) for host in hosts if host.name in chosen)


def _exclude(hosts: Sequence[Host], chosen: dict[str, set[int] | None]) -> tuple[Host, ...]:
    left: list[Host] = []
    for host in hosts:
        excluded = chosen.get(host.name, set())
        if excluded == set():
            left.append(host)
        elif excluded is not None:
            left += _without_slots(host, excluded)
    if not left:
        raise HostfileError("no host is left")
    return tuple(left)


def _without_slots(host: Host, excluded: set[int]) -> list[Host]:
    """`host` with its other slots; nothing when there are none."""
    if host.slots is None:
        raise HostfileError(
            f"how many slots {host.name} has is not known before it is asked; "
            "give it slots= in the hostfile, or exclude it whole"
        )
    kept = set(host.slots) - excluded
    return [_with_slots(host, kept)] if kept else []


def _with_slots(host: Host, slots: set[int] | None) -> Host:
    """`host` with these of its slots only (None: as it is), and their devices."""
    if slots is None:
        return host
    devices = host.devices and tuple(
        device for slot, device in zip(host.slots or (), host.devices, strict=True) if slot in slots
    )
    return replace(host, slots=tuple(sorted(slots)), devices=devices)

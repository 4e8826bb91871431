"""Event files that TensorBoard reads, written without it: TFRecords of protocol buffers with one scalar each.

    record   length (uint64), crc of it (uint32), data, crc of that (uint32); all little-endian, crcs CRC-32C, masked
    Event    1: wall_time (double)  2: step (int64)  3: file_version (string)  5: summary (Summary)
    Summary  1: value (Value, repeated);  Value  1: tag (string)  2: simple_value (float)

Source: tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/event.proto and summary.proto.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from launcher.series import Line

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
NOT_SCALARS = {"step", "attempt"}


class EventFile:
    """One file of a run's curves, appended to. Raises OSError."""

    def __init__(self, folder: Path, began: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(began)}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._newest = (0, 0)  # attempt and step
        self._append(_double(1, began) + _bytes(3, b"brain.Event:2"))

    def write(self, lines: Iterable[Line], now: float) -> None:
        """Add the numbers of these steps, those that are there left out; steps done again replace the others."""
        events = []
        for line in lines:
            at = int(line.get("attempt") or 0), line["step"]
            if at <= self._newest:
                continue
            if line["step"] <= self._newest[1]:
                events.append(restart(line["step"], now))
            self._newest = at
            events.append(event(line, now))
        self._append(*events)

    def _append(self, *events: bytes) -> None:
        with self._path.open("ab") as file:
            file.writelines(map(record, events))


def restart(step: int, now: float) -> bytes:
    """An Event (7: session_log, 1: status, 1: START) that has TensorBoard forget the steps from this one on."""
    return _double(1, now) + _varint(2 << 3) + _varint(step) + _bytes(7, _varint(1 << 3) + _varint(1))


def event(line: Line, now: float) -> bytes:
    """A step's numbers as an Event."""
    values = b"".join(
        _bytes(1, _bytes(1, name.encode()) + _float(2, float(value)))
        for name, value in line.items()
        if name not in NOT_SCALARS and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return _double(1, now) + _varint(2 << 3) + _varint(line["step"]) + _bytes(5, values)


def record(data: bytes) -> bytes:
    """Data with its length and checksums."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack(
        "<f", max(-3.4e38, min(3.4e38, value)) if value == value else value
    )


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C of some hundred bytes a step: a table is fast enough."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)

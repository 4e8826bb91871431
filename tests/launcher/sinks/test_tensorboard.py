import math
import struct

import pytest

from launcher.sinks.tensorboard import EventFile, crc32c, event, record, restart


def fields(data):
    """(field, wire type, value) of a protocol buffer, as its specification has it."""

    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                return value, at

    at, found = 0, []
    while at < len(data):
        key, at = varint(at)
        wire = key & 7
        if wire == 0:
            value, at = varint(at)
        elif wire == 1:
            (value,), at = struct.unpack("<d", data[at : at + 8]), at + 8
        elif wire == 5:
            (value,), at = struct.unpack("<f", data[at : at + 4]), at + 4
        else:
            size, at = varint(at)
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def scalars(data):
    """What an Event says: step, and tag -> value."""
    found = dict(fields(data))
    values = [dict(fields(value)) for _, value in fields(found[5])]
    return found[2], {value[1].decode(): value[2] for value in values}


@pytest.mark.parametrize(("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (b"\0" * 32, 0x8A9136AA)])
def test_crc32c(data, crc):
    """The check values of CRC-32C (RFC 3720, B.4)."""
    assert crc32c(data) == crc


def test_event():
    """Step and numbers; no flags, no text; numbers beyond a float's range stay at its ends."""
    line = {
        "step": 300,
        "attempt": 1,
        "loss": 2.5,
        "lr": 3e-4,
        "flag": True,
        "text": "x",
        "none": None,
        "big": 1e99,
    }
    step, values = scalars(event(line, 7.0))
    assert step == 300
    assert values == {"loss": 2.5, "lr": pytest.approx(3e-4), "big": pytest.approx(3.4e38)}
    assert math.isnan(scalars(event({"step": 1, "loss": math.nan}, 7.0))[1]["loss"])


def test_record():
    """Length, masked checksum of it, data, masked checksum of that."""
    data = record(b"abc")
    assert data[:8] == b"\3" + b"\0" * 7
    assert data[12:15] == b"abc"
    assert len(data) == 8 + 4 + 3 + 4


def test_steps_done_again(tmp_path):
    """What is there is not written twice; a restart has TensorBoard forget what is done again."""
    file = EventFile(tmp_path, 1.0)
    file.write([{"step": n, "attempt": 1, "loss": 1.0} for n in (1, 2, 3)], 2.0)
    file.write([{"step": n, "attempt": 1, "loss": 1.0} for n in (1, 2, 3)], 3.0)
    file.write([{"step": n, "attempt": 2, "loss": 9.0} for n in (2, 3, 4)], 4.0)
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        events.append(data[12 : 12 + size])
        data = data[16 + size :]
    assert [dict(fields(one)).get(2) for one in events[1:]] == [1, 2, 3, 2, 2, 3, 4]
    assert events[4] == restart(2, 4.0)

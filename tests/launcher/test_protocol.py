import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import protocol
from launcher.protocol import BadFrame, FrameReader, LogBytes, decode, encode, encode_log, marker

NONCE = "0123456789abcdef0123456789abcdef"
# Any text the protocol may meet: plain, empty, quotes, newlines, and bytes that are no UTF-8 as surrogate escapes.
texts = st.text(st.characters(exclude_categories=[]), max_size=40) | st.binary(max_size=40).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
numbers = st.integers(0, 2**31)
maps = st.dictionaries(texts, texts, max_size=4)
messages = st.one_of(
    st.builds(protocol.Configure, numbers, texts, texts, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6),
              st.booleans()),
    st.builds(protocol.Ask, numbers, texts, maps),
    st.builds(protocol.Start, numbers, st.lists(maps, max_size=3), st.none() | maps),
    st.builds(protocol.Stop, numbers, st.floats(0, 1e6)),
    st.builds(protocol.TakeStacks, numbers),
    st.builds(protocol.StacksTaken, numbers, st.dictionaries(texts, maps, max_size=3)),
    st.builds(protocol.Ping, numbers),
    st.just(protocol.Bye()),
    st.builds(protocol.Hello, numbers, maps),
    st.builds(protocol.Answer, numbers, st.none() | texts | maps, st.none() | texts),
    st.builds(protocol.Started, numbers, numbers, numbers),
    st.builds(protocol.Exited, numbers, numbers, st.none() | numbers, st.none() | texts, texts, st.none() | texts),
    st.builds(protocol.Record, numbers, numbers, maps),
    st.builds(protocol.Heartbeat, numbers, st.dictionaries(texts, numbers, max_size=3), numbers),
    st.builds(protocol.Relay, texts, texts, numbers, st.dictionaries(texts, numbers, max_size=3)),
    st.builds(protocol.Attach, numbers, numbers, st.dictionaries(texts, numbers, max_size=3)),
    st.builds(protocol.Relayed, st.booleans()),
    st.builds(protocol.Attached, numbers),
    st.builds(protocol.Remark, texts),
    st.builds(protocol.Idle, numbers),
)  # fmt: skip
logs = st.builds(LogBytes, numbers, numbers, st.integers(0, 2**63), st.binary(max_size=200))


def framed(item):
    return encode_log(*item) if isinstance(item, LogBytes) else encode(item)


def cut(data, places):
    """`data` in pieces, cut at `places` (any numbers)."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def read(reader, pieces):
    return [message for piece in pieces for message in reader.feed(piece)]


@given(st.lists(messages | logs, max_size=5), st.lists(numbers, max_size=8))
def test_round_trip_at_any_cut(items, places):
    """What is sent arrives, in order and equal, wherever the stream is cut."""
    stream = b"".join(map(framed, items))
    assert read(FrameReader(), cut(stream, places)) == items


@given(messages)
def test_byte_by_byte(message):
    """A frame that comes byte by byte is the message once its last byte is there, and nothing before."""
    frame, reader = encode(message), FrameReader()
    assert read(reader, [frame[i : i + 1] for i in range(len(frame) - 1)]) == []
    assert read(reader, [frame[-1:]]) == [message]


def test_all_kinds_are_covered():
    """The strategy above builds every message there is."""
    built = {
        cls
        for cls in vars(protocol).values()
        if isinstance(cls, type) and issubclass(cls, tuple) and cls is not LogBytes and cls.__module__ == "launcher.protocol"  # noqa: E501
    }  # fmt: skip
    assert built == set(protocol._CLASSES.values())


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a\nb\r\n\tc",
        "64(x2)",
        "a\"b it's $HOME `x` ; * \\",
        "日本",
        b"\xff\xfe\x80ok".decode("utf-8", "surrogateescape"),
        "x" * 100_000,
    ],
)
def test_values_arrive_as_given(value):
    """Empty, quoted, long and undecodable values are the same text at the other end."""
    message = protocol.Start(1, [{"argv": [value], "env": {"A": value}, "cwd": value}])
    assert read(FrameReader(), [encode(message)]) == [message]


# Shell noise before the marker, parts of the marker included.
noise = st.lists(
    st.binary(max_size=30)
    | st.integers(0, len(marker(NONCE)) - 1).map(lambda n: marker(NONCE)[:n])
    | st.just(marker("f" * 32)),
    max_size=6,
).map(b"".join)


@given(noise, st.lists(messages, max_size=3), st.lists(numbers, max_size=8))
def test_noise_before_the_marker(before, items, places):
    """Whatever a login shell prints, messages count from the marker on, and the noise is kept for error texts."""
    stream = before + marker(NONCE) + b"".join(map(encode, items))
    reader = FrameReader(NONCE)
    assert read(reader, cut(stream, places)) == items
    assert reader.noise == before


@given(noise)
def test_no_marker_no_message(before):
    """Without the marker nothing is a message, however much comes."""
    reader = FrameReader(NONCE)
    assert read(reader, [before, encode(protocol.Ping(0))]) == []
    assert reader.noise == before + encode(protocol.Ping(0))


def test_noise_is_bounded():
    """A peer that prints for ever does not fill the controller's memory."""
    reader = FrameReader(NONCE)
    assert read(reader, [b"x" * 100_000] * 20) == []
    assert len(reader.noise) <= protocol.MAX_NOISE_BYTES + len(marker(NONCE))
    assert len(reader._buffer) < len(marker(NONCE))


@pytest.mark.parametrize(
    "frame",
    [
        (0).to_bytes(4, "big") + b"M",
        (protocol.MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"M",
        b"\xff\xff\xff\xff\xff",
        b"\0\0\0\x02X1",
        b"\0\0\0\x05Lxxxx",
        *(
            (len(text) + 1).to_bytes(4, "big") + b"M" + text
            for text in (
                b"", b"{}", b"1", b"[]", b'["Nobody"]', b'["Bye", 1]', b'["Stop"]', b"[[]]", b"\xff", b"[" * 100_000,
            )
        ),
    ],
)  # fmt: skip
def test_garbage_is_a_bad_frame(frame):
    """Lengths out of bounds, unknown kinds and unreadable content raise BadFrame and nothing else."""
    with pytest.raises(BadFrame):
        read(FrameReader(), [frame])


@given(st.binary(max_size=60), st.integers(0, 255))
def test_decode_raises_only_bad_frame(payload, kind):
    """Any bytes are a message or a BadFrame."""
    try:
        decode(kind, payload)
    except BadFrame:
        pass


def test_frames_before_garbage_are_delivered():
    """What came whole before the stream went wrong is not lost."""
    frames = FrameReader().feed(encode(protocol.Ping()) + b"\0\0\0\0M")
    assert next(frames) == protocol.Ping()
    with pytest.raises(BadFrame):
        next(frames)

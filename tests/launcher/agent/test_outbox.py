import os

import pytest

from launcher import protocol
from launcher.agent.outbox import FRAMES_A_FLUSH, Outbox


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)


def test_messages_before_logs(pipe):
    """A message overtakes log bytes that wait, but never cuts a frame."""
    frames = iter([b"log-1 ", b"log-2 "])
    outbox = Outbox(pipe[1], lambda: next(frames, None))
    outbox.put_frame(b"message ")
    assert outbox.flush()
    os.close(pipe[1])
    assert os.read(pipe[0], 100) == b"message log-1 log-2 "


def test_never_blocks(pipe):
    """A full pipe is come back to; all bytes go out once, in order."""
    sent = b"".join(b"%07d " % n for n in range(100_000))
    outbox, got = Outbox(pipe[1], lambda: None), b""
    outbox.put_frame(sent)
    while not outbox.flush():
        got += os.read(pipe[0], 1 << 16)
    os.close(pipe[1])
    while data := os.read(pipe[0], 1 << 16):
        got += data
    assert got == sent


def test_a_flush_is_bounded(pipe):
    """Endless logs do not keep the agent: after some frames it returns, with more to do."""
    count = 0

    def endless():
        nonlocal count
        count += 1
        return b"x"

    outbox = Outbox(pipe[1], endless)
    assert not outbox.flush()
    assert count == FRAMES_A_FLUSH
    outbox.put_frame(b"message")
    assert not outbox.flush()
    os.close(pipe[1])
    assert os.read(pipe[0], 100)[FRAMES_A_FLUSH:].startswith(b"message")


def test_nobody_reads(pipe):
    """A broken pipe is a lost link: what must not be lost waits for the next one, in order, and only what it lacks."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    outbox = Outbox(write_end, lambda: None)
    outbox.put(protocol.Idle(1))
    assert not outbox.flush()
    assert outbox.detached
    for message in (protocol.Idle(2), protocol.Heartbeat(1, {}, 0), protocol.Idle(3)):
        outbox.put(message)
    outbox.attach(pipe[1], protocol.Attached(5), received=1)
    assert outbox.flush()
    os.close(pipe[1])
    expected = [protocol.Attached(5), protocol.Idle(2), protocol.Idle(3)]
    assert list(protocol.FrameReader().feed(os.read(pipe[0], 1000))) == expected
    os.close(write_end)

import io
import os
import threading

from launcher import writer as module
from launcher.writer import Writer


def test_nobody_reads(monkeypatch):
    """A full pipe stops nobody: what is too much is counted and told of when somebody reads again; order is kept."""
    monkeypatch.setattr(module, "MAX_WAITING", 1000)
    read_end, write_end = os.pipe()
    stream, writer = os.fdopen(write_end, "w"), Writer()
    line = "x" * 99 + "\n"
    for _ in range(5000):  # 500 kB: a pipe takes 64 KiB
        writer.put(stream, line)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(read_end, 1 << 16), b"")))
    reader.start()
    writer.flush()
    writer.put(stream, "last\n")
    writer.close()
    stream.close()
    reader.join()
    os.close(read_end)
    *lines, note, last = b"".join(got).decode().splitlines()
    assert last == "last"
    assert note.startswith("distperf: ")
    assert set(lines) == {line.strip()}
    assert len(lines) + int(note.split()[1].replace(",", "")) == 5000


def test_a_stream_that_refuses_is_left_alone():
    """A reader that has gone does not keep text from the other stream."""

    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    writer, broken, good = Writer(), Broken(), io.StringIO()
    for stream in (broken, good, broken, good):
        writer.put(stream, "x")
    writer.flush()
    assert good.getvalue() == "xx"
    writer.close()

"""How a controller finds its agent again after the link between them broke.

An agent that may outlive its link listens on a socket in its spool folder, which only its user can enter. A controller
that comes back starts a fresh agent as ever and asks it to relay: that one finds the socket and from then on carries
bytes. Where nobody listens any more, the relay hands over what the dead agent left of its ranks' logs.
"""

import glob
import os
import re
import select
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Iterator, Optional

from launcher import protocol
from launcher.agent import processes
from launcher.agent.spool import CHUNK_BYTES

SOCKET = "agent.sock"
LAST_WRITES_S = 5.0  # how long a dead agent's ranks may take to be gone themselves, guardian and all


@contextmanager
def _short_path(folder: str) -> Iterator[str]:
    """A path to the socket that fits a socket address (108 bytes), however long the folder's is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/%d/%s" % (fd, SOCKET)
    finally:
        os.close(fd)


def listen(folder: str) -> socket.socket:
    """The socket that a returning controller's relay connects to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(folder) as path:
        listener.bind(path)
    listener.listen(1)
    listener.setblocking(False)
    return listener


def find(run_id: str) -> Optional[socket.socket]:
    """A connection to the living agent of that run on this node, if there is one."""
    for folder in _folders(run_id):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short_path(folder) as path:
                peer.connect(path)
        except OSError:
            peer.close()
            continue
        return peer
    return None


def _folders(run_id: str) -> Iterator[str]:
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), "distperf-%s-*" % run_id)):
        if os.stat(folder).st_uid == os.getuid():  # /tmp is everybody's: take no one else's word
            yield folder


def carry(in_fd: int, out_fd: int, peer: socket.socket) -> None:
    """Carry bytes both ways until either side ends."""
    other = {in_fd: peer.fileno(), peer.fileno(): out_fd}
    for fd in (in_fd, out_fd, peer.fileno()):
        os.set_blocking(fd, True)
    while True:
        ready, _, _ = select.select(list(other), [], [])
        for fd in ready:
            data = os.read(fd, CHUNK_BYTES)
            if not data:
                return
            view = memoryview(data)
            while view:
                view = view[os.write(other[fd], view) :]


def remains(relay: protocol.Relay) -> Iterator[bytes]:
    """Log frames that a dead agent did not send any more; its folder is removed. Its ranks end with it, by signal."""
    deadline = time.monotonic() + LAST_WRITES_S
    while processes.with_token(relay.token) and time.monotonic() < deadline:
        time.sleep(0.05)
    for folder in _folders(relay.run_id):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.log"))):
            match = re.search(r"attempt-(\d+)-rank-(\d+)\.log$", path)
            if match and int(match.group(1)) == relay.attempt:
                yield from _rest(path, relay.attempt, int(match.group(2)), relay.logs)
        shutil.rmtree(folder, ignore_errors=True)


def _rest(path: str, attempt: int, rank: int, logs: Any) -> Iterator[bytes]:
    with open(path, "rb") as file:
        offset = logs.get(str(rank), 0)
        try:
            offset = os.lseek(
                file.fileno(), offset, os.SEEK_DATA
            )  # past what was let go (launch.log_limit_bytes)
        except OSError:  # there is nothing more
            return
        while True:
            data = file.read(CHUNK_BYTES)
            if not data:
                return
            yield protocol.encode_log(attempt, rank, offset, data)
            offset += len(data)

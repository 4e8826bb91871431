"""What waits to be written to the controller: messages first, log bytes only when nothing else waits."""

import os
from collections import deque
from typing import Callable, Deque, Optional

from launcher import protocol

PIECE_BYTES = 64 << 10
FRAMES_A_FLUSH = 16  # a rank that writes faster than we send must not keep us from everything else


class Outbox:
    """A non-blocking writer. A heartbeat never waits behind more than one chunk of log.

    While the link is gone (`detach`), messages that must not be lost are kept for the next one.
    """

    def __init__(self, fd: int, next_log_frame: Callable[[], Optional[bytes]]) -> None:
        self._fd: Optional[int] = fd
        self._urgent: Deque[bytes] = deque()
        self._current = memoryview(b"")
        self._next_log_frame = next_log_frame
        self.kept = protocol.Kept()
        self.broken = False  # nobody will read us any more
        os.set_blocking(fd, False)

    def put(self, message: protocol.Message) -> None:
        """Queue a message."""
        frame = protocol.encode(message)
        if protocol.counted(message):
            self.kept.add(frame)
        elif self._fd is None:
            return
        self._urgent.append(frame)

    def put_frame(self, frame: bytes) -> None:
        """Queue a frame that need not be kept."""
        self._urgent.append(frame)

    @property
    def detached(self) -> bool:
        """There is no link now."""
        return self._fd is None

    def detach(self) -> None:
        """The link is gone: hold everything."""
        self._fd = None
        self._urgent.clear()
        self._current = memoryview(b"")

    def attach(self, fd: int, first: protocol.Message, received: int) -> None:
        """A new link: say `first`, then what the peer, which has received so many, does not have."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._urgent = deque([protocol.encode(first), *self.kept.missing(received)])

    def flush(self) -> bool:
        """Write what the descriptor takes now, within bounds. Returns True when all is written, logs included."""
        logs = 0
        while not self.broken:
            if self._fd is None:
                return False
            if not self._current:
                if not self._urgent and logs == FRAMES_A_FLUSH:
                    return False
                logs += not self._urgent
                frame = self._urgent.popleft() if self._urgent else self._next_log_frame()
                if frame is None:
                    return True
                self._current = memoryview(frame)
            try:
                written = os.write(self._fd, self._current[:PIECE_BYTES])
            except BlockingIOError:
                return False
            except OSError:
                self.detach()
                return False
            self._current = self._current[written:]
        return True

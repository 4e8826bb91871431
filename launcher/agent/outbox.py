"""What waits to be written to the controller: messages first, log bytes only when nothing else waits."""

import os
from collections import deque
from typing import Callable, Deque, Optional

PIECE_BYTES = 64 << 10
FRAMES_A_FLUSH = 16  # a rank that writes faster than we send must not keep us from everything else


class Outbox:
    """A non-blocking writer. A heartbeat never waits behind more than one chunk of log."""

    def __init__(self, fd: int, next_log_frame: Callable[[], Optional[bytes]]) -> None:
        self._fd = fd
        self._urgent: Deque[bytes] = deque()
        self._current = memoryview(b"")
        self._next_log_frame = next_log_frame
        self.broken = False
        os.set_blocking(fd, False)

    def put(self, frame: bytes) -> None:
        """Queue a message."""
        self._urgent.append(frame)

    def flush(self) -> bool:
        """Write what the descriptor takes now, within bounds. Returns True when all is written, logs included."""
        logs = 0
        while not self.broken:
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
                self.broken = True
                break
            self._current = self._current[written:]
        return True

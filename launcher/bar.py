"""A bar on a terminal's last line, for what takes a while and says nothing else meanwhile. Elsewhere it is silent."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from launcher.summary import progress_bar


class Bar:
    """As a context it takes itself away at the end."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._err = err or sys.stderr
        self._live = self._err.isatty()
        self._plain = (getattr(self._err, "encoding", None) or "ascii").lower() not in ("utf-8", "utf8")
        self._drawn = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()

    def show(self, share: float, text: str = "") -> None:
        """How much is done, and what is being done."""
        if self._live:
            columns = shutil.get_terminal_size().columns
            line = f"{progress_bar(share, plain=self._plain)} {text}"[: columns - 1]
            self._err.write(f"\r\x1b[K{line}")
            self._err.flush()
            self._drawn = True

    def clear(self) -> None:
        """Take it away until it is shown again."""
        if self._drawn:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._drawn = False

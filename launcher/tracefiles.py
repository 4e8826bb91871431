"""Traces that agents hand on, piece by piece, as files of the run's folder: whole under their name, or not at all."""

from __future__ import annotations

import base64

from launcher.protocol import Trace
from launcher.rundir import RunDir


def keep(run: RunDir, piece: Trace) -> None:
    """Add a piece. Raises OSError (a full disk)."""
    path = run.trace(piece.id, piece.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("ab") as file:
        file.write(base64.b64decode(piece.data))
    if piece.last:
        part.replace(path)

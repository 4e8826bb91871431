"""A transport from a file of the user's: `launch.transport: FILE.py:NAME` (docs/transports.md)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from launcher.errors import UsageError
from launcher.transport.base import Transport

NEEDED = ("connect", "describe", "close", "link_may_return")
WRONG = (ImportError, SyntaxError, OSError, NameError, AttributeError, TypeError, ValueError, KeyError)


def load(text: str, folder: Path) -> Transport:
    """What NAME() gives, of the file relative to `folder`. Raises UsageError with what is wrong about it."""
    file, _, name = text.rpartition(":")
    path = folder / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"launch.transport: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made: Transport = getattr(module, name)()
    except WRONG as error:
        raise UsageError(f"launch.transport: {path}: {type(error).__name__}: {error}") from None
    if missing := [need for need in NEEDED if not hasattr(made, need)]:
        raise UsageError(
            f"launch.transport: what {name} in {path} gives has no {', '.join(missing)}: see docs/transports.md"
        )
    return made

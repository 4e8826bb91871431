"""distperf: the training runtime that ranks run, and the few names a user's script may call.

Importing this package does not import torch. `report` and the recipe are usable by tools that have no ML stack.
"""

from typing import TYPE_CHECKING, Any

from distperf.contract import report
from distperf.version import __version__

if TYPE_CHECKING:
    from distperf.takeover import initialize

__all__ = ["__version__", "initialize", "report"]


def __getattr__(name: str) -> Any:
    """`initialize` needs torch, and is imported when it is asked for."""
    if name == "initialize":
        from distperf.takeover import initialize

        return initialize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""distperf: the training runtime that ranks run, and the few names a user's script may call.

Importing this package does not import torch. `report` and the recipe are usable by tools that have no ML stack.
"""

from distperf.contract import report
from distperf.version import __version__

__all__ = ["__version__", "report"]

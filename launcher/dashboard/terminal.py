"""What the terminal can do, and the dashboard shown on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from launcher.rundir import RunDir


def show(run: RunDir, *, ascii: bool) -> str | None:
    """Show the run until the user leaves; returns why it could not be shown, if so."""
    from launcher.dashboard.app import Dashboard  # 0.3 s of imports

    env = os.environ
    app = Dashboard(
        run,
        ascii=ascii or only_ascii(env, sys.stdout.encoding),
        color=not env.get("NO_COLOR") and env.get("TERM") != "dumb",
        dark=not is_light(env),
    )
    return app.run()


def only_ascii(env: Mapping[str, str], encoding: str | None) -> bool:
    """No other signs can be written, or the terminal is known to lack them."""
    return (encoding or "ascii").lower().replace("-", "") != "utf8" or env.get("TERM") in ("linux", "dumb")


def is_light(env: Mapping[str, str]) -> bool:
    """The terminal says that its background is light (COLORFGBG: `0;15`), as some do."""
    background = env.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")

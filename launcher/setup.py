"""launch.setup on the controller's side: what is asked of a node, what came of it, and why it failed. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.logs import printable, printable_lines

LIMIT_S = 300.0  # for all lines together on a node
ANSWER_S = LIMIT_S + 30.0
NOT_FOUND = 127


@dataclass(frozen=True)
class Setup:
    """Shell lines, and the recipe's variables that they find; `secret` are those whose values nothing shows."""

    lines: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: tuple[str, ...] = ()

    def question(self, cwd: str, token: str) -> dict[str, Any]:
        """Arguments of the question `setup` (launcher.agent.setup)."""
        return {
            "token": token,
            "lines": list(self.lines),
            "env": dict(self.env),
            "cwd": cwd,
            "limit_s": LIMIT_S,
        }

    def hidden(self, text: str) -> str:
        """The text without a secret in it."""
        for value in sorted(filter(None, map(self.env.get, self.secret)), key=len, reverse=True):
            text = text.replace(value, "***")
        return text


@dataclass(frozen=True)
class Changes:
    """What the lines did to a node's environment. python: the one they put first on PATH as python3, if they did."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()
    python: str | None = None

    def wire(self) -> dict[str, Any]:
        """As the agent takes it, with a start order or a question about an interpreter."""
        return {"env": dict(self.env), "unset": list(self.unset)}


NO_SETUP = Setup()
UNCHANGED = Changes()


def changes(answer: Mapping[str, Any]) -> Changes:
    """Of lines that went well."""
    return Changes(answer["env"], tuple(answer["unset"]), answer["python"])


def problem(setup: Setup, answer: Mapping[str, Any]) -> str | None:
    """Which line went wrong on a node, how, and what was said last; None when all went well."""
    status, number = answer["status"], answer["line"]
    if answer["env"] is not None and status == 0:
        return None
    if status == "late":
        how = f"was not done after {LIMIT_S:.0f} s"
    elif os.WIFSIGNALED(status):
        how = f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    elif code := os.WEXITSTATUS(status):
        how = f"ended with code {code}"
    else:
        how = "left the shell with code 0, so that its environment is lost"
    line = setup.lines[number - 1] if number else ""
    what = (
        f"launch.setup, line {number} of {len(setup.lines)} (`{printable(line.encode('utf-8', 'replace'))}`)"
    )
    output = printable_lines(setup.hidden(answer["output"])) if answer["output"] else []
    said = (
        "; it printed nothing"
        if not output
        else "; the last output:" + "".join(f"\n    | {o}" for o in output)
    )
    return f"{what} {how}{said}"


def remedy(status: int | str) -> str:
    """What to do about it."""
    if status != "late" and os.WEXITSTATUS(int(status)) == NOT_FOUND:
        return "it is no login shell: what a profile defines (module, conda) is there after `source /etc/profile`"
    return "run that line by hand there: bash --noprofile --norc -c LINE </dev/null"

"""The sections of a recipe that say how ranks are started and watched, and which script they run if it is not ours."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from distperf.recipe.kinds import Kind, flag, free_text, number, or_auto, or_null, refusal, text, whole
from distperf.recipe.sections import Auto, Count, Path, Section

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
LAUNCHER_SETS = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "DISTPERF_")


def variable_name() -> Kind:
    """The name of an environment variable that is the user's to set."""
    wants = "a variable's name: letters, digits and _, no digit first"

    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(NAME_PATTERN, value):
            raise refusal(value, wants)
        if value in LAUNCHER_SETS or value.startswith(LAUNCHER_PREFIXES):
            raise ValueError(f"is {value}, which the launcher sets itself; take it out")
        return str(value)

    return Kind(wants, read, {"type": "string", "pattern": f"^{NAME_PATTERN}$"})


EnvName = Annotated[str, variable_name()]
EnvValue = Annotated[str, free_text()]
ShellLine = Annotated[str, text("a shell line")]


class SyncSection(Section):
    """Code that goes along to nodes which do not see it. Off without source."""

    source: Annotated[str | None, or_null(text("a path"))] = Field(
        default=None,
        description="A folder of this machine, relative to where the launcher was called. Its files (in a git "
        "repository those that it tracks, and others that it does not ignore) are sent over the agents' connections; "
        "ranks and setup run in a copy of them on each node, one a run. What a node has is not sent again.",
    )
    exclude: tuple[Annotated[str, text("a pattern of paths")], ...] = Field(
        default=(), description="Patterns of files and folders in source that stay here; * crosses slashes."
    )
    limit_mib: Count = Field(
        default=100,
        description="Most that goes along, in MiB; more is refused, with the largest files by name.",
    )
    keep: Annotated[bool, flag()] = Field(
        default=False,
        description="Leave the copies where they are when the run ends, with what ranks have written there.",
    )


class LaunchSection(Section):
    """How ranks are started and watched."""

    nproc: Annotated[int | Auto, or_auto(whole(1))] = Field(
        default="auto",
        description="Ranks per node where the hostfile gives no slots. auto: devices found, 1 on a CPU node.",
    )
    max_restarts: Annotated[int, whole(0)] = Field(
        default=3, description="Restarts from the newest checkpoint over the whole run; 0: none."
    )
    spares: Annotated[int, whole(0)] = Field(
        default=0,
        description="Hosts at the end of the hostfile (after filters) that are connected and checked and hold no ranks "
        "until one takes the place of a host that is lost, or that failed first in two attempts in a row or three in "
        "all. A spare has at least the slots of the place that it takes.",
    )
    min_nodes: Annotated[int | Literal["all"], or_auto(whole(1), "all")] = Field(
        default="all",
        description="Nodes that the run goes on with at least, when hosts are lost and no spare is left; the global "
        "batch stays, and ranks take larger shares of it. all: none may be missing. A script sees another WORLD_SIZE.",
    )
    heartbeat_timeout_s: Annotated[float, number(above=0)] = Field(
        default=10.0, description="Seconds of silence after which a node is shown as unreachable."
    )
    lease_s: Annotated[float, number(above=0)] = Field(
        default=25.0,
        description="Seconds without the controller after which a node ends its ranks; above heartbeat_timeout_s. Long "
        "enough for a link to come back, short enough that no rank is left behind for long.",
    )
    stall_timeout_s: Annotated[float | Auto, or_auto(number(least=1))] = Field(
        default="auto",
        description="Seconds without a step after which a run is stalled: the stacks of all ranks are taken, and "
        "it is restarted. auto: ten times the longest of the last 50 steps, at least 30. The start has 600 at least, "
        "until two steps are known; a checkpoint or evaluation 300, or ten times the longest so far; preparing data "
        "has no limit. A script is watched from its first distperf.report on; with a number before that too, from "
        "its start or last output on.",
    )
    grace_s: Annotated[float, number(least=0)] = Field(
        default=30.0,
        description="Seconds between SIGTERM and SIGKILL: what a script gets to save and leave. On Ctrl-C and the like "
        "the bundled runtime finishes its step and writes a checkpoint, which this must suffice for; when another rank "
        "has failed there is nothing to save, and it gets 2 seconds at most.",
    )
    warm_start: Annotated[bool | Auto, or_auto(flag())] = Field(
        default="auto",
        description="Whether one process a node imports torch and forks the ranks. auto: for training and for scripts "
        "that import torch themselves, where a node has two ranks or more; a single rank starts directly and is "
        "forked when it is restarted. true: for any script and a single rank too; false: every rank is exec'ed.",
    )
    log_limit_bytes: Annotated[int | None, or_null(whole(1 << 20))] = Field(
        default=None,
        description="Most bytes kept of each rank's log, in an attempt's folder and on its node; the oldest go first, "
        "half of this at a time, and the newest half is always there. What a node lets go before it was sent is marked "
        "in the log. null: every byte is kept.",
    )
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict,
        description="Environment variables of every rank. Values are text, as they are spelled.",
        json_schema_extra={"additionalProperties": False},
    )
    env_secret: tuple[EnvName, ...] = Field(
        default=(),
        description="Names of variables taken from your environment at launch, and never written anywhere.",
    )
    setup: tuple[ShellLine, ...] = Field(
        default=(),
        description="Shell lines that each node runs in workdir before anything else, like `source env/bin/activate`; "
        "ranks get the environment that they leave. One bash (no login shell) runs all of them, in order, with the "
        "variables of env and env_secret, no input, and 300 seconds; each must end with code 0. They run once at "
        "launch, and again where a host that was lost comes back. What they leave in the background is ended.",
    )
    python: Path = Field(
        default="auto",
        description="Interpreter of the ranks. auto: the python3 that setup has put first on PATH, if it has; else the "
        "path of the one that runs the launcher where a node has it, else python3.",
    )
    transport: Annotated[str | None, or_null(text("FILE.py:NAME", r"[^\0]+\.py:[A-Za-z_]\w*"))] = Field(
        default=None,
        description="A way of your own to reach the hosts of the hostfile, in place of SSH: a function or class in a "
        "file (relative to the recipe's) that is called with nothing; docs/transports.md.",
    )
    sync: SyncSection = Field(
        default_factory=SyncSection, description="Code that goes along to nodes which do not see it."
    )
    workdir: Path = Field(
        default=".",
        description="Folder that ranks run in, on every node; relative to where the launcher was called.",
    )


class ScriptSection(Section):
    """A training script of your own, in place of model, data, train, optimizer, precision, parallel and checkpoint."""

    path: Path = Field(description="The script; relative to launch.workdir.")
    args: tuple[EnvValue, ...] = Field(
        default=(), description="Its arguments. Values are text, as they are spelled."
    )

"""The sections of a recipe that say who else hears of a run, and who may look at it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distperf.recipe.kinds import choice, flag, or_null, text
from distperf.recipe.sections import Section

ADDRESS = r"((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):)?[0-9]{1,5}"


class RunSection(Section):
    """The run's folder."""

    share: Annotated[str, choice("owner", "group")] = Field(
        default="owner",
        description="Who may look at the run's folder. owner: nobody else; group: the members of the folder's group "
        "may watch too (status, logs, report): folders get mode 0750 and files 0640, and where the folder above has "
        "its setgid bit, its group is taken. Ending a run and the like stay with the owner. Values of "
        "launch.env_secret are in no file; the recipe, with launch.env and report.webhook, is. Checkpoints have the "
        "modes that the umask of ranks gives them.",
    )


class WandbSection(Section):
    """Weights & Biases: needs its package where distperf is launched (distperf[wandb])."""

    project: Annotated[str, text("a name")] = Field(description="Project that the run appears in.")
    entity: Annotated[str | None, or_null(text("a name"))] = Field(
        default=None, description="Team or user. Default: that of the API key."
    )
    mode: Annotated[str, choice("online", "offline")] = Field(
        default="online",
        description="offline: into the run's folder wandb/, for `wandb sync`. online takes the API key from "
        "WANDB_API_KEY or `wandb login`, and falls behind, not down, where the network does.",
    )


class MlflowSection(Section):
    """MLflow: needs its package where distperf is launched (distperf[mlflow])."""

    experiment: Annotated[str, text("a name")] = Field(
        default="distperf", description="Experiment that the run appears in; made where there is none."
    )
    uri: Annotated[str | None, or_null(text("a tracking URI"))] = Field(
        default=None,
        description="Where MLflow keeps it: a server's address, or a database. Default: mlflow.db in the run's folder.",
    )


class ReportSection(Section):
    """Who else hears of a run: monitoring, and people. All of it is done by the launcher, on its machine."""

    prometheus: Annotated[str | None, or_null(text("a port, or host:port", ADDRESS))] = Field(
        default=None,
        description="Port at which Prometheus finds the run's metrics under /metrics, while the run goes; on loopback, "
        "unless a host stands before it (`0.0.0.0:9400`: whoever reaches this machine may read). 0: any free port, "
        "told at the start. docs/monitoring/ has a Grafana dashboard and alert rules.",
    )
    tensorboard: Annotated[bool, flag()] = Field(
        default=False,
        description="Write every number of metrics.jsonl into event files in the run's folder tensorboard/, for "
        "`tensorboard --logdir runs`. Needs no package.",
    )
    wandb: WandbSection | None = Field(
        default=None,
        description="Every number of metrics.jsonl to Weights & Biases, by a process of its own.",
    )
    mlflow: MlflowSection | None = Field(
        default=None, description="Every number of metrics.jsonl to MLflow, by a process of its own."
    )
    command: Annotated[str | None, or_null(text("a shell line"))] = Field(
        default=None,
        description="Shell line that is run when the run stalls, an attempt has failed, another one begins, or the run "
        "has ended. It gets a JSON object on its standard input, its event (stalled, failed, restarted, ended) in "
        "DISTPERF_EVENT, a sentence in DISTPERF_MESSAGE, the run in DISTPERF_RUN, and has 60 seconds.",
    )
    webhook: Annotated[str | None, or_null(text("an http:// or https:// URL", r"https?://[^\s]+"))] = Field(
        default=None,
        description="URL that the same JSON objects are posted to. It stands in the run's folder, as all of the "
        "recipe does: what is secret belongs into command.",
    )

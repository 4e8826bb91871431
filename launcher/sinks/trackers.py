"""Weights & Biases and MLflow behind one protocol. Each is imported only where a recipe names it."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from distperf.recipe.reporting import ReportSection
from launcher.errors import UsageError
from launcher.rundir import RunDir
from launcher.series import Line

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # what is imported -> what is installed
NOT_FIGURES = {"step", "attempt"}
MAX_BATCH = 1000  # metrics that MLflow takes at once
MAX_PARAMS = 100
MAX_PARAM_CHARS = 500

Settings = Mapping[str, Any]


class Tracker(Protocol):
    """Where the curves of a run go. Its calls may take as long as a network does."""

    def log(self, lines: list[Line]) -> None:
        """Add steps; one that is done again after a restart comes a second time."""
        ...

    def close(self, exit_code: int) -> None:
        """The run is over."""
        ...


def asked_for(report: ReportSection) -> dict[str, Settings]:
    """Name and settings of each tracker that a recipe names. Raises UsageError where its package is missing here."""
    found = {"wandb": report.wandb, "mlflow": report.mlflow}
    asked: dict[str, Settings] = {
        name: section.model_dump() for name, section in found.items() if section is not None
    }
    for name in asked:
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"report.{name} needs the package {PACKAGES[name]} where distperf is launched, and it is not there. "
                f"Install distperf[{name}], or leave report.{name} out"
            )
    return asked


def numbers_of(line: Line) -> dict[str, float]:
    """What of a line of metrics makes a curve."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in NOT_FIGURES and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class Wandb:
    """A run of Weights & Biases. Steps are a metric of their own there, as its own may never go back."""

    def __init__(self, run: RunDir, spec: Settings, settings: Settings) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            mode=settings["mode"],
            id=run.run_id,
            name=run.run_id,
            dir=str(run.path),
            config=dict(spec),
            resume="allow" if settings["mode"] == "online" else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("train/step")
        self._run.define_metric("*", step_metric="train/step")

    def log(self, lines: list[Line]) -> None:
        """As `Tracker.log`."""
        for line in lines:
            self._run.log({"train/step": line["step"], **numbers_of(line)})

    def close(self, exit_code: int) -> None:
        """As `Tracker.close`."""
        self._run.finish(exit_code=exit_code)


class MLflow:
    """A run of MLflow's, by its client."""

    def __init__(self, run: RunDir, spec: Settings, settings: Settings) -> None:
        mlflow = importlib.import_module("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        uri = settings["uri"] or f"sqlite:///{run.path}/mlflow.db"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        name = settings["experiment"]
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self._id = self._client.create_run(number, run_name=run.run_id).info.run_id
        for key, value in list(flattened(spec))[:MAX_PARAMS]:
            self._client.log_param(self._id, key, value[:MAX_PARAM_CHARS])

    def log(self, lines: list[Line]) -> None:
        """As `Tracker.log`."""
        now = int(time.time() * 1000)
        metrics = [
            self._metric(name, value, now, line["step"])
            for line in lines
            for name, value in numbers_of(line).items()
        ]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self._id, metrics=metrics[first : first + MAX_BATCH])

    def close(self, exit_code: int) -> None:
        """As `Tracker.close`."""
        self._client.set_terminated(self._id, status="FAILED" if exit_code else "FINISHED")


def flattened(spec: Settings, path: str = "") -> Iterator[tuple[str, str]]:
    """{a: {b: 1}} -> ("a.b", "1")."""
    for name, value in spec.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(value)


TRACKERS: dict[str, type[Wandb] | type[MLflow]] = {"wandb": Wandb, "mlflow": MLflow}

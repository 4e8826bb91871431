"""Weights & Biases and MLflow, the real packages, without a network."""

from __future__ import annotations

import socket
import sqlite3
import sys
from contextlib import closing

import pytest

from distperf.recipe.reporting import MlflowSection, ReportSection, WandbSection
from launcher.errors import UsageError
from launcher.journal import read_lines
from launcher.sinks.trackers import asked_for, flattened, numbers_of
from launcher.sinks.tracking import tracked
from scripts.recorded_run import record


def wanting(**sections):
    return ReportSection.model_construct(**{"wandb": None, "mlflow": None, **sections})


def mlflow(uri=None):
    return wanting(mlflow=MlflowSection.model_construct(experiment="ours", uri=uri))


def wandb():
    return wanting(wandb=WandbSection.model_construct(project="ours", entity=None, mode="offline"))


@pytest.fixture
def run(tmp_path):
    """A run that has ended."""
    return record(tmp_path / "r", nodes=1, slots=2, steps=40, alive=False).run


def to_the_end(run, report):
    problems = []
    with tracked(run, report, problems.append, limit_s=110):
        pass
    assert problems == [], run.tracking_log("mlflow" if report.mlflow else "wandb").read_text()


@pytest.mark.slow
def test_wandb_offline(run):
    """Its own file is in the run's folder, for `wandb sync`, with every number of every step."""
    pytest.importorskip("wandb")
    to_the_end(run, wandb())
    [written] = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    data = written.read_bytes()
    assert all(name in data for name in (b"grad_norm", b"tokens_per_s", b"train/step", run.run_id.encode()))


@pytest.mark.slow
def test_mlflow_in_the_runs_folder(run):
    """Every step's loss, as metrics.jsonl has it; the run's name and how it ended."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    to_the_end(run, mlflow())
    with closing(sqlite3.connect(run.path / "mlflow.db")) as kept:
        points = kept.execute("SELECT step, value FROM metrics WHERE key = 'loss' ORDER BY step").fetchall()
        runs = kept.execute("SELECT name, status FROM runs").fetchall()
    assert points == [(line["step"], line["loss"]) for line in read_lines(run.metrics)]
    assert runs == [(run.run_id, "FINISHED")]


@pytest.mark.slow
def test_a_server_that_hangs_hangs_nobody(run):
    """It takes the connection and never answers: the launch ends in time, and says what is missing."""
    pytest.importorskip("mlflow")
    problems = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with tracked(run, mlflow(address), problems.append, limit_s=1.0):
            pass
    assert len(problems) == 1
    assert "mlflow was not done 1 s after the run" in problems[0]


def test_a_package_that_is_missing_is_told_before_anything_starts(monkeypatch):
    """With what to install; without the section nothing is looked for."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        UsageError, match=r"report\.wandb needs the package wandb .* Install distperf\[wandb\]"
    ):
        asked_for(wandb())
    assert asked_for(wanting()) == {}


def test_what_is_handed_on():
    """Numbers of a step; a recipe's keys as paths."""
    assert numbers_of({"step": 3, "attempt": 1, "loss": 2, "mfu": None, "flag": True}) == {"loss": 2.0}
    assert list(flattened({"a": {"b": 1, "c": [2]}, "d": None})) == [
        ("a.b", "1"),
        ("a.c", "[2]"),
        ("d", "None"),
    ]

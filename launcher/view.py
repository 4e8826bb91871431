"""A run as `status` and `ps` show it: what its folder says, and whether its controller still lives."""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import asdict
from typing import Any

from launcher import outofmemory, report, words
from launcher.journal import last_metrics, read_lines, replay
from launcher.lifetime import SAME_S, started_at
from launcher.logs import printable_lines
from launcher.rundir import RunDir
from launcher.series import Series, numbers
from launcher.slurm import queue
from launcher.state import Rank, RunState

SCHEMA = 1
SILENT_S = 60.0  # a controller on another machine renews its journal every second; a network disk may lag


def look(run: RunDir) -> dict[str, Any]:
    """`status --json` of a run. Raises RunFolderError."""
    job = queue.job_of(run)
    if job is not None and not run.events.exists():
        return _waiting(run, queue.look(job[0]))
    state = replay(run)
    alive = state.over or controller_lives(run, state)
    series = Series(run.metrics)
    metrics, step = series.last, max(state.step, int(series.last.get("step") or 0))
    pace = [value for _, value in numbers(tuple(series.recent), "step_s")]
    left = (
        None if not state.steps or not pace or state.over else (state.steps - step) * statistics.median(pace)
    )
    return {
        "schema": SCHEMA,
        "run": state.run_id,
        "dir": str(run.path),
        "state": public_state(state, alive),
        "attempt": state.attempt,
        "step": step,
        "steps": state.steps,
        "seconds_left": left,
        "exit_code": state.exit_code,
        "checkpoint": state.checkpoint,
        "metrics": metrics,
        "notes": list(state.notes),
        "ranks": [_rank(rank) for rank in state.ranks],
        "first_failure": report.failure_json(state.first_failure),
    }


def _waiting(run: RunDir, job: queue.Job) -> dict[str, Any]:
    """The same of a run that has not begun, since its job waits, or never will."""
    state = "queued" if job.waits else "lost" if job.gone else "starting"
    return {
        "schema": SCHEMA, "run": run.run_id, "dir": str(run.path), "state": state, "attempt": 0, "step": 0,
        "steps": None, "seconds_left": None, "exit_code": None, "checkpoint": None, "metrics": {},
        "notes": [job.sentence], "ranks": [], "first_failure": None,
    }  # fmt: skip


def public_state(state: RunState, alive: bool) -> str:
    """The state's name for users: a run without an end whose controller is dead is "lost"."""
    if not alive:
        return "lost"
    if state.state == "stopping":
        return "running" if state.failure is None else "restarting"
    return state.state


def closing_lines(run: RunDir, state: RunState) -> list[str]:
    """The report of a run that has ended."""
    first = next(read_lines(run.metrics), None)
    failure = state.first_failure
    advice = outofmemory.explained(run) if failure is not None and failure.cause == "oom" else []
    return report.report(state, run.path, first, last_metrics(run), advice)


def _rank(rank: Rank) -> dict[str, Any]:
    value = {key: value for key, value in asdict(rank).items() if key not in ("error", "says_done")}
    return {**value, "memory": rank.memory or None}


def controller_lives(run: RunDir, state: RunState) -> bool:
    """True while the process that leads the run exists; on another machine, while it renews its journal."""
    controller = state.controller
    if controller["host"] != socket.gethostname():
        return time.time() - run.events.stat().st_mtime < SILENT_S
    started = started_at(controller["pid"])
    return started is not None and abs(started - controller["created"]) < SAME_S


def as_text(view: dict[str, Any]) -> list[str]:
    """One snapshot for people."""
    metrics = view["metrics"]
    of = f"/{view['steps']}" if view["steps"] else ""
    lines = [
        f"{view['run']}  {view['state']}  attempt {view['attempt']}  step {view['step']}{of}" + _exit(view)
    ]
    parts = []
    if isinstance(metrics.get("loss"), (int, float)):
        parts.append(f"loss {metrics['loss']:.4f}")
    if isinstance(metrics.get("tokens_per_s"), (int, float)):
        parts.append(f"{metrics['tokens_per_s']:,.0f} tokens/s")
    if view["seconds_left"] is not None and view["state"] == "running":
        parts.append(f"{words.seconds(view['seconds_left'])} left")
    if parts:
        lines.append("  " + "   ".join(parts))
    lines += _rank_table(view["ranks"])
    lines += [f"  note: {note}" for note in view["notes"][-3:]]
    failure = view["first_failure"]
    if failure:
        who = (
            f"rank {failure['rank']} on {failure['host']}" if failure["rank"] is not None else failure["host"]
        )
        lines.append(f"  first failure: {who}: {printable_lines(failure['message'])[0]}")
    lines.append(f"  folder {view['dir']}")
    return lines


def _exit(view: dict[str, Any]) -> str:
    return "" if view["exit_code"] is None else f"  exit code {view['exit_code']}"


def _rank_table(ranks: list[dict[str, Any]]) -> list[str]:
    width = max([4, *(len(rank["host"]) for rank in ranks)])
    lines = [f"  {'host':<{width}}  rank  local      pid  state    step     memory"]
    for rank in ranks:
        memory = words.size(sum(rank["memory"].values())) if rank["memory"] else "-"
        lines.append(
            f"  {rank['host']:<{width}}  {rank['rank']:>4}  {rank['local_rank']:>5}  {rank['pid'] or '-':>7}  "
            f"{rank['state']:<7}  {rank['step']:>5}  {memory:>9}"
        )
    return lines

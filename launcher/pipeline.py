"""What `plan` says of a pipeline: who holds which layers, how long ranks wait, and a picture of a step."""

from __future__ import annotations

from typing import Any

from distperf.recipe.runspec import ModelSpec, RunSpec
from distperf.recipe.schedules import rank_of
from distperf.recipe.stages import model_costs, stages
from distperf.recipe.timeline import Pass, Timeline, timeline

WIDTH = 80
MOST_DRAWN = 32  # micro-batches; of more, the picture shows as many, since its middle only repeats itself
LEGEND = (
    "F forward, B backward (in two: I for inputs, W for weights), with micro-batch",
    "lower case: the rank's second stage; . the rank waits",
)


def as_json(spec: RunSpec, with_grid: bool) -> dict[str, Any] | None:
    """Stages, bubble and micro-batches in flight; None without a pipeline. `with_grid` adds every pass of a step."""
    parallel = spec.parallel
    if parallel.pp == 1:
        return None
    step = _step(spec, spec.train.accumulation)
    in_flight = step.in_flight
    value: dict[str, Any] = {
        "schedule": parallel.pp_schedule,
        "micro_batches": spec.train.accumulation,
        "bubble_share": step.bubble_share,
        "dearest_rank": _dearest(spec),
        "stages": [
            {
                "stage": stage.index,
                "pp": rank_of(parallel.pp_schedule, parallel.pp, stage.index),
                "layers": [stage.start, stage.stop],
                "in_flight": in_flight[stage.index],
            }
            for stage in stages(parallel.pp_layers)
        ],
    }
    if with_grid:
        value["grid"] = [[_pass_json(done) for done in row] for row in step.ranks]
    return value


def lines(spec: RunSpec, drawn: bool) -> list[str]:
    """The pipeline for people, in a line or with its picture."""
    parallel, count = spec.parallel, spec.train.accumulation
    if parallel.pp == 1:
        return ["pipeline   none (parallel.pp is 1): there is nothing to draw"] if drawn else []
    step, dearest = _step(spec, count), _dearest(spec)
    text = f"pipeline   {parallel.pp_schedule}, {count} micro-batches, bubble {step.bubble_share:.1%}"
    if dearest is not None:
        text += f"; the dearest rank computes {dearest:.2f} of the mean"
    return [text, *(_picture(spec) if drawn else ())]


def _step(spec: RunSpec, micro_batches: int) -> Timeline:
    return timeline(spec.parallel.pp_schedule, spec.parallel.pp, micro_batches)


def _dearest(spec: RunSpec) -> float | None:
    """Cost of the rank that computes most by that of the mean one; None where costs are not known."""
    if not isinstance(spec.model, ModelSpec):
        return None
    parallel, costs = spec.parallel, model_costs(spec.model, spec.data.seq_len)
    by_rank = [0.0] * parallel.pp
    for stage in stages(parallel.pp_layers):
        by_rank[rank_of(parallel.pp_schedule, parallel.pp, stage.index)] += costs.of(stage)
    return max(by_rank) * parallel.pp / sum(by_rank)


def _pass_json(done: Pass) -> dict[str, Any]:
    action = done.action
    return {
        "kind": action.kind,
        "stage": action.stage,
        "micro": action.micro,
        "start": done.start,
        "stop": done.stop,
    }


def _picture(spec: RunSpec) -> list[str]:
    parallel, count = spec.parallel, spec.train.accumulation
    shown = count if count <= MOST_DRAWN else parallel.pp * max(4, MOST_DRAWN // parallel.pp)
    short = [] if shown == count else [f"drawn with {shown} of the {count} micro-batches"]
    return [*LEGEND, *short, *picture(_step(spec, shown), shown)]


def picture(step: Timeline, micro_batches: int, width: int = WIDTH) -> list[str]:
    """Rank by time, as many slots a line as `width` has room for, the rest below."""
    cell = len(str(micro_batches - 1)) + 2
    ranks = [f"pp {rank}" for rank in range(len(step.ranks))]
    margin = len(ranks[-1]) + 2
    rows = [_row(row, rank, cell, int(step.span)) for rank, row in enumerate(step.ranks)]
    fits = max(1, (width - margin) // cell)
    found: list[str] = []
    for start in range(0, int(step.span), fits):
        stop = min(start + fits, int(step.span))
        if step.span > fits:
            found.append(f"slots {start} to {stop - 1} of {int(step.span)}")
        found += [
            f"{name:{margin}}{row[start * cell : stop * cell]}".rstrip()
            for name, row in zip(ranks, rows, strict=True)
        ]
    return found


def _row(passes: tuple[Pass, ...], rank: int, cell: int, slots: int) -> str:
    """One rank's step, `cell` characters a slot; a pass of two slots is drawn through."""
    cells = [".".ljust(cell)] * slots
    for done in passes:
        action = done.action
        name = f"{action.kind if action.stage == rank else action.kind.lower()}{action.micro}"
        length = int(done.stop - done.start)
        text = name.ljust(length * cell - 1, "=" if length > 1 else " ") + " "
        for index in range(length):
            cells[int(done.start) + index] = text[index * cell : (index + 1) * cell]
    return "".join(cells)

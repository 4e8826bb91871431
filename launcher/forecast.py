"""What `plan` says of memory, time and disk: the planner's numbers, for scripts and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distperf.recipe.planner import node
from distperf.recipe.planner.candidates import Candidate, evaluate, largest_model, parameters_of, ranked
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import Memory, memories
from distperf.recipe.runspec import ModelSpec, RunSpec
from launcher import words
from launcher.errors import PreflightError
from launcher.planning import Planned

SURE = 1.1  # times the room: plans were held to within a tenth of what ranks took
# What "fits" is judged by, and the names of a step's limits.
LIMITS = {
    "compute": "compute",
    "tensor": "communication inside layers (tp, cp)",
    "data": "communication of gradients and weights (dp)",
    "pipeline": "communication between stages (pp)",
    "bubble": "pipeline bubble",
    "update": "memory bandwidth (optimizer)",
    "offload": "transfer between tiers (offload)",
}


@dataclass(frozen=True)
class Forecast:
    """A run's plan of memory and time."""

    spec: RunSpec
    candidate: Candidate
    places: tuple[Memory, ...]  # of a rank at each place of the pipeline
    hardware: Hardware
    host_bytes: int
    disk_bytes: int | None
    drive_bytes: int  # of offload.path, on a node

    @property
    def binding_limit(self) -> str | None:
        """Memory, if it does not fit; else what most of the step's time goes into."""
        if self.candidate.fits is False:
            return "memory"
        return None if self.candidate.time is None else LIMITS[self.candidate.time.limit]

    @property
    def rates_source(self) -> str:
        """Where the rates come from that the step's time is reckoned with."""
        rates = self.hardware.rates
        return f"rates of {self.hardware.source}" if rates is None else f"measured: {rates.source}"


def forecast(planned: Planned) -> Forecast | None:
    """None for a script, and for a model that only its own code knows."""
    spec, hardware, ranks = planned.spec, planned.hardware, planned.ranks_per_host
    found = None if spec is None else evaluate(spec, hardware, ranks)
    if spec is None or found is None:
        return None
    host = node.host_bytes(found.memory, hardware, ranks)
    return Forecast(spec, found, memories(spec, hardware), hardware, host, node.disk_bytes(spec),
                    node.drive_bytes(found.memory, ranks))  # fmt: skip


def as_json(found: Forecast) -> dict[str, Any]:
    """Keys of `plan --json`, over those that are null without a forecast."""
    planned, time = found.candidate.memory, found.candidate.time
    return {
        "per_rank": per_rank(planned),
        "terms": planned.terms(),
        "worst_moment": planned.moment,
        "fits": found.candidate.fits,
        "host_bytes": found.host_bytes,
        "disk_bytes": found.disk_bytes,
        "drive_bytes": found.drive_bytes,
        "step_s": time and time.step_s,
        "step_terms": time and time.terms(),
        "step_source": time and found.rates_source,
        "binding_limit": found.binding_limit,
        "hardware": asdict(found.hardware),
        "stage_bytes": [place.total_bytes for place in found.places],
    }


def per_rank(planned: Memory) -> dict[str, int]:
    """Bytes of the fullest rank."""
    return {
        "parameters_bytes": planned.state.parameters_bytes,
        "gradients_bytes": planned.state.gradients_bytes,
        "optimizer_bytes": planned.state.optimizer_bytes,
        "host_bytes": planned.state.host_bytes,
        "disk_bytes": planned.state.disk_bytes,
        "activations_bytes": planned.activations_bytes,
        "other_bytes": planned.other_bytes,
        "total_bytes": planned.total_bytes,
    }


def lines(found: Forecast) -> list[str]:
    """The plan of memory and time for people."""
    candidate, hardware = found.candidate, found.hardware
    total, room = words.size(candidate.memory.total_bytes), hardware.memory_bytes
    verdict = {True: "fits", False: "does not fit", None: "not known whether it fits"}[candidate.fits]
    there = f" of {words.size(room)} ({hardware.source})" if room else f" ({hardware.source})"
    where = f", pipeline place {candidate.memory.pp}" if len(found.places) > 1 else ""
    text = [f"per rank   {total}{there}: {verdict}{where}"]
    text += [f"           {words.size(abs(size)):>10}  {'-' if size < 0 else ''}{name}"
             for name, size in candidate.memory.terms().items()]  # fmt: skip
    disk = "" if found.disk_bytes is None else f"; checkpoints take up to {words.size(found.disk_bytes)}"
    drives = f", {words.size(found.drive_bytes)} of drives" if found.drive_bytes else ""
    text.append(f"per node   {words.size(found.host_bytes)} of the host's memory{drives}{disk}")
    if candidate.time is not None:
        parts = ", ".join(
            f"{name} {words.seconds(s)}" for name, s in candidate.time.terms().items() if s >= 1e-3
        )
        text.append(
            f"step       about {words.seconds(candidate.time.step_s)}: {parts}; limit: {found.binding_limit}"
        )
        text.append(f"           {found.rates_source}")
    return text


def warning(found: Forecast | None) -> list[str]:
    """What is said before a run that does not fit."""
    if found is None or found.candidate.fits is not False:
        return []
    candidate, room = found.candidate, found.hardware.memory_bytes
    assert room is not None
    return [
        f"the plan of memory is {words.size(candidate.memory.total_bytes)} for the fullest rank, and there are "
        f"{words.size(room)} ({found.hardware.source}): {candidate.reason}; see `distperf plan --candidates 10`"
    ]


def refuse(found: Forecast | None) -> None:
    """Raises PreflightError for a run that cannot fit, by more than the plan may be off."""
    said = warning(found)
    if found is None or not said or found.candidate.memory.total_bytes <= SURE * (found.candidate.room or 0):
        return
    raise PreflightError(f"{said[0]}. If you know better: --no-check")


def candidates(planned: Planned, count: int) -> list[Candidate]:
    """The best other ways to run it on these hosts."""
    assert planned.spec is not None
    return ranked(planned.spec, planned.hardware, planned.ranks_per_host)[:count]


def candidates_json(found: Sequence[Candidate]) -> list[dict[str, Any]]:
    """One object a candidate, the best first."""
    return [
        {
            "parallel": {"zero": c.spec.parallel.zero, **c.spec.parallel.mesh.sizes()},
            "micro_batch": c.spec.train.micro_batch,
            "activation_checkpoint": c.spec.activation_checkpoint,
            "offload": c.spec.offload.optimizer,
            "offload_params": c.spec.offload.params,
            "total_bytes": c.memory.total_bytes,
            "fits": c.fits,
            "step_s": c.time and c.time.step_s,
            "reason": c.reason,
        }
        for c in found
    ]


def candidates_table(found: Sequence[Candidate]) -> list[str]:
    """The candidates for people."""
    rows: list[tuple[str, ...]] = [
        ("", "zero", "tp", "pp", "dp", "micro", "checkpoint", "offload", "memory", "step", "")
    ]
    for number, c in enumerate(found, start=1):
        parallel = c.spec.parallel
        step = "?" if c.time is None else words.seconds(c.time.step_s)
        sizes = (parallel.zero, parallel.tp, parallel.pp, parallel.mesh.data_parallel_size)
        fits = "" if c.fits is not False else "does not fit: "
        tier = c.spec.offload.optimizer + (" + params" if c.spec.offload.params != "none" else "")
        rows.append((f"{number}", *map(str, sizes), str(c.spec.train.micro_batch), c.spec.activation_checkpoint,
                     tier, words.size(c.memory.total_bytes), step, fits + c.reason))  # fmt: skip
    return words.table(rows)


def largest(planned: Planned) -> dict[str, Any] | None:
    """The largest model of the recipe's proportions that fits on these hosts; None where their memory is not known."""
    assert planned.spec is not None
    found = largest_model(planned.spec, planned.hardware, planned.ranks_per_host)
    if found is None:
        return None
    model = found.spec.model
    assert isinstance(model, ModelSpec)
    shape = {key: getattr(model, key) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    return {"parameters": parameters_of(found), "model": shape, **candidates_json([found])[0]}


def largest_line(found: dict[str, Any] | None) -> str:
    """The same for people."""
    if found is None:
        return "largest    not known: the memory of these hosts is not (or not even a small model fits)"
    shape = ", ".join(f"{key} {value:,}" for key, value in found["model"].items())
    axes = ", ".join(f"{key} {value}" for key, value in found["parallel"].items())
    return (
        f"largest    {found['parameters'] / 1e9:,.1f} billion parameters ({shape}), with {axes}, micro_batch "
        f"{found['micro_batch']}, activation_checkpoint {found['activation_checkpoint']}: "
        f"{words.size(found['total_bytes'])} a rank"
    )

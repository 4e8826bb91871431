"""A run in the words of Prometheus: text exposition format 0.0.4. Pure.

Names end in their unit. Figures of the newest step are gauges; what a script reports under names of its own is
distperf_metric with the name as a label.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from launcher.figures import PARTS
from launcher.follow import Seen
from launcher.heat import odd_ranks, values
from launcher.sinks.gauges import Family, Sample, gauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("queued", "starting", "running", "stalled", "restarting", "finished", "failed", "stopped", "lost")
# What metrics.jsonl says of a step -> how Prometheus is told, and what it is.
FIGURES = {
    "loss": ("distperf_loss", "Loss of the newest step."),
    "grad_norm": ("distperf_grad_norm", "Norm of the gradient in the newest step, before clipping."),
    "lr": ("distperf_learning_rate", "Learning rate of the newest step."),
    "loss_scale": ("distperf_loss_scale", "Loss scale of the newest step."),
    "tokens_per_s": ("distperf_tokens_per_second", "Tokens a second in the newest step, over all ranks."),
    "mfu": ("distperf_mfu_ratio", "Share of the devices' peak arithmetic that the model's own took."),
    "step_s": ("distperf_step_seconds", "Seconds that the newest step took."),
    "peak_bytes": ("distperf_peak_memory_bytes", "Most memory that rank 0 held."),
    "tokens_seen": ("distperf_tokens_seen_total", "Tokens trained on so far."),
}
NAN_WHERE_NULL = ("loss", "grad_norm")  # null is how training tells of what is not finite
NOT_FIGURES = {"step", "attempt", "tokens", *(f"{part}_s" for part in PARTS)}


def exposition(seen: Seen) -> str:
    """All that is known of the run now."""
    run = {"run": seen.state.run_id}
    return "".join(
        _family(*family[:3], [({**run, **labels}, value) for labels, value in family[3]])
        for family in families(seen)
    )


def families(seen: Seen) -> list[Family]:
    """The same as data; families of figures that no step has told of yet are left out."""
    state = seen.state
    found: list[Family] = [
        ("distperf_state", "gauge", "1 for the state that the run is in, 0 for the others.",
         [({"state": name}, float(name == seen.name)) for name in STATES]),
        ("distperf_step", "gauge", "Newest step that is finished.", [({}, seen.step)]),
        ("distperf_attempt", "gauge", "Number of the attempt, from 1.", [({}, state.attempt)]),
        ("distperf_failures_total", "counter", "Attempts that failed, by cause.", _failures(seen)),
        ("distperf_run_seconds", "gauge", "Seconds since the run was created.", [({}, seen.now_t)]),
        ("distperf_ranks", "gauge", "Ranks of the attempt, by state.", _ranks(seen)),
        ("distperf_hosts_unreachable", "gauge", "Hosts that do not answer.", [({}, len(state.unreachable))]),
    ]  # fmt: skip
    if state.steps:
        found.append(("distperf_steps", "gauge", "Steps that the run is to make.", [({}, state.steps)]))
    return found + _of_steps(seen) + _of_ranks(seen) + gauges(seen)


def _failures(seen: Seen) -> list[Sample]:
    causes = Counter(failure.cause for failure in seen.chronicle.failures)
    return [({"cause": cause}, float(count)) for cause, count in sorted(causes.items())]


def _ranks(seen: Seen) -> list[Sample]:
    counts = Counter(rank.state for rank in seen.state.ranks)
    return [
        ({"state": name}, float(counts[name])) for name in ("pending", "running", "done", "failed", "stopped")
    ]


def _of_steps(seen: Seen) -> list[Family]:
    null = {key for key in NAN_WHERE_NULL if key in seen.last and seen.last[key] is None}
    last = {**seen.last, **dict.fromkeys(null, math.nan)}
    known: list[Family] = [
        (name, "counter" if name.endswith("_total") else "gauge", text, [({}, float(last[key]))])
        for key, (name, text) in FIGURES.items()
        if _is_number(last.get(key))
    ]
    own: list[Sample] = [
        ({"name": key}, float(value))
        for key, value in last.items()
        if key not in FIGURES and key not in NOT_FIGURES and _is_number(value)
    ]
    return [*known, ("distperf_metric", "gauge", "What the script reports under a name of its own.", own)]


def _of_ranks(seen: Seen) -> list[Family]:
    ranks = seen.state.ranks
    seconds = values(seen, "step time")
    kinds = sorted({kind for rank in ranks for kind in rank.memory})

    def label(number: int) -> dict[str, str]:
        return {"rank": str(number), "host": ranks[number].host}

    held: list[Sample] = [
        ({"kind": kind.removesuffix("_bytes")}, float(max(rank.memory.get(kind, 0) for rank in ranks)))
        for kind in kinds
    ]
    return [
        ("distperf_stragglers", "gauge", "Ranks far slower, or further behind, than the median.",
         [({}, float(len(odd_ranks(seen))))]),
        ("distperf_rank_step", "gauge", "Newest step of each rank that reports steps.",
         [(label(rank.rank), float(rank.step)) for rank in ranks if rank.step]),
        ("distperf_rank_step_seconds", "gauge", "Seconds a step of each rank, over the last minute.",
         [(label(rank), value) for rank, value in sorted(seconds.items())]),
        ("distperf_state_memory_bytes", "gauge", "Most model state that a rank holds, by kind.", held),
    ]  # fmt: skip


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"{name}{_labels(labels)} {_value(value)}\n" for labels, value in samples]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    parts = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(parts) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""The reference page of metrics, made from what writes them: `python -m launcher.sinks.reference > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from distperf.contract import METRICS, PARTS
from launcher import figures
from launcher.chronicle import Chronicle
from launcher.follow import Seen
from launcher.sinks.exposition import FIGURES, families
from launcher.sinks.gauges import DEVICE, NODE
from launcher.state import Policy, RunState
from launcher.tempo import Tempo

INTRODUCTION = """\
# Metrics

Made from what writes them by `python -m launcher.sinks.reference`. [Seeing a run](dashboard.md) tells what shows them.

## metrics.jsonl

A line a step of the attempt whose weights live on, by rank 0; what a restart makes again is moved to
`metrics.superseded.jsonl`. Numbers are unrounded. A script of your own writes what it reports
(`distperf.report(step, loss=..., accuracy=...)`). TensorBoard, Weights & Biases and MLflow get every number of it.
"""

FOLDED = """
## figures.json, figures.jsonl

What ranks and nodes do: the newest of each, and, every ten seconds, a line with all of them folded. There NAME is the
median over ranks, nodes or devices, NAME_least, NAME_most, and NAME_at the one with the most. `own_s` are the seconds
of a step that a rank does not wait for others; `stage_imbalance` says by which share the slowest place of a pipeline
lies above the mean. In figures.json names have no prefix, and nodes tell `memory_total_bytes`, devices `ecc_errors` and
`throttled` (NVML's bits) too.
"""

SHOWN = """
## Prometheus

What `report.prometheus` shows under /metrics; every sample has the label `run`, too. Alert rules and a dashboard for
Grafana are in [monitoring](monitoring/alerts.yml).
"""


def reference() -> str:
    """The page, in Markdown."""
    steps = [*METRICS.items(), *((f"{part}_s", f"Rank 0's seconds of the step: {_lower(text)}")
                                 for part, text in PARTS.items())]  # fmt: skip
    folded = [
        *((f"{part}_s", f"Seconds of a step of a rank: {_lower(text)}") for part, text in PARTS.items()),
        *((f"node_{name}", NODE[name][1]) for name in figures.NODE),
        *((f"device_{name}", DEVICE[name][1]) for name in figures.DEVICE),
    ]
    return "".join(
        (
            INTRODUCTION,
            _table(("key", "meaning"), steps),
            FOLDED,
            _table(("figure", "meaning"), folded),
            SHOWN,
            _table(("metric", "type", "meaning"), _exposed()),
        )
    )


def _exposed() -> list[tuple[str, str, str]]:
    """Every family that there can be, in order."""
    state = RunState("", "", Policy(0, 0, 0, 0, False), (), 1, {})
    of_figures = dict.fromkeys(FIGURES, 0.0)
    found = families(Seen("", "", state, Chronicle(), (), (of_figures,), Tempo(1, ()), 0.0, {}))
    return [(name, kind, text) for name, kind, text, _ in found]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *((f"`{name}`", *rest) for name, *rest in rows)]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


if __name__ == "__main__":
    sys.stdout.write(reference())

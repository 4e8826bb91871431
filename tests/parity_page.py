"""Fills the parity matrix and writes docs/correctness.md: `scripts/correctness`."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch
from parity import LIMITS, STEPS, Curve, Row, difference, noise, plain, rows, run_rows

PAGE = Path(__file__).parent.parent / "docs" / "correctness.md"
HEAD = """\
# Correctness

Made by `scripts/correctness`, which trains every combination below for {steps} steps on real ranks (gloo) and compares
it with a plain loop in one process: no distperf engine, whole batches, autograd, torch's AdamW and clipping.
`tests/distperf/test_build_parity.py` holds every row to its limit.

{count} combinations, torch {torch}, {machine}, {minutes:.0f} minutes.

- **loss**, **norm**: largest relative difference over {steps} steps of loss and gradient norm (before clipping).
- **gradient**: largest relative difference (L2) of one parameter's gradient, over all parameters, at the first step.
- **order**: the largest of the three that one process shows by itself when the samples of its batches come in another
  order. A row's limit is {fp32:g} for fp32 ({half:g} for bf16 and fp16), or three times this where that is larger.

The model has 4 layers, hidden 32, 4 heads on 2 key/value heads; batches of 16 samples of 16 tokens, 4 a micro-batch.
`DOCUMENTS` are texts of 1 to 120 bytes with masked boundaries, so that ranks and micro-batches have unequally many
targets: a mean of micro-batch means, or pipeline gradients scaled by a rank's own tokens, would be wrong there; a norm
that counts what tensor-parallel ranks have whole once for each would be wrong in every row with tp. bf16 and fp16 are
compared with the plain loop in the same precision, with fp32 master weights.

| ranks | combination | loss | norm | gradient | order |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Train, compare, write; what is there so far after each number of ranks."""
    began = time.monotonic()
    lines: list[str] = []
    for world in sorted({row.world for row in rows()}):
        lines += _lines([row for row in rows() if row.world == world])
        head = HEAD.format(
            steps=STEPS,
            count=len(lines),
            torch=torch.__version__,
            machine=f"{platform.machine()}, {platform.system()}",
            minutes=(time.monotonic() - began) / 60,
            fp32=LIMITS["fp32"],
            half=LIMITS["bf16"],
        )
        PAGE.write_text(head + "\n".join(lines) + "\n")


def _lines(chosen: list[Row]) -> list[str]:
    return [_line(row, curve) for row, curve in zip(chosen, run_rows(chosen), strict=True)]


def _line(row: Row, curve: Curve) -> str:
    found, order = difference(curve, plain(row.plain_sets)), noise(row.plain_sets)
    numbers = (found.loss, found.norm, found.gradient, order.largest)
    combination = row.name.partition(": ")[2]
    return f"| {row.world} | `{combination}` | {' | '.join(f'{number:.1e}' for number in numbers)} |"


if __name__ == "__main__":
    main()

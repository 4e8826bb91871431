"""Every combination of the parity matrix trains as a plain loop in one process does."""

from __future__ import annotations

from functools import cache

import pytest
from parity import LIMITS, Curve, Row, difference, noise, plain, rows, run_rows

ROWS = rows()
BY_WORLD = {world: [row for row in ROWS if row.world == world] for world in sorted({r.world for r in ROWS})}


@cache
def curves(world: int) -> dict[Row, Curve]:
    """All rows of a world size, trained by one start of ranks."""
    return dict(zip(BY_WORLD[world], run_rows(BY_WORLD[world]), strict=True))


def cases():
    for row in ROWS:
        marks = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group(f"parity-{row.world}")]
        yield pytest.param(row, id=row.name, marks=marks)


@pytest.mark.parametrize("row", list(cases()))
def test_row(row):
    """Losses, norms and every parameter's gradient differ by less than the limit, or than thrice what order does."""
    found = difference(curves(row.world)[row], plain(row.plain_sets))
    assert found.largest <= max(LIMITS[row.precision], 3 * noise(row.plain_sets).largest), found


def test_the_matrix_is_large_enough():
    """At least 60 combinations, with every schedule, stage and axis among them."""
    assert len(set(ROWS)) == len(ROWS) >= 60
    text = " ".join(row.name for row in ROWS)
    for part in (
        "zbv",
        "dualpipev",
        "zero_bubble",
        "interleaved_1f1b",
        "cp_method=ring",
        "tp=4",
        "dp_replicate",
    ):
        assert part in text

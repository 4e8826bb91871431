"""Plans of small runs against real ranks, byte by byte: every kind of engine, mesh, schedule and checkpointing."""

from __future__ import annotations

from functools import cache

import pytest
from planned_memory import HERE, Counted, counted

ZERO = "parallel.zero={}"
BF16 = "precision=bf16"
ONE = "train.micro_batch=1"
STATE = ("offload.optimizer=nvme", f"offload.path={HERE}")
ALL = (*STATE, "offload.params=nvme")
ROWS = {
    1: [
        (ZERO.format(2),),
        (ZERO.format(2), BF16, "train.micro_batch=2"),
        (ZERO.format(2), BF16, *STATE),
        (ZERO.format(3), ONE, *ALL),
        (ZERO.format(3), BF16, *ALL),
    ],
    2: [
        (ZERO.format(0),),
        (ZERO.format(1), BF16),
        (ZERO.format(2), BF16, "train.micro_batch=2"),
        (ZERO.format(2), BF16, "activation_checkpoint=full"),
        (ZERO.format(3),),
        (ZERO.format(3), BF16, "activation_checkpoint=selective"),
        (ZERO.format(3), BF16, ONE),
        (ZERO.format(3), ONE, *STATE),
        (ZERO.format(3), BF16, ONE, *ALL),
        (ZERO.format(3), "train.micro_batch=2", *ALL),
        (ZERO.format(2), "parallel.tp=2"),
        (ZERO.format(2), "parallel.tp=2", BF16, "activation_checkpoint=selective"),
        (ZERO.format(2), "parallel.cp=2"),
        (ZERO.format(2), "parallel.cp=2", "parallel.cp_method=ring", BF16),
        (ZERO.format(1), "parallel.pp=2", ONE),
        (ZERO.format(1), "parallel.pp=2", ONE, BF16, "parallel.pp_schedule=gpipe"),
        (ZERO.format(1), "parallel.pp=2", ONE, "parallel.pp_schedule=zbv"),
        (ZERO.format(1), "parallel.pp=2", ONE, BF16, "parallel.pp_schedule=interleaved_1f1b"),
    ],
}


@cache
def results(world: int) -> list[list[Counted]]:
    return counted(world, ROWS[world])


def cases():
    for world, rows in ROWS.items():
        marks = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group(f"planned-{world}")]
        for at, row in enumerate(rows):
            yield pytest.param(world, at, id=f"{world} ranks: {', '.join(row)}", marks=marks)


@pytest.mark.parametrize(("world", "at"), list(cases()))
def test_the_plan_is_what_a_rank_needs(world: int, at: int) -> None:
    """Within 10 percent of the counted peak, and never more than 5 under it."""
    for rank in results(world)[at]:
        assert 0.95 <= rank.ratio <= 1.1, (rank.ratio, rank.planned.moment, rank.planned.terms())

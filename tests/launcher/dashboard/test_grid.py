from dataclasses import replace

import pytest

from launcher.chronicle import Chronicle
from launcher.dashboard.grid import Choice, grid, move
from launcher.dashboard.lines import Look, width
from launcher.follow import Seen
from launcher.heat import Scale, values
from launcher.state import Policy, Rank, RunState
from launcher.tempo import Tempo


def seen(nodes, slots, slow=(), step_s=1.0):
    """A run in which all ranks go at the same pace but the slow ones, that take twice as long."""
    ranks = tuple(
        Rank(
            r,
            r % slots,
            f"node{r // slots:04d}",
            r // slots,
            pid=1,
            state="running",
            step=20 - 10 * (r in slow),
        )
        for r in range(nodes * slots)
    )
    state = RunState("r", "r", Policy(1, 10, 25, 30, False), ranks, 90, {}, state="running", attempt=1)
    looks = tuple((t * step_s, {r.rank: (t // 2 if r.rank in slow else t) for r in ranks}) for t in (10, 20))
    return Seen("/runs/r", "running", state, Chronicle(), (), (), Tempo(1, looks), 20.0, {})


def text(lines):
    return "\n".join("".join(span.text for span in spans) for spans in lines)


@pytest.mark.parametrize(("nodes", "slots"), [(1, 1), (1, 200), (3, 8), (128, 8), (1000, 8), (1024, 1)])
@pytest.mark.parametrize("size", [(80, 24), (160, 50), (200, 24)])
def test_every_rank_or_node_has_a_cell(nodes, slots, size):
    """Whatever the shape of the run, each rank (or, folded, each node) is there once, within the columns."""
    look = Look(*size)
    for folded in (False, True):
        lines = grid(seen(nodes, slots), look, Choice(nodes=folded))
        cells = [span.target for spans in lines for span in spans if len(span.text) == 1 and span.target]
        assert len(cells) == len(set(cells)) == (nodes if folded else nodes * slots)
        assert all(width(spans) <= look.width for spans in lines)


def test_a_thousand_ranks_on_the_smallest_screen():
    """1,024 ranks are seen one by one at 80x24; 8,000 are folded to nodes."""
    assert "ranks, by host" in text(grid(seen(128, 8), Look(80, 21), Choice()))
    assert "nodes:" in text(grid(seen(1000, 8), Look(80, 21), Choice()))


def test_stragglers_stand_out():
    """A slow rank is named above the grid, and its cell is the hottest; folded, that of its node."""
    for folded in (False, True):
        lines = grid(seen(128, 8, slow={517}), Look(80, 21), Choice(nodes=folded, cursor=0))
        assert "straggler: rank 517 on node0064" in text(lines[:5])
        hot = [span.target for spans in lines for span in spans if span.tone == "heat-7" and span.target]
        assert hot == ["rank 517"]


def test_a_failed_rank_is_no_heat():
    """What has failed is shown as that, in a sign of its own."""
    run = seen(2, 2)
    ranks = (replace(run.state.ranks[0], state="failed"), *run.state.ranks[1:])
    lines = grid(
        replace(run, state=replace(run.state, ranks=ranks)), Look(80, 21, ascii=True), Choice(cursor=3)
    )
    assert ("X", "bad") in {
        (span.text, span.tone) for spans in lines for span in spans if span.target == "rank 0"
    }
    assert "1 failed" in text(lines)


def test_arrows():
    """Arrows go along the grid as it is drawn, and stop at its edges."""
    lines = grid(seen(128, 8), Look(80, 21), Choice())
    assert move(lines, 0, 1, 0) == 1
    assert move(lines, 0, -1, 0) == 0
    assert move(lines, 3, 0, 1) == 67
    assert move(lines, 67, 0, -1) == 3
    assert move(lines, 1023, 1, 0) == 1023


def test_values():
    """Step time from steps over time; behind by steps; a rank of which nothing is known has no value."""
    run = seen(1, 3, slow={1})
    assert values(run, "step time") == {0: 1.0, 1: 2.0, 2: 1.0}
    assert values(run, "behind") == {0: 0.0, 1: 10.0, 2: 0.0}
    assert values(run, "memory") == {}


def test_scale():
    """Everything equal is cool; beyond the ends stays at the ends."""
    assert [Scale(1.0, 2.0).level(v) for v in (0.0, 1.0, 1.5, 2.0, 9.0)] == [0, 0, 4, 7, 7]
    assert Scale(1.0, 1.0).level(1.0) == 0

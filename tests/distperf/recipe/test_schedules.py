"""The order of passes is the one that torch carries out; bubbles and memory follow from it."""

from __future__ import annotations

import logging
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.recipe.schedules import SCHEDULES, Action, allows, order, stage_count, stages_of
from distperf.recipe.timeline import SLOTS, timeline

TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
SIZES = [(2, 1), (2, 4), (2, 8), (3, 3), (3, 7), (4, 4), (4, 6), (4, 8), (4, 10), (4, 16), (5, 12), (8, 16)]


class ScriptedStage(SimpleNamespace):
    """What torch's schedules ask of a stage, with nothing to compute or send: it notes what it is told to do."""

    def __init__(self, index: int, count: int, rank: int, pp: int, done: list[Action]) -> None:
        super().__init__(stage_index=index, num_stages=count, group_rank=rank, group_size=pp, submod=None)
        self.is_first, self.is_last = index == 0, index == count - 1
        self.args_recv_info, self.act_send_info, self.device = {0: ()}, {}, "cpu"
        self.done = done

    def forward_one_chunk(self, micro, args, kwargs, save_forward_output):
        self.done.append(Action("F", self.stage_index, micro))

    def backward_one_chunk(self, micro, loss, last_backward, full_backward=True):
        self.done.append(Action("B" if full_backward else "I", self.stage_index, micro))

    def backward_weight_one_chunk(self, micro, last_backward):
        self.done.append(Action("W", self.stage_index, micro))

    def nothing(self, *args, **kwargs):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = nothing
    set_local_fwd_input = set_local_bwd_input = get_local_bwd_output = perform_reduce_grad = nothing
    _get_init_p2p_neighbors_ops = _prepare_forward_infra = _prepare_backward_infra = nothing


def torch_order(schedule: str, pp: int, micro_batches: int, rank: int) -> list[Action]:
    """What torch's own schedule does on a rank."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    done: list[Action] = []
    count = stage_count(schedule, pp)
    held = [ScriptedStage(i, count, rank, pp, done) for i in stages_of(schedule, pp, rank)]
    kind = get_schedule_class(TORCH_NAMES[schedule])
    single = issubclass(kind, PipelineScheduleSingle)
    made = kind(held[0] if single else held, micro_batches, loss_fn=lambda output, target: None)
    made._step_microbatches(target_mbs=[None] * micro_batches)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_are_those_that_torch_carries_out(schedule):
    """Rank by rank, pass by pass, for sizes with one round, with several and with odd ones."""
    compared = [(pp, count) for pp, count in SIZES if allows(schedule, pp, count)]
    assert len(compared) >= 6
    for pp, count in compared:
        for rank in range(pp):
            assert list(order(schedule, pp, count, rank)) == torch_order(schedule, pp, count, rank), (
                pp,
                count,
            )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_refused_is_what_torch_refuses(schedule):
    """No number of micro-batches that torch could run is refused, and none it could not is let through."""
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    for pp in (2, 3, 4):
        for count in range(1, 3 * pp + 4):
            try:
                torch_order(schedule, pp, count, 0)
            except ValueError:
                assert not allows(schedule, pp, count), (pp, count)
            else:
                assert allows(schedule, pp, count), (pp, count)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 6), st.integers(1, 30))
def test_every_pass_happens_once_and_nothing_hangs(schedule, pp, count):
    """A forward for each stage and micro-batch, and a backward: whole, or in its two parts."""
    if not allows(schedule, pp, count):
        return
    rows = timeline(schedule, pp, count).ranks
    kinds = Counter()
    for action in (done.action for row in rows for done in row):
        kinds[action.stage, action.micro] += {"F": 100, "B": 11, "I": 10, "W": 1}[action.kind]
    expected = {(stage, micro) for stage in range(stage_count(schedule, pp)) for micro in range(count)}
    assert dict(kinds) == dict.fromkeys(expected, 111)


@pytest.mark.parametrize(("pp", "count"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_bubbles_are_those_of_the_formulas(pp, count):
    """(P - 1) / (M + P - 1) with one stage a rank; with v stages a rank, M counts v times."""
    for schedule in ("gpipe", "1f1b"):
        assert timeline(schedule, pp, count).bubble_share == pytest.approx((pp - 1) / (count + pp - 1))
    interleaved = timeline("interleaved_1f1b", pp, count).bubble_share
    assert interleaved == pytest.approx((pp - 1) / (2 * count + pp - 1))
    for schedule in ("zero_bubble", "zbv", "dualpipev"):
        assert timeline(schedule, pp, count).bubble_share < interleaved / 2


def test_1f1b_holds_as_many_micro_batches_as_stages_follow():
    """Activations are bounded by the pipeline's length, whatever the number of micro-batches; gpipe holds all."""
    assert timeline("1f1b", 4, 64).in_flight == {0: 4, 1: 3, 2: 2, 3: 1}
    assert timeline("gpipe", 4, 64).in_flight == dict.fromkeys(range(4), 64)


def test_a_dear_stage_makes_the_others_wait():
    """With one stage twice as dear, the other rank idles half of the time, and more."""
    busy = sum(SLOTS[kind] for kind in "FB") * 8
    slow = timeline("1f1b", 2, 8, stage_costs=(1, 2))
    assert slow.span == 2 * busy + SLOTS["F"] + SLOTS["B"]

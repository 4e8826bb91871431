import json

import pytest

from launcher import figures
from launcher.figures import Figures, from_json
from launcher.state import Rank


def parts(forward=0.2, communication=0.1, **more):
    return {
        "steps": 5,
        "data": 0.01,
        "forward": forward,
        "backward": 2 * forward,
        "communication": communication,
        **more,
    }


def ranks(count, stages=1):
    return tuple(Rank(n, n % 8, f"node{n // 8}", n // 8, {"pp": n * stages // count}) for n in range(count))


def test_there_and_back():
    """As JSON, and nothing of what another version or a person made of the file."""
    found = Figures(2, {0: parts()}, {"a": {"cpu": 0.5}})
    assert from_json(json.loads(json.dumps(figures.as_json(found)))) == found
    for odd in (
        {},
        [],
        None,
        {"attempt": 1, "ranks": {"x": 1}, "nodes": {}},
        {"attempt": 1, "ranks": 3, "nodes": {}},
    ):
        assert from_json(odd) == Figures()


def test_a_slow_rank_is_named_and_not_those_that_wait_for_it():
    """All steps take equally long; only its own time is longer."""
    told = {n: parts(0.2, 0.5) for n in range(16)} | {5: parts(0.35, 0.05)}
    [one] = figures.stragglers(Figures(1, told), ranks(16))
    assert one.rank == 5
    assert one.score > 4


def test_stages_of_a_pipeline_are_not_each_others_stragglers():
    """A longer stage is an imbalance of the cut, not a slow rank."""
    told = {n: parts(0.2 if n < 8 else 0.3) for n in range(16)}
    found = Figures(1, told)
    assert figures.stragglers(found, ranks(16, stages=2)) == []
    assert figures.stages_s(found, ranks(16, stages=2)) == {0: pytest.approx(0.6), 1: pytest.approx(0.9)}
    assert figures.imbalance(found, ranks(16, stages=2)) == pytest.approx(0.2)
    assert figures.imbalance(found, ranks(16)) is None


def test_folded():
    """Median, least, most and where the most is; of ranks, nodes and devices alike."""
    nodes = {"a": {"cpu": 0.2, "devices": [{"busy": 0.9}, {"busy": 0.1}]}, "b": {"cpu": 0.6}}
    found = figures.folded(Figures(1, {0: parts(0.1), 1: parts(0.4), 2: parts(0.2)}, nodes), ranks(3))
    assert [found[f"forward_s{of}"] for of in ("", "_least", "_most", "_at")] == [0.2, 0.1, 0.4, 1]
    assert found["own_s_most"] == pytest.approx(0.4 * 3 + 0.01)
    assert (found["node_cpu_most"], found["node_cpu_at"]) == (0.6, "b")
    assert (found["device_busy"], found["device_busy_at"]) == (0.5, "a 0")
    assert figures.folded(Figures(), ()) == {}


def test_waiting_for_data():
    """The worst rank's share of its step."""
    found = Figures(1, {0: parts(), 1: parts(data=0.7)})
    share, rank = figures.data_wait(found)
    assert (share, rank) == (pytest.approx(0.5), 1)
    assert figures.data_wait(Figures()) is None


def test_ailing_devices():
    """Heat, power brake and hardware; not what a busy or an idle device does, nor corrected errors."""
    rows = [{"throttled": 0x44}, {"throttled": 0x5, "ecc_errors": 0}, {"ecc_errors": 3}]
    found = list(figures.ailing(Figures(1, {}, {"a": {"devices": rows}})))
    assert found == ["device a 0 is slowed down by heat", "device a 2 has 3 uncorrected memory errors"]


def test_a_ranks_device_is_told_where_it_is_known():
    """By local rank where a node has as many devices as ranks; not where it has others."""
    found = Figures(1, {}, {"node0": {"devices": [{"busy": n / 10} for n in range(4)]}})
    assert found.device_of(ranks(4)[2], 4) == {"busy": 0.2}
    assert found.device_of(ranks(4)[2], 2) == {}
    assert found.device_of(ranks(16)[9], 8) == {}

from dataclasses import replace

import pytest

from launcher import heat
from launcher.figures import Figures
from launcher.follow import Follower
from scripts.recorded_run import SLOW, record


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "r"
    return Follower(record(folder, nodes=65, slots=8, steps=40, alive=True).run).seen()


def test_the_slow_rank_is_odd_once_and_first(seen):
    """By its own time, though it is slow and behind as well."""
    first = heat.odd_ranks(seen)[0]
    assert first.rank == SLOW
    assert "of its own" in first.why
    assert [one.rank for one in heat.odd_ranks(seen)].count(SLOW) == 1


def test_metrics_that_nothing_is_known_of_are_passed_over(seen):
    """The first four are always there, the others where nodes tell of them."""
    shown = ["step time"]
    while (following := heat.next_metric(seen, shown[-1])) != shown[0]:
        shown.append(following)
    assert tuple(shown) == heat.METRICS
    assert heat.next_metric(replace(seen, figures=Figures()), "memory") == "step time"


def test_heat_of_devices_is_absolute(seen):
    """Equal devices that are all hot are hot, where equal step times are cool."""
    degrees = heat.values(seen, "device heat")
    assert len(degrees) == len(seen.state.ranks)
    assert heat.scale("device heat", dict.fromkeys(range(4), 94.0)).level(94.0) == heat.HEATS - 1
    assert heat.scale("step time", dict.fromkeys(range(4), 94.0)).level(94.0) == 0

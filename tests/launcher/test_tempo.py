from launcher.events import Progressed
from launcher.tempo import WINDOW, Tempo, behind, by_rank, newest, stragglers, told


def test_step_time_over_a_window():
    """Seconds a step from the oldest to the newest look; nothing of a rank with one look, or of another attempt."""
    tempo = Tempo()
    for n in range(30):
        tempo = told(tempo, [Progressed(n * 5.0, 1, {"0-1": n + 1, **({"2": n} if n == 29 else {})})])
    assert len(tempo.looks) == WINDOW
    assert tempo.step_s(0) == 5.0
    assert tempo.step_s(2) is None
    assert told(tempo, [Progressed(1.0, 2, {"0": 1})]).looks == ((1.0, {0: 1}),)


def test_newest_of_each():
    """Several events come to what the newest says of each rank."""
    events = [Progressed(1.0, 1, {"0-3": 1}), Progressed(2.0, 1, {"1": 5}), Progressed(3.0, 1, {"2-3": 4})]
    assert newest(events, 4) == {"0": 1, "1": 5, "2": 4, "3": 4}
    assert by_rank(events[2]) == {2: 4, 3: 4}


def test_stragglers():
    """Those far above the median, worst first; small differences and equal ranks are none; nor are a few hidden."""
    values = {rank: 1.0 + rank % 5 * 0.001 for rank in range(100)}
    assert stragglers(values, "s") == []
    found = stragglers({**values, 7: 1.4, 9: 3.0, 11: 1.01}, "s")
    assert [one.rank for one in found] == [9, 7]
    assert stragglers({0: 1.0, 1: 9.0}, "s") == []


def test_behind():
    """Steps behind the furthest; a rank that reports none is not judged."""
    assert behind([10, 8, 0]) == [0, 2, 0]

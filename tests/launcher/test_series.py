import itertools
import json

from launcher.journal import Metrics
from launcher.rundir import RunDir
from launcher.series import MAX_POINTS, WHOLE_BYTES, Series, numbers


def lines(first, last):
    return b"".join(
        json.dumps({"step": n, "loss": 1.0 / n, "pad": "x" * 80}).encode() + b"\n"
        for n in range(first, last + 1)
    )


def test_follows_and_thins(tmp_path):
    """Each new line once; a half-written one when it is whole; the points stay few and evenly far apart."""
    path = tmp_path / "metrics.jsonl"
    series = Series(path)
    assert series.last == {}
    path.write_bytes(lines(1, 10) + b'{"step": 11')
    assert [line["step"] for line in series.new()] == list(range(1, 11))
    with path.open("ab") as file:
        file.write(b', "loss": 2}\n[1]\nnot json\n' + lines(12, 3000))
    assert len(series.new()) == 2990
    steps = [point["step"] for point in series.points]
    assert len(steps) <= MAX_POINTS
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1
    assert series.last["step"] == 3000
    assert series.new() == []


def test_a_long_file_is_not_read_whole(tmp_path):
    """Points from all over a long file, the newest lines exact, in order and each once."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines(1, 40_000))
    assert path.stat().st_size > 4 * WHOLE_BYTES
    series = Series(path)
    steps = [step for step, _ in numbers(series.points, "loss")]
    assert steps == sorted(set(steps))
    assert steps[0] <= 2
    assert max(b - a for a, b in itertools.pairwise(steps)) < 1000
    assert [line["step"] for line in series.recent] == list(range(39_981, 40_001))


def test_a_restart_replaces_the_file(tmp_path):
    """After a restart the curve is that of the steps that count."""
    run = RunDir(tmp_path)
    pen = Metrics(run)
    for step in (1, 2, 3, 4):
        pen.write({"step": step, "loss": 1.0})
    series = Series(run.metrics)
    pen.write({"step": 3, "loss": 7.0})
    pen.close()
    series.new()
    assert [(point["step"], point["loss"]) for point in series.points] == [(1, 1.0), (2, 1.0), (3, 7.0)]

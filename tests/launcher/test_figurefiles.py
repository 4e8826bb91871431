import json
from dataclasses import replace

from launcher import events, supervise
from launcher.figurefiles import FigureFiles
from launcher.follow import Follower
from launcher.protocol import Figures
from launcher.rundir import RunDir
from scripts.recorded_run import record

RANKS = [{"rank": n, "local_rank": n, "host": "a", "node_rank": 0, "coordinates": {}} for n in range(2)]
POLICY = {"max_restarts": 2, "heartbeat_timeout_s": 2.0, "lease_s": 4.0, "grace_s": 3.0, "script": False}
STATE = supervise.created(events.RunCreated(0.0, "r", "r", 9, RANKS, POLICY, {}, "0"))


def told(attempt, rank, forward):
    return Figures(attempt, {str(rank): {"steps": 1, "forward": forward}}, {"cpu": 0.5})


def test_newest_and_history(tmp_path):
    """The newest of each rank every five seconds, a folded line every ten; an attempt begins anew."""
    run = RunDir(tmp_path)
    files = FigureFiles(run)
    for second in range(1, 31):
        files.take("a", told(1, second % 2, float(second)))
        files.keep(replace(STATE, t=float(second)))
    newest = json.loads(run.figures.read_bytes())
    assert newest["ranks"] == {"0": {"steps": 1, "forward": 30.0}, "1": {"steps": 1, "forward": 29.0}}
    lines = [json.loads(line) for line in run.usage.read_text().splitlines()]
    assert [line["t"] for line in lines] == [10, 20, 30]
    assert (lines[2]["forward_s_most"], lines[2]["forward_s_at"]) == (30.0, 0)
    files.take("a", told(2, 0, 1.0))
    files.take("a", told(1, 1, 99.0))
    files.keep(replace(STATE, t=30.5), last=True)
    assert json.loads(run.figures.read_bytes())["ranks"] == {"0": {"steps": 1, "forward": 1.0}}


def test_readers_see_those_of_the_present_attempt(tmp_path):
    """An attempt that has told nothing yet has none, whatever the file still says."""
    recorder = record(tmp_path / "r", nodes=2, slots=4, steps=40, alive=True)
    assert Follower(recorder.run).seen().figures.ranks.keys() == set(range(8))
    recorder.fail(2, 3)
    recorder.begin(3, 0)
    recorder.flush()
    assert Follower(recorder.run).seen().figures.ranks == {}

import pytest

from launcher.follow import Follower
from launcher.rundir import RunDir
from launcher.sinks.messages import KINDS, messages
from scripts.recorded_run import record


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    run = record(tmp_path_factory.mktemp("runs") / "r", nodes=1, slots=2, steps=20, alive=False).run
    return run.events.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("looks", [1, 3, 1000])
def test_each_event_is_told_once(lines, tmp_path, looks):
    """However often a run is looked at, the same is told, in order: nothing twice, nothing missed."""
    run = RunDir(tmp_path)
    told, before = [], None
    ends = sorted({max(1, len(lines) * n // looks) for n in range(1, looks + 1)})
    run.events.write_bytes(b"".join(lines[: ends[0]]))
    follower = Follower(run)
    for start, end in zip([ends[0], *ends], [ends[0], *ends[1:], ends[-1]], strict=False):
        with run.events.open("ab") as file:
            file.writelines(lines[start:end])
        follower.news()
        now = follower.seen()
        told += messages(before, now)
        before = now
    assert [message.event for message in told] == ["failed", "restarted", "ended"]
    assert {message.event for message in told} <= set(KINDS)
    failed, restarted, ended = (message.as_json() for message in told)
    assert (failed["attempt"], failed["failure"]["rank"], failed["step"]) == (1, 1, 10)
    assert failed["message"].startswith("rank 1 on node001: RuntimeError: CUDA error")
    assert restarted["attempt"] == 2
    assert (ended["state"], ended["exit_code"], ended["step"]) == ("finished", 0, 20)

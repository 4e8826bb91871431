import pytest

from launcher import events
from launcher.errors import HostfileError, UsageError
from launcher.journal import Journal
from launcher.logfiles import LogFiles
from launcher.readlogs import Choice, read
from launcher.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    """A run that has ended: two ranks on two hosts, two attempts."""
    run = RunDir(tmp_path)
    ranks = [
        {"rank": r, "local_rank": 0, "host": h, "node_rank": r, "coordinates": {}}
        for r, h in enumerate(("a", "bb:22"))
    ]
    policy = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": True}
    pen = Journal(run.events)
    pen.write(
        events.RunCreated(0.0, "r", "r", None, ranks, policy, {"host": "c", "pid": 1, "created": 0.0}, "0")
    )
    for attempt in (1, 2):
        pen.write(events.AttemptBegan(0.1, attempt))
        files = LogFiles(run, attempt, 2)
        for rank in (0, 1):
            files.write(rank, 0, b"attempt %d\nrank %d \xff\nend" % (attempt, rank))
    pen.write(events.Ended(1.0, "finished", 0))
    pen.close()
    return run


def shown(run, *choice, raw=False, follow=False):
    return b"".join(read(run, Choice.of(*choice), follow, raw))


def test_all_of_the_newest_attempt(run):
    """Rank by rank, prefixed in columns, a last line without an end too."""
    assert shown(run, None, None, None, None).decode().splitlines() == [
        "a     0 | attempt 2", "a     0 | rank 0 \ufffd", "a     0 | end",
        "bb:22 1 | attempt 2", "bb:22 1 | rank 1 \ufffd", "bb:22 1 | end",
    ]  # fmt: skip


@pytest.mark.parametrize("choice", [("1", None), (None, "bb"), ("0-1", "bb")])
def test_choosing(run, choice):
    """By rank set, by host, whatever its port, and by both."""
    lines = shown(run, *choice, None, None).decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("bb:22 1 | ") for line in lines)


def test_raw_is_every_byte(run):
    """--raw gives what was written, and no more."""
    assert shown(run, "0", None, None, 1, raw=True) == b"attempt 1\nrank 0 \xff\nend"


def test_grep_and_following_an_ended_run(run):
    """--grep chooses lines; -f on a run that has ended shows it and stops."""
    assert shown(run, None, None, "^rank 1", None, follow=True).decode() == "bb:22 1 | rank 1 \ufffd\n"


@pytest.mark.parametrize(
    ("choice", "error"),
    [(("9", None, None, None), UsageError), ((None, "c", None, None), UsageError), ((None, None, "(", None), UsageError),  # noqa: E501
     ((None, None, None, 7), UsageError), (("x", None, None, None), HostfileError)],
)  # fmt: skip
def test_what_is_not_there(run, choice, error):
    """A rank, host, attempt or pattern that cannot be is refused, not an empty answer."""
    with pytest.raises(error):
        shown(run, *choice)


def test_each_attempt_has_the_hosts_that_it_had(run):
    """Before a spare took over the rank was on another host."""
    text = run.events.read_text().splitlines(keepends=True)
    ranks = [{"rank": r, "local_rank": r, "host": "c", "node_rank": 0, "coordinates": {}} for r in (0, 1)]
    pen = Journal(run.events)
    run.events.write_text("".join(text[:2]))
    pen.write(events.Placed(0.1, ["c", ""], ranks))
    pen.close()
    with run.events.open("a") as file:
        file.writelines(text[2:])
    assert shown(run, "1", None, None, 1).decode().splitlines()[0] == "bb:22 1 | attempt 1"
    assert shown(run, "1", None, None, None).decode().splitlines()[0] == "c 1 | attempt 2"

from launcher.dashboard.logfeed import FAR_BEHIND, KEPT_LINES, LogFeed
from launcher.rundir import RunDir


def test_follows_many_logs(tmp_path):
    """The last lines of each, then what comes; unchanged files are not read again."""
    run = RunDir(tmp_path)
    run.logs(1).mkdir(parents=True)
    for rank in range(3):
        run.log(1, rank).write_bytes(b"".join(b"%d old %d\n" % (rank, n) for n in range(5000)))
    feed = LogFeed(run, 1, range(3), lines=30)
    assert feed.look()
    assert [line.text for line in feed.lines if line.rank == 2] == [f"2 old {n}" for n in range(4990, 5000)]
    assert not feed.look()
    with run.log(1, 1).open("ab") as file:
        file.write(b"new\xff \x1b[2Jline\nhalf")
    assert feed.look()
    assert (feed.lines[-1].rank, feed.lines[-1].text) == (1, "new\N{REPLACEMENT CHARACTER} line")


def test_hostile_files(tmp_path):
    """A line of megabytes, random bytes, a log that is replaced: lines stay short and few, and nothing is raised."""
    run = RunDir(tmp_path)
    run.logs(1).mkdir(parents=True)
    run.log(1, 0).write_bytes(b"x" * (1 << 20))
    feed = LogFeed(run, 1, [0])
    feed.look()
    with run.log(1, 0).open("ab") as file:
        file.write(bytes(range(256)) * ((FAR_BEHIND >> 8) + 1) + b"\nlast\n" * (KEPT_LINES * 2))
    feed.look()
    assert len(feed.lines) <= KEPT_LINES
    assert feed.lines[-1].text == "last"
    assert max(len(line.text) for line in feed.lines) < 5000


def test_no_logs_yet(tmp_path):
    """Before the first rank has started there is nothing, and no error."""
    assert not LogFeed(RunDir(tmp_path), 1, range(4)).look()

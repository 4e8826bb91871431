from launcher import events
from launcher.journal import Journal, Story, replay
from launcher.rundir import RunDir

CREATED = events.RunCreated(
    0.0, "run", "run", 9, [{"rank": 0, "local_rank": 0, "host": "a", "node_rank": 0, "coordinates": {}}],
    {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": False},
    {"host": "c", "pid": 1, "created": 0.0, "socket": None}, "0",
)  # fmt: skip
LATER = [
    events.AttemptBegan(0.1, 1), events.PortPicked(0.2, 1, "x", 1), events.RankStarted(0.3, 1, 0, 7),
    events.Noted(0.4, "a note"), events.Ended(9.0, "finished", 0),
]  # fmt: skip


def test_news_come_once_and_whole(tmp_path):
    """Cut anywhere, the journal's rest is told when it is there; the state is the one that a replay gives."""
    run = RunDir(tmp_path)
    journal = Journal(run.events)
    for event in (CREATED, *LATER):
        journal.write(event)
    journal.close()
    whole = run.events.read_bytes()
    begin = whole.index(b"\n") + 1
    for cut in range(begin, len(whole), 7):
        run.events.write_bytes(whole[:cut])
        story = Story(run)
        early = [line for line in whole[:cut].splitlines(keepends=True) if line.endswith(b"\n")]
        run.events.write_bytes(whole)
        assert list(story.news()) == [CREATED, *LATER][len(early) :]
        assert list(story.news()) == []
        assert story.state == replay(run)


def test_the_state_moves_with_the_news(tmp_path):
    """Whoever is told an event finds the state right after it."""
    run = RunDir(tmp_path)
    journal = Journal(run.events)
    journal.write(CREATED)
    story = Story(run)
    for event in LATER:
        journal.write(event)
    journal.close()
    states = [story.state.state for _event in story.news()]
    assert states == ["starting", "starting", "running", "running", "finished"]

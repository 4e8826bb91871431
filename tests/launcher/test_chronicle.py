import dataclasses

from launcher import chronicle, events, supervise
from launcher.chronicle import SAID_KEPT, Chronicle

POLICY = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": False}


def created(ranks=2):
    planned = [
        {"rank": r, "local_rank": r, "host": "a", "node_rank": 0, "coordinates": {}} for r in range(ranks)
    ]
    return events.RunCreated(
        0.0, "run", "run", 9, planned, POLICY, {"host": "c", "pid": 1, "created": 0.0}, "0"
    )


def told(*happened):
    state, story = None, Chronicle()
    for number, event in enumerate(happened):
        before = state
        state = supervise.created(event) if before is None else supervise.observe(before, event)[0]
        story = chronicle.after(story, 1000.0 + number, before, event, state)
    return story


FAILED = (
    created(), events.AttemptBegan(0.1, 1), events.PortPicked(0.2, 1, "x", 1), events.RankStarted(0.3, 1, 0, 7),
    events.RankStarted(0.3, 1, 1, 8), events.RankReported(5.0, 1, 0, {"kind": "phase", "phase": "train"}),
    events.Progressed(6.0, 1, {"0-1": 4}), events.RankReported(7.0, 1, 0, {"kind": "phase", "phase": "checkpoint"}),
    events.RankReported(9.0, 1, 0, {"kind": "event", "event": "checkpoint", "step": 4, "path": "/c/4"}),
    events.RankReported(9.5, 1, 0, {"kind": "phase", "phase": "train"}),
    events.RankExited(12.0, 1, 1, None, "SIGKILL", "", None), events.Restarting(13.0, 1.0, "restart 1 of 1"),
    events.AttemptBegan(14.0, 2), events.Ended(20.0, "finished", 0),
)  # fmt: skip


def test_attempts():
    """Each attempt with its times, how far it came, and why it failed."""
    first, second = told(*FAILED).tries
    assert (first.began_t, first.stepped_t, first.failed_t, first.ended_t) == (0.1, 5.0, 12.0, 13.0)
    assert (first.first_step, first.last_step, first.checkpoints, first.checkpoint_s) == (4, 4, 1, 2.5)
    assert (first.failure.rank, first.failure.signal) == (1, "SIGKILL")
    assert (second.failure, second.ended_t) == (None, 20.0)
    assert told(*FAILED).failures == (first.failure,)


def test_sentences():
    """What people should hear of, in order, each once, with the wall time it was written down."""
    said = told(*FAILED).said
    assert [one.text.partition(" (by")[0] for one in said] == [
        "created: 2 ranks on 1 host", "attempt 1 begins", "2 ranks run", "checkpoint of step 4: /c/4",
        "rank 1 on a: killed by SIGKILL",
        "the ranks are told to end", "restart 1 of 1", "attempt 2 begins", "the run has ended: finished, exit code 0",
    ]  # fmt: skip
    assert said[0].time == 1000.0
    assert {one.tone for one in said} == {"text", "good", "bad", "warn"}


def test_long_stories_stay_short():
    """Old sentences are let go and counted."""
    story = told(created(), *(events.Noted(1.0, f"note {n}") for n in range(SAID_KEPT + 10)))
    assert len(story.said) == SAID_KEPT
    assert story.left_out == 11
    assert story.said[-1].text == f"note {SAID_KEPT + 9}"


def test_nothing_of_a_rank_moves_the_screen():
    """Text of ranks is made safe before it is a sentence."""
    record = {"kind": "event", "event": "\x1b[2Jodd", "path": "a\nb"}
    story = told(created(), events.AttemptBegan(0.1, 1), events.RankReported(1.0, 1, 0, record))
    assert story.said[-1].text == "odd: a"


def test_a_run_that_goes_on_in_another_job():
    """Its clock begins anew and its story does not: attempts of all jobs, on one clock."""
    again = dataclasses.replace(created(), attempts_before=2)
    story = told(*FAILED, again, events.AttemptBegan(2.0, 3), events.Ended(9.0, "finished", 0))
    assert [one.attempt for one in story.tries] == [1, 2, 3]
    assert story.shift_s == len(FAILED)  # seconds after the first creation, as `told` has it
    assert (story.tries[2].began_t, story.tries[2].ended_t) == (2.0 + len(FAILED), 9.0 + len(FAILED))
    assert story.created_time == 1000.0

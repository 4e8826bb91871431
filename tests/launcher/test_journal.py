import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import events
from launcher.errors import RunFolderError
from launcher.journal import Journal, Metrics, last_metrics, read_lines, replay
from launcher.rundir import RunDir

CREATED = events.RunCreated(
    0.0, "run", "run", 9, [{"rank": 0, "local_rank": 0, "host": "a", "node_rank": 0, "coordinates": {}}],
    {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": False},
    {"host": "c", "pid": 1, "created": 0.0}, "0",
)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def write(run, *happened):
    journal = Journal(run.events)
    for event in happened:
        journal.write(event)
    journal.close()


def test_replay(run):
    """The journal alone gives the run's state."""
    write(
        run, CREATED, events.AttemptBegan(0.1, 1), events.PortPicked(0.2, 1, "x", 1), events.RankStarted(0.3, 1, 0, 7),
        events.Progressed(1.0, 1, {"0": 4}), events.RankExited(2.0, 1, 0, 3, None, "", None),
    )  # fmt: skip
    state = replay(run)
    assert (state.state, state.attempt, state.ranks[0].step, state.first_failure.exit_code) == (
        "stopping",
        1,
        4,
        3,
    )


def test_a_requeued_job_goes_on_in_the_same_journal(run):
    """The state is that of the newest job; its metrics replace what it did again."""
    write(run, CREATED, events.AttemptBegan(0.1, 1), events.Ended(9.0, "stopped", 75))
    metrics = Metrics(run)
    for step in (1, 2, 3):
        metrics.write({"step": step, "attempt": 1})
    metrics.close()
    again = dataclasses.replace(CREATED, attempts_before=1)
    write(run, again, events.AttemptBegan(0.1, 2))
    metrics = Metrics(run)
    metrics.write({"step": 3, "attempt": 2})
    metrics.close()
    state = replay(run)
    assert (state.attempt, state.exit_code, state.state) == (2, None, "starting")
    assert [line["attempt"] for line in read_lines(run.metrics)] == [1, 1, 2]


def test_a_cut_last_line_is_left_out(run):
    """A line still being written, or torn by a crash, hides nothing before it."""
    write(run, CREATED, events.AttemptBegan(0.1, 1), events.Ended(9.0, "finished", 0))
    whole = run.events.read_bytes()
    for end in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        run.events.write_bytes(whole[:end])
        assert replay(run).state == "starting"
    run.events.write_bytes(whole)
    assert replay(run).state == "finished"


def test_unknown_and_damaged_lines_are_passed_over(run):
    """A newer version's events and a damaged line do not stop a reader."""
    write(run, CREATED)
    with run.events.open("ab") as file:
        file.write(b'{"event": "Invented", "t": 1}\n[]\n\xff{\n7\n\n')
    with run.events.open("ab") as file:
        file.write(json.dumps(events.to_line(events.AttemptBegan(1.0, 1))).encode() + b"\n")
    assert replay(run).attempt == 1


@pytest.mark.parametrize("text", ["", "{}\n", '{"event": "Tick", "t": 1}\n'])
def test_no_beginning(run, text):
    """A journal without its first event is an error with the path."""
    run.events.write_text(text)
    with pytest.raises(RunFolderError, match=r"events\.jsonl"):
        replay(run)


def test_no_journal(run):
    """A missing journal is an error of the run folder, an unreadable one too."""
    with pytest.raises(RunFolderError):
        replay(run)
    run.events.mkdir()
    with pytest.raises(RunFolderError, match="cannot read"):
        replay(run)


def steps(path):
    return [(line["attempt"], line["step"]) for line in read_lines(path)]


def test_metrics_of_a_restart_supersede(run):
    """Steps done again replace their earlier lines, which are kept beside; the curve has one line a step."""
    metrics = Metrics(run)
    for attempt, first, last in ((1, 1, 7), (2, 5, 6), (3, 4, 8)):
        for step in range(first, last + 1):
            metrics.write({"step": step, "attempt": attempt})
    metrics.close()
    assert steps(run.metrics) == [(1, 1), (1, 2), (1, 3), (3, 4), (3, 5), (3, 6), (3, 7), (3, 8)]
    assert steps(run.superseded_metrics) == [(1, 5), (1, 6), (1, 7), (1, 4), (2, 5), (2, 6)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=6))
def test_any_restarts(attempts):
    """Whatever is done again: one line a step, rising, the newest of each, and no line is lost."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        metrics, written, newest = Metrics(run), 0, {}
        for attempt, (first, count) in enumerate(attempts, 1):
            for step in range(first, first + count):
                metrics.write({"step": step, "attempt": attempt})
                written += 1
                newest = {s: a for s, a in newest.items() if s < step} | {step: attempt}
        metrics.close()
        assert steps(run.metrics) == [(newest[step], step) for step in sorted(newest)]
        assert len(steps(run.metrics)) + len(steps(run.superseded_metrics)) == written


def test_metrics_without_a_step(run):
    """Lines whose step is missing or no number are kept as they came."""
    metrics = Metrics(run)
    for line in ({"step": 1}, {"loss": 2.0}, {"step": "x"}, {"step": 2}, {"step": 1}):
        metrics.write(line)
    metrics.close()
    assert list(read_lines(run.metrics)) == [{"step": 1}]
    assert len(list(read_lines(run.superseded_metrics))) == 4


def test_last_metrics(run):
    """The newest whole line; none is {}."""
    assert last_metrics(run) == {}
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n[]\n{"step"')
    assert last_metrics(run) == {"step": 2}
    run.metrics.write_text("".join(f'{{"step": {n}, "pad": "{"x" * 100}"}}\n' for n in range(2000)))
    assert last_metrics(run)["step"] == 1999

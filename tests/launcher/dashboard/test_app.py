import asyncio
import random
import time

import pytest

from launcher import events
from launcher.dashboard.app import Dashboard
from launcher.dashboard.keys import VIEWS
from launcher.dashboard.pane import Pane
from launcher.dashboard.terminal import is_light, only_ascii
from launcher.rundir import RunDir
from scripts.recorded_run import record

pytestmark = pytest.mark.slow


def drive(app, steps, size=(80, 24)):
    """Run the app on a screen of this size, and `await steps(pilot)`. Returns the app's own return value."""

    async def work():
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app._seen is not None or app._exit)
            await steps(pilot)
            app.exit(app.return_value)

    asyncio.run(work())
    return app.return_value


async def until(pilot, holds, within_s=20.0):
    """Let the app work until something holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, screen(pilot)
        await pilot.pause(0.05)


def screen(pilot):
    """What is on the screen, row by row."""
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in pilot.app.screen._compositor.render_strips()
    )


async def press_until(pilot, keys, text):
    await pilot.press(*keys.split())
    await until(pilot, lambda: text in screen(pilot))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs") / "r", nodes=2, slots=3, steps=40, alive=False).run


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """1,024 ranks on 128 nodes, led by this process."""
    return record(tmp_path_factory.mktemp("runs") / "large", nodes=128, slots=8, steps=60, alive=True).run


def test_every_view_of_a_finished_run(finished):
    """All six views and the help, by number, by Tab, by click, and back."""

    async def steps(pilot):
        await press_until(pilot, "1", "finished")
        assert "step 40 of 40" in screen(pilot)
        assert "what happened" in screen(pilot)
        await press_until(pilot, "2", "6 ranks on 2 hosts")
        await press_until(pilot, "right right enter", "pid 20002")
        await press_until(pilot, "right", "pid 20003")
        await press_until(pilot, "r 5 enter", "pid 20005")
        await press_until(pilot, "4", "rank 5 says hello")
        await press_until(pilot, "5", "attempt 1 failed")
        assert "illegal memory access was" in screen(pilot)
        await press_until(pilot, "enter", "loss.backward()")
        await press_until(pilot, "6", "ranks 3-5")
        await press_until(pilot, "question_mark", "leave; the run goes on")
        await press_until(pilot, "question_mark", "ranks 3-5")
        for name in VIEWS:
            await pilot.press("tab")
            assert pilot.app._view == name
        await pilot.click("#tabs", offset=(15, 0))
        await until(pilot, lambda: "6 ranks on 2 hosts" in screen(pilot))
        await press_until(pilot, "s", "the run is over")

    drive(Dashboard(finished), steps)


def test_logs(finished):
    """Search, filter, level, ranks and pausing; a wrong pattern is refused where it was typed."""

    async def steps(pilot):
        await press_until(pilot, "4", "following")
        await press_until(pilot, "slash h e l l o enter", "search: hello")
        await press_until(pilot, "g left_parenthesis enter", "not a regular expression")
        await press_until(pilot, "escape g s a y s enter", "filter: says")
        await until(pilot, lambda: "Warning" not in screen(pilot))
        await press_until(pilot, "o 4 enter", "only: 4")
        await until(pilot, lambda: "rank 3 says" not in screen(pilot))
        assert "rank 4 says hello" in screen(pilot)
        await press_until(pilot, "g ctrl+u enter", "Warning")
        await press_until(pilot, "up up", "paused")
        await press_until(pilot, "space", "following")
        await press_until(pilot, "l l", "level: errors")

    drive(Dashboard(finished), steps)


def test_a_thousand_ranks(large):
    """Running, with its stragglers, every rank a cell, at the smallest size and at a large one."""

    async def steps(pilot):
        await press_until(pilot, "2", "1,024 ranks on 128 hosts")
        await until(pilot, lambda: "straggler: rank 517" in screen(pilot))
        assert "RUNNING" in screen(pilot)
        await press_until(pilot, "m m", "heat: behind")
        await press_until(pilot, "f", "nodes: each cell")
        per_row = 128 if pilot.app.size.width == 160 else 64
        await press_until(pilot, "f down down", f"rank {2 * per_row} on node{per_row // 4 + 1:03d}")
        await press_until(pilot, "4", "1016-1023")

    for size in ((80, 24), (160, 50)):
        drive(Dashboard(large), steps, size)


@pytest.mark.parametrize(
    "options", [{"ascii": True}, {"color": False}, {"dark": False}, {"ascii": True, "color": False}]
)
def test_terminals(finished, options):
    """ASCII only, no colour, a light background: every view is drawn; ASCII means ASCII, windows too."""

    async def steps(pilot):
        for key in "123456":
            await pilot.press(key)
            await pilot.pause(0.05)
            assert not options.get("ascii") or screen(pilot).isascii(), screen(pilot)
        await pilot.press("r")
        await pilot.pause(0.05)
        assert not options.get("ascii") or screen(pilot).isascii(), screen(pilot)
        await pilot.press("escape")

    drive(Dashboard(finished, **options), steps)


def test_hostile_lines(tmp_path):
    """Markup, escapes, a megabyte in one line, random bytes, in logs, errors and names: each row stays a row."""
    hostile = b"[/bold][link=x]\x1b[2J\x1b]0;t\x07\r\x08\xe2\x80\xae\xcc\x81" + random.Random(0).randbytes(
        5000
    )
    recorder = record(tmp_path / "r", nodes=1, slots=2, steps=20, alive=True)
    text = hostile.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    recorder.report(2, 0, kind="error", type="E[/]", message=text, traceback=text)
    recorder.report(2, 1, kind="event", event=text, path=text)
    recorder.happened(events.Noted(1.0, text))
    recorder.happened(events.RankExited(recorder.t, 2, 0, 1, None, text, None))
    recorder.flush()
    run = recorder.run
    run.log(2, 0).write_bytes(hostile + b"\n" + b"y" * (1 << 20) + b"\n[/bold] after\n")

    async def steps(pilot):
        for keys in ("1", "2", "r 0 enter", "5", "enter", "6", "4"):
            await pilot.press(*keys.split())
            await pilot.pause(0.1)
            rows = screen(pilot).split("\n")
            assert len(rows) == 24
            assert all(row.isprintable() for row in rows), rows
        await press_until(pilot, "o 0 enter", "[/bold] after")

    drive(Dashboard(run), steps)


def test_queued_and_lost(tmp_path):
    """A run that has not begun, and one whose controller is dead, are told apart, each with what it means."""
    recorder = record(tmp_path / "r", nodes=1, slots=2, steps=20, alive=True)
    lines = recorder.run.events.read_bytes().splitlines(keepends=True)
    queued = RunDir(tmp_path / "queued")
    queued.path.mkdir()
    queued.events.write_bytes(lines[0])
    lost = RunDir(tmp_path / "lost")
    lost.path.mkdir()
    lost.events.write_bytes(b"".join(lines).replace(b'"created": ', b'"created": 1'))

    async def waits(pilot):
        await until(pilot, lambda: "no attempt has begun yet" in screen(pilot))
        assert "QUEUED" in screen(pilot)

    async def died(pilot):
        await until(pilot, lambda: "the controller has died" in screen(pilot))
        assert "LOST" in screen(pilot)

    drive(Dashboard(queued), waits)
    drive(Dashboard(lost), died)


def test_no_run(tmp_path):
    """A folder that is no run's ends the app with the reason."""

    async def steps(pilot):
        await until(pilot, lambda: pilot.app._exit)

    (tmp_path / "events.jsonl").write_text("{}\n")
    assert "does not begin with a run" in drive(Dashboard(RunDir(tmp_path)), steps)


def test_the_first_picture_needs_no_data(tmp_path):
    """Panes of any size paint what they have; nothing is shown twice as something else."""
    pane = Pane("main")
    assert pane.target_at(3, 3) == ""
    assert list(pane.lines) == []


def test_what_the_terminal_says():
    """ASCII where nothing else can be written; a light background where the terminal says so."""
    assert only_ascii({}, "ascii")
    assert only_ascii({"TERM": "linux"}, "utf-8")
    assert not only_ascii({"TERM": "xterm"}, "UTF-8")
    assert is_light({"COLORFGBG": "0;15"})
    assert not is_light({"COLORFGBG": "15;0"})
    assert not is_light({})

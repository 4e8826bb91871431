"""The dashboard on a run that is really going: what it shows, and what it asks of the controller."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from integration.launches import RECIPE, distperf, start

from launcher.dashboard.app import Dashboard
from launcher.rundir import RunDir

pytestmark = pytest.mark.slow

SCRIPT = """
import os, time
import distperf

def train():
    for step in range(1, 4000):
        print(f"[Warning] rank {os.environ['RANK']} [/bold] step {step}", flush=True)
        distperf.report(step, **({"loss": 5 / step, "tokens_per_s": 1e6} if os.environ["RANK"] == "0" else {}))
        time.sleep(0.05)

train()
"""


def screen(app: Dashboard) -> str:
    rows = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in rows)


async def shows(pilot, text: str, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not re.search(text, screen(pilot.app)):
        assert time.monotonic() < deadline, f"{text} is not in\n{screen(pilot.app)}"
        await pilot.pause(0.05)


def test_watch_and_stop_a_run(tmp_path):
    """Steps, curve and output as they come; stacks while ranks go on; stopped after a question, by keys."""
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = start(tmp_path, "--nproc", "2", "--script", "train.py")
    launch.until(lambda status: status["step"] > 5)

    async def drive(app: Dashboard) -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            await shows(pilot, "RUNNING")
            await shows(pilot, r"loss 0\.\d+")
            await pilot.press("4")
            await shows(pilot, r"\[Warning\] rank 1 \[/bold\] step \d+")
            await pilot.press("x", "y")
            await shows(pilot, "asked: stacks come")
            await pilot.press("r", "1", "enter")
            await shows(pilot, r"in .*train\.py:\d+ train")
            await pilot.press("c", "y")
            await shows(pilot, "a script of yours")
            await pilot.press("1", "s")
            await shows(pilot, "End this run")
            await pilot.press("enter")  # no, unless it is said
            await pilot.press("s", "y")
            await shows(pilot, "STOPPED")
            await shows(pilot, "asked to end")
            app.exit()

    asyncio.run(drive(Dashboard(RunDir(launch.run))))
    launch.end()
    assert launch.process.returncode == 130


def test_status_without_a_terminal(tmp_path):
    """No control bytes; --watch ends with the run; a folder that is no run's is an error of one line."""
    (tmp_path / "train.py").write_text("import distperf\ndistperf.report(3, loss=1.5)\n")
    assert start(tmp_path, "--nproc", "1", "--script", "train.py").end()
    done = distperf(tmp_path, "status", "--watch", "0.1")
    assert "finished" in done.stdout
    assert "loss 1.5000" in done.stdout
    assert "\x1b" not in done.stdout


def test_report(tmp_path):
    """What became of a run, as text on stdout and as a page; the page is written whole, and only where it was asked."""
    (tmp_path / "train.py").write_text(
        "import distperf\nfor n in (1, 2, 3): distperf.report(n, loss=1.5 / n)\n"
    )
    start(tmp_path, "--nproc", "1", "--script", "train.py").end()
    text = distperf(tmp_path, "report").stdout
    assert "finished" in text
    assert "loss        1.5000 -> 0.5000" in text
    done = distperf(tmp_path, "report", "--html", "report.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "distperf: wrote report.html\n")
    assert (tmp_path / "report.html").read_text().endswith("</html>\n")
    assert distperf(tmp_path, "report", "no-such-run").returncode == 2


def test_a_checkpoint_now(tmp_path):
    """By command and by key: all ranks save after the step they are at, and train on."""
    (tmp_path / "small.yaml").write_text(
        RECIPE.replace("steps: 20", "steps: 4000").replace("every_steps: 5", "every_steps: 0")
    )
    launch = start(tmp_path, "small.yaml", "--nproc", "2", "--no-check")
    launch.until(lambda status: status["step"] > 3)
    done = distperf(tmp_path, "save")
    assert done.returncode == 0, done.stderr
    saved = re.fullmatch(r"checkpoint of step (\d+): (.*)\n", done.stderr)
    assert saved
    assert (tmp_path / "checkpoints" / f"step-{int(saved[1]):08d}").is_dir()
    launch.until(lambda status: status["step"] > int(saved[1]) + 1)

    async def drive(app: Dashboard) -> None:
        async with app.run_test(size=(110, 40)) as pilot:
            await shows(pilot, "RUNNING")
            await pilot.press("c")
            await shows(pilot, "Write a checkpoint now")
            await pilot.press("y")
            await shows(pilot, "asked: all ranks save")

    asyncio.run(drive(Dashboard(RunDir(launch.run))))
    launch.until(lambda status: len(list((tmp_path / "checkpoints").glob("step-*"))) >= 2)
    assert distperf(tmp_path, "stop").returncode == 0
    launch.end()
    assert "is over" in distperf(tmp_path, "save").stderr

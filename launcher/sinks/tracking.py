"""A process of its own for each tracker, which follows the run's folder: a network that hangs hangs nothing else.

`python -m launcher.sinks.tracking FOLDER NAME SETTINGS` is what the launcher starts. It ends by itself when the run is
over, or its controller dead; at the end the launcher waits for it, within a limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distperf.recipe.reporting import ReportSection
from launcher.errors import RunFolderError
from launcher.follow import Follower
from launcher.rundir import RunDir
from launcher.sinks.trackers import TRACKERS, Settings, Tracker, asked_for

LOOK_S = 2.0
BATCH_S = 10.0  # between two batches of steps: trackers take many as easily as one
END_LIMIT_S = 60.0


@contextmanager
def tracked(
    run: RunDir, report: ReportSection, complain: Callable[[str], None], limit_s: float = END_LIMIT_S
) -> Iterator[None]:
    """While a run goes, and until its end has been told; `complain` hears of each that did not come to its own end."""
    processes = {name: _start(run, name, settings) for name, settings in asked_for(report).items()}
    try:
        yield
    finally:
        deadline = time.monotonic() + limit_s
        for name, process in processes.items():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
                what = f"ended with code {code}" if code else ""
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                what = f"was not done {limit_s:.0f} s after the run"
            if what:
                complain(f"{name} {what}: see {run.tracking_log(name)}")


def _start(run: RunDir, name: str, settings: Settings) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "launcher.sinks.tracking", str(run.path), name, json.dumps(settings)]
    with run.tracking_log(name).open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def follow(run: RunDir, name: str, settings: Settings, look_s: float = LOOK_S) -> int:
    """Hand steps on until the run is over; 0. An exception of the tracker's ends the process, with its traceback."""
    follower = _begun(run, look_s)
    tracker: Tracker = TRACKERS[name](run, follower.seen().spec, settings)
    waiting, handed = list(follower.seen().points), float("-inf")
    while True:
        waiting += follower.news()[1]
        seen, now = follower.seen(), time.monotonic()
        if waiting and (seen.over or now - handed >= BATCH_S):
            tracker.log(waiting)
            waiting, handed = [], now
        if seen.over:
            tracker.close(1 if seen.state.exit_code is None else seen.state.exit_code)
            return 0
        time.sleep(look_s)


def _begun(run: RunDir, look_s: float) -> Follower:
    """Wait until the run stands in its journal; a minute without one is an error."""
    for _ in range(int(END_LIMIT_S / look_s)):
        try:
            follower = Follower(run)
        except RunFolderError:
            time.sleep(look_s)
        else:
            follower.news()
            return follower
    return Follower(run)


if __name__ == "__main__":
    sys.exit(follow(RunDir(Path(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3])))

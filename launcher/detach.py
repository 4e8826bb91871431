"""`launch --detach`: the controller goes on in the background once its run has begun.

The fork comes first, while the process has one thread: connections to nodes live on threads, which a fork would lose.
Until the run has begun the child stays in the terminal's foreground, so errors, Ctrl-C and exit codes are as without
--detach; then it leaves for a session of its own, and only then does the parent return.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.rundir import RunDir

Leave = Callable[[Path, str], None]  # (log file, what the parent prints on stdout)


def detached(work: Callable[[Leave], int]) -> int:
    """Do `work` in a child: in the parent 0 once the child has called `leave`, or the code that it ended with.

    In the child, what `work` returns or raises, long after the parent has gone.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        return work(functools.partial(_leave, writer))
    os.close(writer)
    return _wait(child, reader)


def farewell(run: RunDir) -> list[str]:
    """What a run that leaves its terminal says: where it is, and how to follow it."""
    name = run.run_id if run.path.parent == Path("runs").absolute() else run.path
    return [
        f"  goes on in the background, in {run.path}",
        f"  distperf attach {name}",
        f"  distperf stop {name}",
    ]


def _leave(writer: int, log: Path, word: str) -> None:
    """Leave the terminal: a session of its own, no input, output into a file, deaf to hang-ups."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    try:
        os.write(writer, word.encode())
    except BrokenPipeError:  # the parent was killed; the run has begun all the same
        pass
    os.close(writer)


def _wait(child: int, reader: int) -> int:
    def forward(number: int, _frame: object) -> None:
        os.kill(child, number)

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal's Ctrl-C reaches the child too, and it decides
    signal.signal(signal.SIGTERM, forward)
    with os.fdopen(reader) as pipe:
        word = pipe.read()
    if word:
        print(word, flush=True)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code

"""A rank's word that it was told to end."""

import os
import signal

import pytest

from distperf.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_both_signals_are_requests(number):
    """SIGTERM, and SLURM's warning where it comes to ranks themselves."""
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1)}
    stop = StopRequest()
    stop.listen()
    try:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)

import pytest

from launcher import failure
from launcher.events import NodeLost, RankExited
from launcher.state import Rank


def explain(error=None, code=None, signal=None, start_error=None):
    rank = Rank(3, 1, "gpu-b", 1, pid=77, step=12, error=error)
    return failure.of_rank(rank, RankExited(1.0, 2, 3, code, signal, "last words", start_error))


@pytest.mark.parametrize(
    ("seen", "cause", "message"),
    [
        ({"code": 7}, "exit", "exited with code 7"),
        ({"code": 0}, "exit", "exited with code 0 before the last step was done"),
        ({"signal": "SIGTERM"}, "signal", "killed by SIGTERM"),
        ({"start_error": "cannot start x: not found"}, "connect", "cannot start x: not found"),
        ({"code": 1, "error": {"type": "ValueError", "message": "no"}}, "exit", "ValueError: no"),
        ({"code": 1, "error": {"type": "ImportError", "message": "x"}}, "import", "ImportError: x"),
        ({"signal": "SIGABRT", "error": {"type": "KeyError", "message": "k"}}, "exit", "KeyError: k"),
    ],
)
def test_cause(seen, cause, message):
    """The rank's own word stands before its signal or code; all facts of the rank are kept."""
    found = explain(**seen)
    assert (found.cause, found.message) == (cause, message)
    assert (found.host, found.rank, found.pid, found.attempt, found.step) == ("gpu-b", 3, 77, 2, 12)
    assert (found.exit_code, found.signal, found.log_tail) == (
        seen.get("code"),
        seen.get("signal"),
        "last words",
    )


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("MemoryError", "", "oom"),
        ("RuntimeError", "[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried", "oom"),
        ("RuntimeError", "the memory of this went wrong", "exit"),
    ],
)
def test_allocations_that_fail(kind, message, cause):
    """Nothing kills a rank whose device is full: its own error says so, and is told as want of memory."""
    assert explain(code=1, error={"type": kind, "message": message}).cause == cause


def test_sigkill_says_memory():
    """C03: "killed by SIGKILL" comes with the likely reason and where to look."""
    assert "memory" in explain(signal="SIGKILL").message
    assert "dmesg" in explain(signal="SIGKILL").message


@pytest.mark.parametrize("kind", sorted(failure.FINAL_ERRORS))
def test_final_errors_are_not_retried(kind):
    """What another try cannot mend is marked so; so is a rank that could not be started."""
    assert not explain(code=1, error={"type": kind, "message": ""}).retry
    assert not explain(start_error="not found").retry
    assert explain(code=1).retry
    assert explain(code=1, error={"type": "RuntimeError", "message": ""}).retry


def test_lost_node():
    """A lost node is a failure of its own, of no rank."""
    found = failure.of_node(NodeLost(1.0, "gpu-b", "the connection ended"), 2, 5)
    assert (found.cause, found.host, found.rank, found.message) == (
        "node_lost",
        "gpu-b",
        None,
        "the connection ended",
    )
    assert (found.attempt, found.step, found.retry) == (2, 5, True)


BAD_LR = 'Traceback (most recent call last):\n  File "/x/train.py", line 12, in main\n    fit()\nValueError: bad lr'


def died(tail, code=1, **more):
    return failure.of_rank(Rank(0, 0, "a", 0), RankExited(1.0, 1, 0, code, None, tail, None, **more))


def test_a_script_is_asked_for_its_traceback():
    """Without an error record, the traceback in its last lines says why: type, message and the user's own line."""
    found = died("epoch 1\n" + BAD_LR)
    assert (found.cause, found.message) == ("exit", "ValueError: bad lr (train.py:12 in main)")
    assert (found.traceback, found.log_tail, found.retry) == (BAD_LR, "epoch 1\n" + BAD_LR, True)


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("ModuleNotFoundError: No module named 'x'", "import"),
        ("ImportError: x", "import"),
        ("SyntaxError: x", "exit"),
    ],
)
def test_a_script_that_cannot_be_loaded_is_not_retried(last, cause):
    """Another attempt would find the same code."""
    found = died(BAD_LR.replace("ValueError: bad lr", last))
    assert (found.cause, found.retry) == (cause, False)


def test_a_script_that_is_not_there_is_not_retried():
    """python's own words are told."""
    found = died("python3: can't open file '/x/train.py': [Errno 2] No such file or directory", code=2)
    assert not found.retry
    assert "can't open file '/x/train.py'" in found.message


def test_memory():
    """C03: what the kernel says stands before the bare signal, and another attempt is made."""
    event = RankExited(1.0, 1, 0, None, "SIGKILL", "", None, oom="killed by the kernel: memory limit reached")
    found = failure.of_rank(Rank(0, 0, "a", 0), event)
    assert (found.cause, found.signal, found.retry) == ("oom", "SIGKILL", True)
    assert found.message == "killed by the kernel: memory limit reached"

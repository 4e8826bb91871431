import pytest

from launcher.traces import AGREE, agreements, covered, merged, offset, share_of, summary


def part(name, ts, dur, **more):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 7,
        "tid": 1,
        **more,
    }


def step(at, forward, waits, name="distperf.forward"):
    """A forward pass, then waiting, which ends the step."""
    agree = part(AGREE, at + forward, waits)
    return [part(name, at, forward), part("distperf.communication", at + forward, waits), agree]


def test_clocks_are_put_side_by_side_by_what_ends_together():
    """A rank whose clock is a minute ahead is moved back by that; what it did lies where it happened."""
    ahead = 60e6
    traces = {
        0: {"traceEvents": [*step(0, 100, 50), *step(200, 100, 50)]},
        3: {"traceEvents": [*step(ahead, 140, 10), *step(ahead + 200, 140, 10)]},
    }
    whole = merged(traces, {0: "a", 3: "b"})["traceEvents"]
    ends = {pid: agreements(e for e in whole if e["pid"] == pid) for pid in (0, 3000)}
    assert ends[0] == ends[3000] == [150, 350]
    assert offset([], [1.0]) == 0.0


def test_processes_and_arrows_of_ranks_stay_apart():
    """Equal pids and flow ids of two ranks become different ones, and names say whose they are."""
    own = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 7, "ts": 5, "name": "flow"},
        {"ph": "i", "name": "without a process", "ts": 1},
    ]
    whole = merged({0: {"traceEvents": own}, 1: {"traceEvents": own}}, {0: "a", 1: "b"})["traceEvents"]
    assert [(e["pid"], e["args"]["name"]) for e in whole if e["ph"] == "M"] == [
        (0, "rank 0 on a: python"),
        (1000, "rank 1 on b: python"),
    ]
    assert [e["id"] for e in whole if e["ph"] == "s"] == ["0.1", "1.1"]


def test_time_counts_for_the_innermost_part():
    """A forward pass that waits computes less; what lies in no part is idle."""
    events = [
        part("distperf.forward", 0, 100_000),
        part("distperf.communication", 20_000, 30_000),  # within it
        part("distperf.communication", 150_000, 50_000),
        part(AGREE, 150_000, 50_000),
    ]
    share = share_of(4, events)
    assert (share.compute_s, share.exposed_s, share.idle_s) == pytest.approx((0.07, 0.08, 0.05))
    assert share_of(4, [part("distperf.forward", 0, 1)]) is None


def test_a_device_says_itself_what_it_did():
    """Kernels count where there are any: communication beside computing is not exposed."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
    events = [
        *step(0, 60_000, 40_000),
        {**kernel, "name": "gemm", "ts": 0, "dur": 50_000},
        {**kernel, "name": "ncclDevKernel_AllReduce", "ts": 30_000, "dur": 40_000},
    ]
    share = share_of(0, events)
    assert (share.compute_s, share.exposed_s, share.idle_s) == pytest.approx((0.05, 0.02, 0.03))


def test_covered():
    """Overlaps count once."""
    assert covered([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]


def test_summary():
    """The slowest is the one that computes longest, not the one that waits."""
    shares = [share_of(0, step(0, 100_000, 50_000)), share_of(1, step(0, 140_000, 10_000))]
    lines = summary(shares, {0: "a", 1: "b"})
    assert "66.7%" in lines[1]
    assert "150.0 ms on a" in lines[1]
    assert lines[3].startswith("slowest: rank 1, 140.0 ms of computing a step")
    assert summary([], {}) == ["the traces hold no whole step"]

from launcher.recap import usage

LINES = [
    {"t": 10.0, "forward_s": 0.2, "forward_s_most": 0.3, "forward_s_at": 5, "communication_s": 0.1,
     "communication_s_most": 0.2, "communication_s_at": 1, "node_cpu": 0.5, "node_cpu_most": 0.9, "node_cpu_at": "b",
     "stage_imbalance": 0.1},
    {"t": 20.0, "forward_s": 0.4, "forward_s_most": 0.9, "forward_s_at": 7, "communication_s": 0.1,
     "communication_s_most": 0.1, "communication_s_at": 1, "node_sent_bytes_per_s": 2048,
     "node_sent_bytes_per_s_most": 4096, "node_sent_bytes_per_s_at": "a"},
]  # fmt: skip


def test_means_and_worst():
    """Of the whole run; what lines do not tell is not counted."""
    assert usage.step_rows(LINES) == [
        ("forward", "0.3000 s", "75.0%", "0.9000 s, rank 7"),
        ("communication", "0.1000 s", "25.0%", "0.2000 s, rank 1"),
    ]
    assert usage.node_rows(LINES) == [
        ("CPU in use", "50%", "90% on b"),
        ("network out", "2.0 KiB/s", "4.0 KiB/s on a"),
    ]
    assert usage.imbalance(LINES) == "the slowest stage took 10.0% more than the mean"
    assert usage.over_time(LINES, "forward_s") == [(10.0, 0.2), (20.0, 0.4)]


def test_a_run_that_told_nothing():
    """No tables, no curves."""
    assert usage.step_rows(()) == usage.node_rows(()) == []
    assert usage.imbalance(()) == ""

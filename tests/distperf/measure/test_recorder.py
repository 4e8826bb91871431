import json

from distperf.measure.recorder import waiting_in


def entry(name, number, **more):
    return {"profiling_name": name, "collective_seq_id": number, "process_group": ["0", "default_pg"], **more}


def test_what_has_not_ended():
    """Gloo's entries stay "scheduled" and are retired, NCCL's are completed; the oldest open one comes first."""
    trace = {
        "entries": [
            entry("gloo:all_reduce", 1, retired=True, state="scheduled"),
            entry("nccl:all_gather", 2, retired=False, state="completed"),
            entry("nccl:reduce_scatter", 3, retired=False, state="started"),
            entry("nccl:send 0->1", 3, retired=False, state="scheduled", is_p2p=True, p2p_seq_id=7),
        ]
    }
    assert waiting_in(json.dumps(trace)) == [
        {"name": "reduce_scatter", "number": 3, "group": "default_pg"},
        {"name": "send 0->1", "number": 7, "group": "default_pg"},
    ]
    assert waiting_in("{}") == []

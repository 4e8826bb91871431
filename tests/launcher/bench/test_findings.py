from launcher.bench.findings import Finding, by_host, findings, measures


def event(*found):
    return {
        "event": "bench",
        "found": [dict(zip(("what", "where", "amount", "value"), one, strict=True)) for one in found],
    }


def test_the_better_of_two_turns_counts():
    """More of a rate, less of a time; each rank and size by itself."""
    told = {
        0: [
            event(("layer", "fp32", 256, 5.0), ("reduce", "host", 64, 0.2)),
            event(("layer", "fp32", 256, 7.0)),
        ],
        1: [
            event(("layer", "fp32", 256, 6.0)),
            event(("reduce", "host", 64, 0.1), ("layer", "fp32", 256, 4.0)),
        ],
    }
    found = findings(told, ["a", "b"])
    assert sorted((one.host, one.what, one.value) for one in found) == [
        ("a", "layer", 7.0), ("a", "reduce", 0.2), ("b", "layer", 6.0), ("b", "reduce", 0.1),
    ]  # fmt: skip


def test_the_slowest_rank_counts_for_the_planner():
    """At sizes that all ranks came to; what is a time, by the longest."""
    ranks = [(256, 4.0, 0.1), (256, 3.0, 0.3), (256, 5.0, 0.2)]
    found = [Finding("a", rank, "layer", "fp32", size, rate) for rank, (size, rate, _) in enumerate(ranks)]
    found += [Finding("a", 0, "layer", "fp32", 512, 9.0)]
    found += [Finding("a", rank, "gather", "host", 64, seconds) for rank, (_, _, seconds) in enumerate(ranks)]
    points = {measure.what: measure.points for measure in measures(found)}
    assert points == {"layer": ((256, 3.0),), "gather": ((64, 0.3),)}


def test_a_host_by_the_median_of_its_ranks():
    """At the largest size that all have."""
    found = [Finding(host, rank, "matmul", "fp32", size, rank + size)
             for host, ranks in (("a", (0, 1, 2)), ("b", (3,))) for rank in ranks for size in (1, 100)]  # fmt: skip
    assert by_host(found) == {("matmul", "fp32"): {"a": 101, "b": 103}}

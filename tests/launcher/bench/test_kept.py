import json

import pytest

from distperf.recipe.planner.rates import Measure
from launcher import dryrun
from launcher.agent.facts import node_facts
from launcher.bench import kept
from launcher.errors import UsageError
from launcher.planning import Request

RECIPE = """
model: {family: llama, layers: 4, hidden: 256, heads: 4, ffn: 704, vocab: 1000}
data: {synthetic: true, seq_len: 128}
train: {steps: 2, global_batch: 32, micro_batch: 4}
precision: fp32
"""
LAYER = Measure("layer", "fp32", ((256.0, 1e10),))
MATMUL = Measure("matmul", "fp32", ((256.0, 1e10),))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    return tmp_path


def nodes(*hosts):
    return {host: {"hostname": host, "cpus": 4, "devices": 0, "device_names": [], "memory_bytes": 8 << 30}
            for host in hosts}  # fmt: skip


def plan(place, **request):
    return dryrun.as_json(dryrun.outcome(Request(recipe=place / "r.yaml", **request), probe=False), False)


def test_a_measuring_is_what_the_plan_of_these_hosts_reckons_with(place):
    """Step time, and memory too; it says from where. Other hosts or slots are not meant by it."""
    kept.keep("2026-11-30 12:00", nodes("b", "a"), 2, [LAYER, MATMUL])
    value = plan(place, hosts=place / "hosts")
    assert value["step_s"] > 0
    assert value["step_source"] == "measured: distperf bench of 2 hosts x 2 ranks, 2026-11-30 12:00"
    assert value["fits"] is True
    (place / "hosts").write_text("a slots=2\nc slots=2\n")
    assert plan(place, hosts=place / "hosts")["step_s"] is None
    (place / "hosts").write_text("a slots=4\nb slots=4\n")
    assert plan(place, hosts=place / "hosts")["step_s"] is None


def test_what_the_recipe_says_comes_first(place):
    """Its FLOP/s in place of the measured ones."""
    kept.keep("2026-11-30 12:00", nodes("a", "b"), 2, [LAYER, MATMUL])
    slow = plan(place, hosts=place / "hosts", sets=("hardware.flops_per_s=1e9",))
    assert slow["step_terms"]["compute"] > 5 * plan(place, hosts=place / "hosts")["step_terms"]["compute"]


def test_this_machine_only_while_it_is_the_same(place):
    """Numbers of another machine of the same name, as in a shared home, are not this one's."""
    here = {key: node_facts()[key] for key in (*kept.HARDWARE, "memory_bytes")}
    kept.keep("2026-11-30 12:00", {"localhost": here}, 1, [LAYER, MATMUL])
    assert plan(place, nproc=1)["step_s"] > 0
    kept.keep("2026-11-30 12:01", {"localhost": {**here, "cpus": 999}}, 1, [LAYER, MATMUL])
    assert plan(place, nproc=1)["step_s"] is None


def test_more_hosts_like_those_that_were_measured(place):
    """64 of them are planned for without one of them at hand; unmeasured ones are not."""
    kept.keep("2026-11-30 12:00", nodes("a"), 2, [LAYER, MATMUL])
    value = plan(place, assume="4x2xmeasured")
    assert (value["world_size"], value["hardware"]["memory_bytes"]) == (8, 4 << 30)
    assert value["step_s"] > 0
    with pytest.raises(UsageError, match="distperf bench"):
        plan(place, assume="64x8xmeasured")


def test_parts_are_measured_one_by_one(place):
    """What a later measuring did not look at stays, on the same hardware."""
    kept.keep("2026-11-30 12:00", nodes("a"), 2, [LAYER])
    kept.keep("2026-11-30 12:05", nodes("a"), 2, [MATMUL])
    assert kept.of_hosts(["a"], 2).rates.measures == (LAYER, MATMUL)
    other = {"a": {**nodes("a")["a"], "cpus": 8}}
    kept.keep("2026-11-30 12:10", other, 2, [MATMUL])
    assert kept.of_hosts(["a"], 2).rates.measures == (MATMUL,)


def test_a_file_that_cannot_be_read_is_no_measuring(place):
    """Damaged, or of another version."""
    path = kept.keep("2026-11-30 12:00", nodes("a"), 2, [LAYER])
    value = json.loads(path.read_text())
    for text in ("{", json.dumps({**value, "schema": 99}), json.dumps({**value, "measures": [{}]})):
        path.write_text(text)
        assert kept.of_hosts(["a"], 2) is None
        assert kept.newest(2) is None

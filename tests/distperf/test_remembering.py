"""Training that goes on from memory after a SIGKILL: no disk, few steps lost, every loss the same to the last bit."""

from __future__ import annotations

import random
import shutil

import pytest
from train_program import make_spec, train, training

from distperf.recipe.mesh import fit_mesh
from distperf.recipe.runspec import CheckpointSpec, MemorySpec, ParallelSpec

pytestmark = pytest.mark.slow
EVERY = 3
STEPS = 40


def remembering(tmp_path, *, world, nodes, every=EVERY, disk_every=0, **how):
    """A spec that keeps its state in the memory of so many nodes, and their folders."""
    folders = [tmp_path / f"node-{node}" for node in range(nodes)]
    for folder in folders:
        folder.mkdir()
    checkpoint = CheckpointSpec(
        disk_every, False, 2, str(tmp_path / "disk"), memory=MemorySpec(every, 1, str(tmp_path))
    )
    return make_spec(tmp_path, world=world, steps=STEPS, checkpoint=checkpoint, **how), folders


def killed(spec, folders, at, victim):
    """Train until all ranks have finished step `at`, SIGKILL one, then the others, as a launcher does; the losses."""
    with training(spec, nodes=folders) as ranks:
        ranks.wait_until(lambda: all(len(rank.of("progress")) >= at for rank in ranks.ranks))
        ranks.ranks[victim].process.kill()
        ranks.kill()
        return ranks.losses()


def told(ranks, name):
    """Events of this name that rank 0 has told."""
    return [record for record in ranks.ranks[0].of("event") if record["event"] == name]


def going_on(spec, folders, nodes=None):
    """The next attempt, to its end: where it began, and its losses."""
    ranks = train(spec, attempt=2, nodes=nodes or folders)
    (event,) = told(ranks, "resume")
    assert event["memory"]
    assert f"resumed from memory, step {event['step']}" in ranks.output
    return event["step"], ranks.losses()


PIPELINE = ParallelSpec(
    1, **fit_mesh(2, pp=2).sizes(), cp_method="ulysses", pp_schedule="1f1b", pp_layers=(1, 1)
)
WAYS = {
    "zero-0": {"zero": 0},
    "zero-2": {"zero": 2},
    "zero-3": {"zero": 3},
    "pp": {"axes": {"pp": 2}, "accumulation": 2, "parallel": PIPELINE},
    "tp": {"zero": 1, "axes": {"tp": 2}},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_rank_costs_no_more_steps_than_between_two(tmp_path, way):
    """Two ranks on a node: one is killed at any step. The next attempt begins at most EVERY steps earlier, and those of
    a copy that was on its way; losses are as of an undisturbed run, to the last bit. No disk is touched.
    """
    spec, folders = remembering(tmp_path, world=2, nodes=1, **WAYS[way])
    before = killed(spec, folders, random.randint(2 * EVERY + 1, 12), victim=1)
    step, after = going_on(spec, folders)
    assert max(before) - step <= 2 * EVERY
    assert min(after) == step + 1
    assert not (tmp_path / "disk").exists()
    undisturbed = make_spec(tmp_path, world=2, steps=STEPS, **WAYS[way])
    assert {**before, **after} == train(undisturbed).losses()


@pytest.mark.parametrize(
    "way", [{"zero": 2}, {"zero": 3, "axes": {"dp_replicate": 2}}], ids=["shards", "replicas"]
)
def test_a_lost_node_costs_no_more_either(tmp_path, way):
    """Four ranks on two nodes, of which the second is gone with its memory: a fresh one gets what it needs from the
    first one's copies. Losses are as of an undisturbed run to the last bit.
    """
    spec, folders = remembering(tmp_path, world=4, nodes=2, **way)
    before = killed(spec, folders, random.randint(2 * EVERY + 1, 12), victim=3)
    shutil.rmtree(folders[1])
    spare = tmp_path / "spare"
    spare.mkdir()
    step, after = going_on(spec, folders, nodes=[folders[0], spare])
    assert max(before) - step <= 2 * EVERY
    assert {**before, **after} == train(make_spec(tmp_path, world=4, steps=STEPS, **way)).losses()


def test_the_disk_is_taken_where_it_is_newer_or_memory_is_gone(tmp_path):
    """Step 8 is on disk, 5 in memory: 8 it is. Without memory the disk serves as ever."""
    spec, folders = remembering(tmp_path, world=1, nodes=1, every=5, disk_every=8)
    with training(spec, nodes=folders) as ranks:
        ranks.wait_until(lambda: told(ranks, "checkpoint"))
        ranks.kill()
    kept = max(int(path.name[5:]) for path in folders[0].glob("step-*"))
    with training(spec, attempt=2, nodes=folders) as ranks:
        ranks.wait_until(lambda: told(ranks, "resume"))
        (event,) = told(ranks, "resume")
        assert (event["step"], event["memory"]) == (max(kept, 8), kept > 8)
        ranks.kill()
    shutil.rmtree(folders[0])
    folders[0].mkdir()
    (event,) = told(train(spec, attempt=3, nodes=folders), "resume")
    assert event["step"] % 8 == 0
    assert event["memory"] is False


def test_a_run_without_a_folder_says_who_makes_it(tmp_path):
    """Ranks that no agent of ours has started have no folder in memory."""
    spec, _ = remembering(tmp_path, world=1, nodes=1)
    with training(spec) as ranks:
        assert ranks.wait() == [1]
        assert "DISTPERF_MEMORY names no folder: `distperf launch` makes it on each node" in ranks.output

"""The layout of parameters in buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distperf.optim.groups import Treatment
from distperf.parallel.buckets import ParameterInfo, layout, overlaps

TREATMENTS = (Treatment(1.0, 0.1), Treatment(1.0, 0.0), Treatment(0.5, 0.1))
shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)
models = st.lists(st.tuples(shapes, st.booleans(), st.sampled_from(TREATMENTS)), max_size=12).map(
    lambda listed: [
        ParameterInfo(f"p{i}", shape, shape, (0,) * len(shape), trainable, treatment)
        for i, (shape, trainable, treatment) in enumerate(listed)
    ]
)


@given(models, st.integers(1, 5), st.integers(1, 80))
def test_every_element_is_owned_once(parameters, num_shards, bucket_numel):
    """Over all shards of all buckets each element of each parameter appears exactly once, at its own place."""
    owned = {p.fqn: [] for p in parameters}
    for bucket in layout(parameters, num_shards, bucket_numel):
        assert bucket.size % num_shards == 0
        assert bucket.size - bucket.used < num_shards
        for rank in range(num_shards):
            start, stop = bucket.shard(rank, num_shards)
            for part in overlaps(bucket, start, stop):
                assert part.slot.offset + part.in_block == start + part.in_shard
                owned[part.slot.fqn] += range(part.in_block, part.in_block + part.length)
    for parameter in parameters:
        assert owned[parameter.fqn] == list(range(parameter.numel))


@given(models, st.integers(1, 80))
def test_a_bucket_treats_its_parameters_alike(parameters, bucket_numel):
    """Treatment and freezing are properties of a bucket; only a single parameter may exceed its size."""
    by_name = {p.fqn: p for p in parameters}
    for bucket in layout(parameters, 2, bucket_numel):
        members = [by_name[slot.fqn] for slot in bucket.slots]
        assert {m.treatment for m in members} == {bucket.treatment}
        assert {m.trainable for m in members} == {bucket.trainable}
        assert len(members) == 1 or bucket.used <= bucket_numel


def test_buckets_come_in_the_order_the_backward_pass_completes_them():
    """The bucket of all norms is complete only with the first layer, so it comes after the buckets of later layers."""
    parameters = [
        ParameterInfo(f"layers.{i}.{name}", shape, shape, (0,) * len(shape), True, treatment)
        for i in range(3)
        for name, shape, treatment in (("norm", (4,), TREATMENTS[1]), ("weight", (4, 4), TREATMENTS[0]))
    ]
    firsts = [bucket.slots[-1].fqn for bucket in layout(parameters, 2, 16)]
    assert firsts == ["layers.2.weight", "layers.1.weight", "layers.0.weight", "layers.0.norm"]

"""Who keeps whose copies, what is whole, and what must travel."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distperf.checkpoint.memory.route import (
    Generation,
    Held,
    Nodes,
    Transfer,
    copying,
    fetching,
    whole_generations,
)

clusters = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda sizes: Nodes(tuple(node for node, size in enumerate(sizes) for _ in range(size)))
)


@given(clusters, st.integers(0, 6))
def test_copies_are_on_as_many_other_nodes_as_there_are_and_asked_for(nodes, copies):
    """Each rank's keepers are on nodes of their own, none on its own node."""
    for rank, own in enumerate(nodes.of):
        there = [nodes.of[keeper] for keeper in nodes.keepers(rank, copies)]
        assert len(set(there)) == len(there) == min(copies, nodes.count - 1)
        assert own not in there


def test_ranks_keep_for_the_one_in_their_place():
    """With equal nodes each rank sends once and receives once; a smaller node's ranks receive more."""
    assert [Nodes((0, 0, 1, 1)).keepers(rank, 1) for rank in range(4)] == [[2], [3], [0], [1]]
    assert [Nodes((0, 0, 1)).keepers(rank, 1) for rank in range(3)] == [[2], [2], [0]]


def test_each_byte_is_sent_once_a_copy():
    """Cost: what a rank writes, times copies, and no more."""
    written = [{f"__{rank}": 100 + rank} for rank in range(4)]
    sent = Counter()
    for transfer in copying(Nodes((0, 0, 1, 2)), 2, written):
        sent[transfer.source] += transfer.bytes
    assert sent == {rank: 2 * (100 + rank) for rank in range(4)}


def held(step: int, *files: str, seal: str = "a", total: int = 3) -> Held:
    return Held(step, seal, dict.fromkeys(files, 7), total)


def test_a_generation_is_whole_when_every_file_is_somewhere():
    """Of three nodes one has lost everything: its file is with the next one."""
    found = whole_generations([[held(5, "m", "x", "y")], [], [held(5, "m", "z")]])
    assert found == []
    found = whole_generations([[held(5, "m", "x")], [], [held(5, "m", "y")]])
    assert [(g.step, [set(files) for files in g.held]) for g in found] == [
        (5, [{"m", "x"}, set(), {"m", "y"}])
    ]


def test_files_of_two_attempts_do_not_mix():
    """The same step done twice has two manifests; neither is whole with the other's files."""
    one, other = held(5, "m", "x"), held(5, "m", "y", seal="b")
    assert whole_generations([[one], [other]]) == []
    assert [g.step for g in whole_generations([[one, held(9, "m", "x", "y")], [other]])] == [9]


def test_what_is_there_does_not_travel():
    """Ranks on the nodes that wrote a generation need nothing; a node with nothing gets each file once."""
    nodes, sizes = Nodes((0, 0, 1, 1)), {"a": 1, "b": 2, "c": 3, "d": 4}
    at_home = Generation(5, sizes, ({"a", "b"}, {"c", "d"}))
    assert fetching(nodes, at_home, [["a"], ["b"], ["c"], ["d"]]) == []
    copied = Generation(5, sizes, ({"a", "b", "c", "d"}, set()))
    assert fetching(nodes, copied, [["a"], ["b"], ["c", "d"], ["d"]]) == [
        Transfer("c", 3, 0, 2),
        Transfer("d", 4, 1, 2),
    ]


@given(clusters, st.data())
def test_every_node_ends_up_with_what_its_ranks_need(nodes, data):
    """Whoever sends has the file, whoever receives lacks it, and nobody receives it twice."""
    files = [f"f{n}" for n in range(4)]
    held_by = [set(data.draw(st.sets(st.sampled_from(files)))) for _ in range(nodes.count)]
    held_by[0] |= set(files) - set().union(*held_by)
    needed = [data.draw(st.sets(st.sampled_from(files))) for _ in nodes.of]
    have = [set(files) for files in held_by]
    for transfer in fetching(nodes, Generation(1, dict.fromkeys(files, 1), tuple(held_by)), needed):
        assert transfer.file in held_by[nodes.of[transfer.source]]
        assert transfer.file not in have[nodes.of[transfer.target]]
        have[nodes.of[transfer.target]].add(transfer.file)
    for rank, names in enumerate(needed):
        assert names <= have[nodes.of[rank]]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.allot import EMPTY, Allotment, Member, allot, set_aside

A, B, C, D = (Member(name, 2) for name in "abcd")
SMALL = Member("s", 1)


@pytest.mark.parametrize(
    ("pool", "places", "lost", "aside", "min_nodes", "expected"),
    [
        ([A, B], "ab", {}, "", 2, Allotment(("a", "b"))),
        ([A, B, C], "ab", {}, "", 2, Allotment(("a", "b"))),
        # A lost host: waited for until one try has failed, then a spare is better.
        ([A, B, C], "ab", {"b": "trying"}, "", 2, Allotment(("a", "b"), frozenset("b"))),
        ([A, B, C], "ab", {"b": "away"}, "", 2, Allotment(("a", "c"))),
        ([A, B, C, D], "ab", {"b": "gone", "a": "gone"}, "", 2, Allotment(("c", "d"))),
        ([A, B, C, D], "ab", {"b": "gone", "c": "away"}, "", 2, Allotment(("a", "d"))),
        # A spare that is too small is none.
        ([A, B, SMALL], "ab", {"b": "gone"}, "", 1, Allotment(("a", ""))),
        ([SMALL, B, C], "sb", {"s": "gone"}, "", 2, Allotment(("c", "b"))),
        ([SMALL, A, Member("t", 1)], ("", ""), {}, "s", 2, Allotment(("t", "a"))),
        # No spare: wait, then fewer, then nothing.
        ([A, B], "ab", {"b": "away"}, "", 1, Allotment(("a", ""), frozenset("b"))),
        ([A, B], "ab", {"b": "gone"}, "", 1, Allotment(("a", ""))),
        ([A, B], "ab", {"b": "gone"}, "", 2, Allotment(("", ""))),
        # A host that came back fills an empty place.
        ([A, B], ("a", ""), {}, "", 1, Allotment(("a", "b"))),
        # Set aside: others first, fewer next, and it serves where the run would end.
        ([A, B, C], "ab", {}, "b", 2, Allotment(("a", "c"))),
        ([A, B], "ab", {}, "b", 1, Allotment(("a", ""))),
        ([A, B], "ab", {}, "b", 2, Allotment(("a", "b"))),
        ([A, B, C], "ac", {"c": "gone"}, "b", 2, Allotment(("a", "b"))),
        ([A], "a", {}, "a", 1, Allotment(("a",))),
    ],
)
def test_rules(pool, places, lost, aside, min_nodes, expected):
    """Same hosts, then spares in order, then the lost one for a while, then fewer, then whoever failed before."""
    assert allot(pool, tuple(places), lost, set(aside), min_nodes) == expected


@pytest.mark.parametrize(
    ("failures", "expected"),
    [("", ""), ("a", ""), ("aba", ""), ("aa", "a"), ("baac", "a"), ("abaca", "a"), ("aabb", "ab")],
)
def test_set_aside(failures, expected):
    """Two first failures in a row, or three in all."""
    assert set_aside(failures) == set(expected)


@st.composite
def situations(draw):
    pool = [Member(f"h{i}", draw(st.integers(1, 3))) for i in range(draw(st.integers(1, 6)))]
    nodes = draw(st.integers(1, len(pool)))
    places = []
    for home in pool[:nodes]:
        fits = [m.host for m in pool if m.slots >= home.slots and m.host not in places]
        places.append(draw(st.sampled_from([EMPTY, *fits])))
    names = st.sampled_from([m.host for m in pool])
    lost = draw(st.dictionaries(names, st.sampled_from(["trying", "away", "gone"])))
    return pool, tuple(places), lost, draw(st.sets(names)), draw(st.integers(1, nodes))


@given(situations())
def test_any_situation(situation):
    """Nobody holds two places, a place too large, or one while lost; sound holders stay; and fewer than min_nodes
    is nobody at all.
    """
    pool, places, lost, aside, min_nodes = situation
    found = allot(*situation)
    slots = {member.host: member.slots for member in pool}
    held = [host for host in found.places if host]
    assert len(set(held)) == len(held)
    for home, host, before in zip(pool, found.places, places, strict=False):
        if host and host != before:
            assert slots[host] >= home.slots
        if before and before not in lost and before not in aside and held:
            assert host == before
    assert found.waits_for <= {host for host in places if lost.get(host) in ("trying", "away")}
    assert all(host not in lost or host in found.waits_for for host in held)
    if not found.waits_for:
        assert held == [] or len(held) >= min_nodes


@given(situations())
def test_waiting_ends(situation):
    """When nobody is waited for any more there is a decision, and deciding again changes nothing."""
    pool, places, lost, aside, min_nodes = situation
    lost = dict.fromkeys(lost, "gone")
    found = allot(pool, places, lost, aside, min_nodes)
    assert not found.waits_for
    if found.nodes:
        assert allot(pool, found.places, lost, aside, min_nodes) == found

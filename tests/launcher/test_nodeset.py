import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import HostfileError
from launcher.nodeset import MAX_HOSTS, expand, expand_numbers, expand_ranks, fold, fold_numbers

LIST_TEXT = st.text("an-.019[],é٣ \t\n\x00", max_size=24)
NAMES = st.lists(
    st.text("ab0189-", min_size=1, max_size=5) | st.integers(10**18, 10**18 + 20).map("n{}0".format)
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-a", "gpu-a"),
        ("a,b", "a b"),
        ("node[1]", "node1"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[8-011]", "node8 node9 node10 node11"),
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("rack[0-1]n[01-02]-ib", "rack0n01-ib rack0n02-ib rack1n01-ib rack1n02-ib"),
        ("[1-2]x", "1x 2x"),
        ("10.0.0.[9-10]", "10.0.0.9 10.0.0.10"),
        ("node-00[00-01]", "node-0000 node-0001"),
        ("b,a,b[1,1]", "b a b1 b1"),
    ],
)
def test_expand(text, names):
    """Order is as written, the leftmost group varies slowest, padding is the low bound's, repeats stay."""
    assert list(expand(text)) == names.split()


def test_d01_comma_inside_brackets_does_not_split():
    """D01: `cn[1,2]` is two hosts."""
    assert expand("cn[1,2]") == ("cn1", "cn2")


def test_d04_several_groups_with_hyphens_and_padding():
    """D04: hyphens belong to the name, and padding is kept where it was written."""
    expected = [f"tr-16-cn-00{i}" for i in (1, 2, 4)] + [f"tr-17-cn-00{i}" for i in (1, 2, 3)]
    assert list(expand("tr-16-cn-[001-002,004],tr-17-cn-[001-003]")) == expected
    assert expand("node[8-10]") == ("node8", "node9", "node10")
    assert expand("node[08-10]") == ("node08", "node09", "node10")


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("node[1", 5, "not closed"),
        ("node[3-1]", 6, "backwards; write 1-3"),
        ("node[]", 6, "a number is missing"),
        ("node[1,,3]", 8, "a number is missing"),
        ("node[1,3-]", 8, "'3-' is not a number"),
        ("node[a-c]", 6, "'a-c' is not a number"),
        ("node[-1]", 6, "'-1' is not a number"),
        ("node[0-12/4]", 6, "'0-12/4' is not a number"),
        ("node[1[2]]", 5, "not closed"),
        ("node1]", 6, "closes nothing"),
        ("a,,b", 3, "a name is missing"),
        ("a,", 3, "a name is missing"),
        ("", 1, "a name is missing"),
    ],
)
def test_d06_malformed_lists_are_refused_with_position(text, position, what):
    """D06: no malformed list is guessed at; the message says where it goes wrong."""
    with pytest.raises(HostfileError, match=f"character {position}: ") as caught:
        expand(text)
    assert what in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["n[0-65536]", "n[1-999999999999999999]", "n[0-65535],x", "[0-255]" * 3, "[0-9]" * 6000]
)
def test_limits_are_checked_before_expanding(text):
    """A typing error cannot ask for more hosts than a list may hold, and is refused at once."""
    started = time.perf_counter()
    with pytest.raises(HostfileError, match=str(MAX_HOSTS)):
        expand(text)
    assert time.perf_counter() - started < 20, "expanding first takes minutes"


def test_largest_range_is_fast():
    """A range of 64K hosts expands in well under a second."""
    started = time.perf_counter()
    names = expand("node[00000-65535]")
    assert time.perf_counter() - started < 20, "expanding first takes minutes"
    assert (len(names), names[0], names[-1]) == (65536, "node00000", "node65535")


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("", ""),
        ("node07 node02 node01 node03", "node[01-03,07]"),
        ("n10 n9 n8 n2", "n[2,8-10]"),
        ("n8 n08 n9 n09 n10", "n[08-10,8-9]"),
        ("b2 a10 a9 b1", "a[9-10],b[1-2]"),
        ("rack0n1 rack0n2 rack1n1 rack1n2", "rack[0-1]n[1-2]"),
        ("ip-10-0-0-4.ec2.internal ip-10-0-0-5.ec2.internal", "ip-10-0-0-[4-5].ec2.internal"),
        ("worker.1.example.test worker.2.example.test", "worker.[1-2].example.test"),
        ("a a b", "a,a,b"),
    ],
)
def test_fold(names, folded):
    """Folding is in natural order, finds the number that differs wherever it stands, and keeps repeats."""
    assert fold(names.split()) == folded


@settings(deadline=None)
@given(NAMES)
def test_fold_loses_nothing(names):
    """Expanding what was folded gives the same names, each as often."""
    assert Counter(expand(fold(names)) if names else ()) == Counter(names)


@settings(deadline=None)
@given(LIST_TEXT)
def test_any_text_is_a_list_or_a_hostfile_error(text):
    """No text makes any other exception come out, and what is accepted folds back to the same names."""
    for read in (expand, expand_numbers, expand_ranks):
        try:
            found = read(text)
        except HostfileError:
            continue
        assert found
    try:
        names = expand(text)
    except HostfileError:
        return
    assert Counter(expand(fold(names))) == Counter(names)


# Nodelists that Slurm, ClusterShell and we read alike: groups of one padding each, after letters.
RANGE = st.tuples(st.integers(100, 110), st.integers(0, 5))
GROUP = st.builds(
    lambda width, ranges: ",".join(f"{low:0{width}}-{low + more:0{width}}" for low, more in ranges),
    st.sampled_from([3, 5]),
    st.lists(RANGE, min_size=1, max_size=2),
)
NODELIST = st.lists(
    st.builds("{}[{}]{}".format, st.sampled_from("abc"), GROUP, st.sampled_from(["", "-ib"])),
    min_size=1,
    max_size=2,
).map("".join)


@settings(deadline=None)
@given(st.lists(NODELIST, min_size=1, max_size=2))
def test_same_set_as_clustershell(lists):
    """Where the grammars agree, expand and fold mean the same set as ClusterShell's NodeSet."""
    node_set = pytest.importorskip("ClusterShell.NodeSet").NodeSet
    oracle = node_set()
    for each in lists:
        oracle.update(each)
    ours = set(expand(",".join(lists)))
    assert set(oracle) == ours
    assert set(node_set(fold(ours))) == ours


def test_numbers_and_ranks():
    """Numbers keep order and repeats; ranks are a set."""
    assert expand_numbers("3,0-2,3") == (3, 0, 1, 2, 3)
    assert expand_ranks("2-5,0,3") == (0, 2, 3, 4, 5)
    assert fold_numbers([5, 0, 3, 2, 4, 3]) == "0,2-5"
    assert fold_numbers([7]) == "7"
    for text in ("", "a", "2-", "5-2", "1,", "-1", "0-65536", "0-65535,0"):
        with pytest.raises(HostfileError):
            expand_ranks(text)

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from launcher.bench.findings import Finding
from launcher.bench.outliers import outliers, slow

HOSTS = ["a", "b", "c", "d"]


def links(rate_of, latency_of=lambda pair: 1e-4, hosts=HOSTS):
    """A link between any two hosts: 4 MiB at a rate, and an empty message."""
    found = []
    for rank, pair in enumerate(combinations(hosts, 2)):
        for size, seconds in ((4 << 20, (4 << 20) / rate_of(pair)), (8, latency_of(pair))):
            found.append(Finding(pair[0], rank, "link", "hosts", size, seconds, pair[1]))
    return found


def test_one_slow_host_by_its_links():
    """All its links are slow: it is named, and they are not."""
    odd = outliers(links(lambda pair: 1e7 if "c" in pair else 1e9))
    assert [(one.hosts, one.what, one.where) for one in odd] == [(("c",), "link", "rate")]


def test_one_slow_host_of_three():
    """Two of the three links are slow, so the usual link is a slow one; the host is named nevertheless."""
    odd = outliers(links(lambda pair: 1e7 if "c" in pair else 1e9, hosts=HOSTS[:3]))
    assert [one.hosts for one in odd] == [("c",)]


def test_one_slow_link():
    """Both of its hosts are fast with others: the link is named."""
    odd = outliers(links(lambda pair: 1e7 if pair == ("b", "d") else 1e9))
    assert [(one.hosts, one.where) for one in odd] == [(("b", "d"), "rate")]


def test_one_late_host():
    """A long way, at full rate."""
    odd = outliers(links(lambda pair: 1e9, lambda pair: 5e-3 if "a" in pair else 1e-4))
    assert [(one.hosts, one.where) for one in odd] == [(("a",), "latency")]


def test_a_link_alone_is_compared_with_nothing():
    """Of two hosts nobody knows whose fault it is."""
    assert outliers(links(lambda pair: 1e3, hosts=HOSTS[:2])) == []


def test_a_slow_host_by_what_its_ranks_do():
    """Arithmetic of one host at half of the others', drives of another."""
    found = [
        Finding(host, rank, what, where, 1024, 1e9 * (0.5 if host == bad else 1 + 0.02 * rank))
        for rank, host in enumerate(HOSTS)
        for what, where, bad in (("matmul", "fp32", "b"), ("read", "/d", "d"), ("copy", "", ""))
    ]
    assert [(one.hosts, one.what) for one in outliers(found)] == [(("b",), "matmul"), (("d",), "read")]


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=20))
def test_a_tenth_up_and_down_is_usual(values):
    """Nobody is named."""
    assert slow({str(at): value for at, value in enumerate(values)}) == {}


def test_a_noisy_machine_names_nobody():
    """Where values lie far apart anyway, a low one is one of them."""
    assert slow({"a": 1.0, "b": 1.6, "c": 0.7, "d": 1.3, "e": 0.5, "f": 2.0}) == {}

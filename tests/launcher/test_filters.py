import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import HostfileError, UsageError
from launcher.filters import apply_filters
from launcher.hostfile import parse_hostfile

HOSTS = parse_hostfile(
    """
    a slots=4
    b gpus=4-7
    c[01-04] slots=2
    unknown
    [2001:db8::1] slots=2
    d slots=2 port=1
    d slots=2 port=2
    """,
    "hosts",
).hosts


def kept(include=None, exclude=None):
    return {(host.name, host.port): host.slots for host in apply_filters(HOSTS, include, exclude)}


def include(text):
    return {name: slots for (name, _), slots in kept(include=text).items()}


def exclude(text):
    """Only what is different from the hostfile: slots left, or () for a host that is gone."""
    left = kept(exclude=text)
    return {
        h.name: left.get((h.name, h.port), ()) for h in HOSTS if left.get((h.name, h.port), ()) != h.slots
    }


def test_no_filter_keeps_all():
    """Without a filter every host takes part."""
    assert apply_filters(HOSTS, None, None) == HOSTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:0", {"a": (0,)}),
        ("a@b:0,2@c[01-02]", {"a": (0, 1, 2, 3), "b": (0, 2), "c01": (0, 1), "c02": (0, 1)}),
        ("b@a", {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}),
        ("a:3@a:0,0", {"a": (0, 3)}),
        ("a:0@a", {"a": (0, 1, 2, 3)}),
        ("a@a:0", {"a": (0, 1, 2, 3)}),
        ("c[03-04]:1", {"c03": (1,), "c04": (1,)}),
        ("unknown", {"unknown": None}),
        ("unknown:0,2", {"unknown": (0, 2)}),
        ("[2001:DB8::1]:1", {"2001:db8::1": (1,)}),
        ("[2001:db8::1]", {"2001:db8::1": (0, 1)}),
    ],
)
def test_include(text, expected):
    """Named hosts and slots are kept, in hostfile order; repeated names add up."""
    assert include(text) == expected
    assert list(include(text)) == list(expected)


def test_a13_name_without_slots_means_all_of_them():
    """A13: including a host by name gives exactly that host with all its slots."""
    hosts = parse_hostfile("a slots=2\nb slots=2", "hosts").hosts
    assert apply_filters(hosts, "b", None) == (hosts[1],)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", {"a": ()}),
        ("a:0,2", {"a": (1, 3)}),
        ("a:0@a:1,2,3", {"a": ()}),
        ("a@a:0", {"a": ()}),
        ("unknown@c[01-03]", {"unknown": (), "c01": (), "c02": (), "c03": ()}),
        ("[2001:db8::1]:0", {"2001:db8::1": (1,)}),
    ],
)
def test_exclude(text, expected):
    """Named hosts and slots go, all else stays; a host left without slots is gone."""
    assert exclude(text) == expected


def test_devices_follow_their_slots():
    """A slot keeps its physical device."""
    (host,) = apply_filters(HOSTS, "b:1,3", None)
    assert (host.slots, host.devices) == ((1, 3), (5, 7))
    host = apply_filters(HOSTS, None, "b:1,3")[1]
    assert (host.slots, host.devices) == ((0, 2), (4, 6))


def test_name_stands_for_all_its_ports():
    """A filter names hosts, not ports: both places of `d` are meant."""
    assert kept(include="d:1") == {("d", 1): (1,), ("d", 2): (1,)}


def test_both_filters_contradict():
    """Include and exclude together are a usage error."""
    with pytest.raises(UsageError, match="exclude each other"):
        apply_filters(HOSTS, "a", "b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("z", r"no host z; the hosts are 2001:db8::1,a,b,c\[01-04\],d,unknown"),
        ("a@c[04-06]", r"no host c\[05-06\]"),
        ("a:9", "a has no slot 9; it has 0-3"),
        ("a:1,4,5", "a has no slot 4-5; it has 0-3"),
        ("a:", "slots are written host:0,2"),
        ("a:0-2", "slots are written host:0,2"),
        ("a:x", "slots are written host:0,2"),
        ("a:0,b:1", "slots are written host:0,2"),
        ("2001:db8::1:0", "slots are written host:0,2 and an IPv6 address"),
        ("", "a host is missing"),
        ("a@", "a host is missing"),
        (":0", "a host is missing"),
        ("c[1", "not closed"),
    ],
)
def test_refused(text, what):
    """What is malformed or names nothing is refused, by either filter, with what exists."""
    with pytest.raises(HostfileError, match=f"^--include '.*{what}"):
        apply_filters(HOSTS, text, None)
    with pytest.raises(HostfileError, match=f"^--exclude '.*{what}"):
        apply_filters(HOSTS, None, text)


def test_excluding_everything():
    """A run without hosts is refused."""
    with pytest.raises(HostfileError, match="no host is left"):
        apply_filters(HOSTS, None, "a@b@c[01-04]@d@unknown@[2001:db8::1]:0,1")


def test_excluding_slots_of_a_host_that_was_not_asked():
    """Which slots remain cannot be said before the host was asked, so it is refused with the reason."""
    with pytest.raises(HostfileError, match="not known before it is asked"):
        apply_filters(HOSTS, None, "unknown:0")


@settings(deadline=None)
@given(st.text("abcd01249:@,-[]\n é") | st.text())
def test_any_text_is_a_selection_or_a_hostfile_error(text):
    """No text makes any other exception come out; what is kept is a part of what was there."""
    slots = {(host.name, host.port): host.slots for host in HOSTS}
    for filters in ((text, None), (None, text)):
        try:
            left = apply_filters(HOSTS, *filters)
        except HostfileError:
            continue
        assert left
        for host in left:
            there = slots[host.name, host.port]
            assert there is None or set(host.slots) <= set(there)

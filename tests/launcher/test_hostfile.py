from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import HostfileError, UsageError
from launcher.hostfile import MAX_PROBLEMS, Host, Hostfile, load_hostfile, local_hostfile, parse_hostfile

EXAMPLES = sorted((Path(__file__).parents[2] / "hostfiles").glob("*.hostfile"))


def parse(text: str) -> tuple[Host, ...]:
    return parse_hostfile(text, "hosts").hosts


def names(text: str) -> list[str]:
    return [host.name for host in parse(text)]


def problems(text: str) -> list[str]:
    """The problems of a file, each with the line of text below it."""
    with pytest.raises(HostfileError) as caught:
        parse(text)
    lines = str(caught.value).splitlines()
    return ["\n".join(pair) for pair in zip(lines[::2], lines[1::2], strict=True)]


def problem(text: str) -> str:
    (only,) = problems(text)
    return only


# Accepted


def test_a01_unequal_slots():
    """A01: each host has its own number of slots, counted from 0, in the order of the lines."""
    hosts = parse("gpu-a slots=8\ngpu-b slots=2\ngpu-c slots=4\ngpu-d slots=1\n")
    assert [host.name for host in hosts] == ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]
    assert [host.slots for host in hosts] == [tuple(range(count)) for count in (8, 2, 4, 1)]
    assert [host.line for host in hosts] == [1, 2, 3, 4]


def test_a04_bare_names_are_to_be_asked():
    """A04: a name without a count is one rule everywhere: slots are not known (None), never a silent 1."""
    assert [(host.name, host.slots) for host in parse("gpu-a\ngpu-b\ngpu-c")] == [
        ("gpu-a", None),
        ("gpu-b", None),
        ("gpu-c", None),
    ]


def test_a17_identity_is_the_whole_name():
    """A17: names that share their first label are two hosts."""
    text = "worker.1.example.test slots=1\nworker.2.example.test slots=1\n"
    assert names(text) == ["worker.1.example.test", "worker.2.example.test"]


@pytest.mark.parametrize("word", ["2001:db8::1", "[2001:db8::1]", "2001:0DB8:0:0::1", "[2001:DB8::1]"])
def test_a20_ipv6_bare_and_bracketed(word):
    """A20: every spelling of an IPv6 address is the same bare name."""
    assert parse(f"{word} slots=2") == (Host("2001:db8::1", (0, 1), line=1),)
    assert parse(f"train@{word} port=22") == (Host("2001:db8::1", None, user="train", port=22, line=1),)


def test_ipv6_zone_and_ranges_beside_it():
    """A link-local zone belongs to the address; brackets without a colon are a range."""
    assert names("fe80::1%eth0") == ["fe80::1%eth0"]
    assert names("10.0.0.[1-2]\n[1-2]n") == ["10.0.0.1", "10.0.0.2", "1n", "2n"]


def test_b01_one_name_with_several_ports_is_several_places():
    """B01: a place is name and port, so sshds on one address can stand for nodes."""
    hosts = parse("127.0.0.1 port=2201\n127.0.0.1 port=2202\n127.0.0.1")
    assert [host.port for host in hosts] == [2201, 2202, None]


def test_every_option():
    """Options reach their fields."""
    line = "train@gpu-[1-2] slots=2"
    options = "gpus=6,2 port=2222 python=/opt/env/bin/python3.11 workdir=/data/it's;$HOME/#1"
    expected = [
        Host(name, (0, 1), "train", 2222, (6, 2), "/opt/env/bin/python3.11", "/data/it's;$HOME/#1", 1)
        for name in ("gpu-1", "gpu-2")
    ]
    assert list(parse(f"{line} {options}")) == expected


def test_gpus_alone_count_as_slots():
    """`gpus=` without `slots=` gives as many slots; ranges are fine."""
    (host,) = parse("a gpus=2,4-6")
    assert (host.slots, host.devices) == ((0, 1, 2, 3), (2, 4, 5, 6))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_forms(end):
    """BOM, any line end, tabs, blank lines, comments anywhere and a missing last line end change nothing."""
    lines = ["\ufeff# hosts", "", " \t", "\tnode[01-02]\tslots=1 \t# two", "#x", "b \t slots=2   #"]
    assert parse(end.join(lines)) == (
        Host("node01", (0,), line=4),
        Host("node02", (0,), line=4),
        Host("b", (0, 1), line=6),
    )


def test_max_slots_is_ignored_with_one_warning():
    """One warning a file, however many lines say max_slots=."""
    hostfile = parse_hostfile("a slots=2 max_slots=4\nb\nc slots=1 max_slots=4", "hosts")
    assert hostfile.warnings == ("hosts: max_slots= is ignored (line 1,3); slots= is what counts",)
    assert [host.slots for host in hostfile.hosts] == [(0, 1), None, (0,)]
    assert parse_hostfile("a", "hosts").warnings == ()


def test_a_whole_cluster_on_a_line():
    """The largest nodelist is a hostfile like any other."""
    assert len(parse("node[00000-65535] slots=8")) == 65536


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path):
    """Every hostfile that comes with distperf can be used as it is, without a warning."""
    assert EXAMPLES
    hostfile = load_hostfile(path)
    assert hostfile.hosts
    assert not hostfile.warnings


# Refused


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("host:8", "'host slots=8' or 'host port=8'"),
        ("[::1]:22", "'[::1] slots=22' or '[::1] port=22'"),
        ("gpu-a slots = 2", "write 'gpu-a slots=2'"),
        ("gpu-a slots= 2 port =3", "write 'gpu-a slots=2 port=3'"),
        ("slots=2", "host is missing"),
        ("gpu-a SLOTS=2", "did you mean 'slots=2'?"),
        ("gpu-a gpu=2", "did you mean 'gpus=2'?"),
        ("gpu-a colour=red", "options are slots, gpus"),
        ("gpu-a slots=2x", "a number from 1"),
        ("gpu-a slots=0", "leave out a host"),
        ("gpu-a slots=-1", "a number from 1"),
        ("gpu-a slots=", "a number from 1"),
        ("gpu-a slots=99999", "a number from 1 to 9999"),
        ("gpu-a slots=2 slots=2", "slots= is given twice"),
        ("gpu-a slots=3 gpus=0,1", "leave slots= out"),
        ("gpu-a gpus=1,1", "a device twice"),
        ("gpu-a gpus=3-1", "write 1-3"),
        ("gpu-a gpus=all", "such as 2,3"),
        ("gpu-a port=0", "from 1 to 65535"),
        ("gpu-a port=66660", "from 1 to 65535"),
        ("gpu-a python=", "name or full path"),
        ("gpu-a python=bin/python", "name or full path"),
        ("gpu-a python=-c", "name or full path"),
        ("gpu-a python=/bin/sh;reboot", "name or full path"),
        ("gpu-a python=/opt/größe/python", "name or full path"),
        ("gpu-a workdir=", "a folder"),
        ("-oProxyCommand=x", "no '.' or '-' at the start"),
        ("user@-oProxyCommand=x", "no '.' or '-' at the start"),
        ("-l@gpu-a", "not a user name"),
        ("@gpu-a", "not a user name"),
        ("train@", "a name is missing"),
        ("a@b@c", "not a host name"),
        ("gpu_a$(id)", "not a host name"),
        ("größe", "not a host name"),
        ("gpu-a\u00a04", "not a host name"),
        ("gpu-a#note", "not a host name"),
        ("node[3-1]", "character 6"),
        ("a,,b", "character 3"),
        ("2001:db8::zz", "nor an IPv6 address"),
        ("[2001:db8::1", "nor an IPv6 address"),
        ("::1%$(id)", "nor an IPv6 address"),
        ("gpu-a\x00", "control character '\\x00'"),
        ("gpu-a slots=2\x1b[2J", "control character '\\x1b'"),
    ],
)
def test_refused_with_line_text_and_remedy(line, remedy):
    """What is not the grammar is refused with path, line number, the line's own text and what to write."""
    found = problem(f"ok slots=1\n\n{line}\n")
    assert found.startswith("hosts:3: ")
    assert remedy in found
    assert found.endswith(f"\n    {line if line.isprintable() else ascii(line)[1:-1]}")


def test_a03_count_without_key():
    """A03: `host 4` is refused with the corrected spelling, for every such line."""
    assert problems("gpu-a 4\ngpu-b 8\n") == [
        "hosts:1: a number needs its key: write 'gpu-a slots=4'\n    gpu-a 4",
        "hosts:2: a number needs its key: write 'gpu-b slots=8'\n    gpu-b 8",
    ]


def test_a06_pasted_commands():
    """A06: pasted commands are refused, the first with its number, and are never hosts."""
    found = problems("gpu-a slots=2\ngpu-b slots=2\n\n\nmpirun -H a,b -np 2 python t.py\nunset X\nsudo -s\n")
    assert [each.split(":")[1] for each in found] == ["5", "6", "7"]
    assert all("not a command" in each for each in found)


def test_a08_c_style_comment():
    """A08: `//` is not a host; the hint says how comments start."""
    assert problem("// hosts\ngpu-a slots=2\n") == "hosts:1: comments start with '#'\n    // hosts"


def test_a10_typing_error_in_a_key():
    """A10: the message holds path, line number, the text of the line and the nearest key."""
    found = problem("gpu-a slots=8\ngpu-b lots=8\n")
    assert found == "hosts:2: unknown option 'lots=8'; did you mean 'slots=8'?\n    gpu-b lots=8"


@pytest.mark.parametrize(
    ("first", "again", "shown"),
    [
        ("gpu-a slots=2", "gpu-a slots=4", "gpu-a"),
        ("gpu-a", "train@gpu-a", "gpu-a"),
        ("gpu-a port=22", "gpu-a port=22", "gpu-a"),
        ("node[01-04]", "node[03-06]", "node[03-04]"),
        ("[2001:db8::1]", "2001:0db8::1", "2001:db8::1"),
    ],
)
def test_same_place_twice(first, again, shown):
    """A place that comes again is refused with both line numbers, whatever its user or spelling."""
    assert problem(f"{first}\n#\n{again}").startswith(f"hosts:3: {shown} is already on line 1;")


def test_same_name_twice_in_one_list():
    """Repeats inside one nodelist are no way to add slots."""
    assert problem("node[1,1]").startswith("hosts:1: node1 is already on line 1;")


def test_all_problems_at_once():
    """One reading shows every problem, also several of one line, in order."""
    found = problems("a lots=1 port=x\nb slots=2\nc:8\nb\n-x slots=0")
    assert [each.split(":")[1] for each in found] == ["1", "1", "3", "4", "5", "5"]


def test_problems_are_cut_off():
    """A file that is no hostfile at all does not flood the terminal."""
    with pytest.raises(HostfileError) as caught:
        parse("int main() {\n" * 1000 + "x" * 10**6 + " y")
    assert str(caught.value).endswith(f"and {1001 - MAX_PROBLEMS} problems more")
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("text", ["", "\n\n", "# gpu-a slots=2\n", "\ufeff"])
def test_no_host(text):
    """A hostfile without a host is refused."""
    with pytest.raises(HostfileError, match="hosts: no host in this file"):
        parse(text)


WORDS = [
    "a",
    "node[1-2]",
    "u@b",
    "[::1]",
    "::1",
    "c:8",
    "slots=2",
    "slots=x",
    "gpus=1,2",
    "gpus=2-1",
    "4",
    "#",
    "=",
]
LINES = st.lists(st.lists(st.sampled_from(WORDS)).map(" ".join)).map("\n".join)


@settings(deadline=None)
@given(st.text("a1é@:[]-,=/#% \t\n\r\x00\u2028") | st.text() | LINES)
def test_any_text_is_a_hostfile_or_a_hostfile_error(text):
    """No text makes any other exception come out, and no message carries control characters."""
    try:
        hostfile = parse_hostfile(text, "hosts")
    except HostfileError as refused:
        message = str(refused)
    else:
        assert len({(host.name, host.port) for host in hostfile.hosts}) == len(hostfile.hosts) > 0
        assert all(host.slots is None or host.slots for host in hostfile.hosts)
        return
    assert message.startswith("hosts:")
    assert message.replace("\n", "").replace("\t", "").isprintable()


# Files


def test_load(tmp_path):
    """A file is read as UTF-8, with or without BOM, once (it may be a pipe), and its text is kept as it was."""
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfgpu-a slots=1 workdir=/gr\xc3\xb6\r\n")
    hosts = (Host("gpu-a", (0,), workdir="/grö", line=1),)
    assert load_hostfile(path) == Hostfile(str(path), hosts, text="\ufeffgpu-a slots=1 workdir=/grö\r\n")


def test_a11_named_and_unusable(tmp_path):
    """A11: a named hostfile that is missing, a directory, unreadable or empty is an error that names it."""
    empty = tmp_path / "empty"
    empty.touch()
    missing, unreadable = tmp_path / "missing", "/proc/self/mem"  # unreadable for root too
    for path in (missing, tmp_path, unreadable, empty):
        with pytest.raises(HostfileError, match=str(path)) as caught:
            load_hostfile(path)
        assert caught.value.exit_code == 2


def test_not_utf8(tmp_path):
    """Other encodings and binary files are refused with the line."""
    path = tmp_path / "hosts"
    path.write_bytes("gpu-a\ngrö\n".encode("latin-1"))
    with pytest.raises(HostfileError, match=r"hosts:2: not UTF-8"):
        load_hostfile(path)
    path.write_bytes("gpu-a\n".encode("utf-16"))
    with pytest.raises(HostfileError, match=r"hosts:1: not UTF-8"):
        load_hostfile(path)
    path.write_bytes("gpu-a\n".encode("utf-16-le"))
    with pytest.raises(HostfileError, match=r"hosts:1: control character"):
        load_hostfile(path)


def test_local():
    """No hostfile means this machine, with the slots asked for or to be counted."""
    assert local_hostfile(2).hosts == (Host("localhost", (0, 1)),)
    assert local_hostfile(None).hosts == (Host("localhost", None),)
    with pytest.raises(UsageError, match="1 or more"):
        local_hostfile(0)

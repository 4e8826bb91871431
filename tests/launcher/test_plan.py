import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.recipe.mesh import fit_mesh
from launcher.errors import PlacementError
from launcher.hostfile import Host
from launcher.plan import (
    Attempt,
    NodeFacts,
    Program,
    default_env,
    fill_slots,
    label,
    node_token,
    orders,
    place,
    split_axes,
)

PROGRAM = Program(("train.py",), "run-1", "token", "/work", {"A": "1", "KEY": "secret"})
ATTEMPT = Attempt(2, "192.0.2.1", 12345, 3)
FACTS = NodeFacts("/usr/bin/python3", "192.0.2.1", "eth0")
TORCHRUN = set(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    ]
)  # TORCHELASTIC_ERROR_FILE is the agent's to set


def host(name, count, **more):
    return Host(name, None if count is None else tuple(range(count)), **more)


def placed(*counts):
    return place(
        tuple(host(f"h{i}", count) for i, count in enumerate(counts)), lambda rank: {"dp_shard": rank}
    )


def all_orders(placement):
    return [order for node in placement.nodes for order in orders(PROGRAM, placement, node, ATTEMPT, FACTS)]


def test_unequal_slots():
    """A01: 8, 2, 4, 1 slots make 15 ranks in file order; local ranks restart at 0 on each node."""
    ranks = placed(8, 2, 4, 1).ranks
    assert [r.rank for r in ranks] == list(range(15))
    assert [r.local_rank for r in ranks] == [*range(8), 0, 1, *range(4), 0]
    assert [r.node_rank for r in ranks] == [0] * 8 + [1] * 2 + [2] * 4 + [3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_environment_is_torchruns_contract(counts):
    """On any shape the variables say what the placement says, and no name of torchrun's is missing."""
    for order, rank in zip(all_orders(placed(*counts)), placed(*counts).ranks, strict=True):
        env = order["env"]
        assert env.keys() >= TORCHRUN
        assert all(isinstance(value, str) for value in env.values())
        assert int(env["RANK"]) == int(env["ROLE_RANK"]) == order["rank"] == rank.rank
        assert int(env["LOCAL_RANK"]) == order["local_rank"] == rank.local_rank
        assert int(env["LOCAL_WORLD_SIZE"]) == counts[rank.node_rank]
        assert int(env["WORLD_SIZE"]) == int(env["ROLE_WORLD_SIZE"]) == sum(counts)
        assert (int(env["GROUP_RANK"]), int(env["GROUP_WORLD_SIZE"])) == (rank.node_rank, len(counts))


def test_attempt_in_the_environment():
    """Restart counts, rendezvous and run id; the agent store is off in the exact word that torch compares."""
    env = all_orders(placed(2))[0]["env"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("192.0.2.1", "12345")
    assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("1", "3")
    assert (env["TORCHELASTIC_RUN_ID"], env["TORCHELASTIC_USE_AGENT_STORE"]) == ("run-1", "False")
    assert (env["DISTPERF_ATTEMPT"], env["DISTPERF_ADDRESS"]) == ("2", "192.0.2.1")


def test_user_cannot_take_the_contract_away():
    """The recipe's env is passed on, but not over a name that ranks rely on."""
    program = replace(PROGRAM, env={"RANK": "99", "OMP_NUM_THREADS": "7"})
    placement = placed(2)
    order = orders(program, placement, placement.nodes[0], ATTEMPT, FACTS)[1]
    assert order["env"]["RANK"] == "1"
    assert order["env"]["OMP_NUM_THREADS"] == "7"


def test_threads_only_as_a_default():
    """OMP_NUM_THREADS is no order: 1 where several ranks share a node and nobody says otherwise."""
    assert "OMP_NUM_THREADS" not in all_orders(placed(2))[0]["env"]
    assert all_orders(placed(2))[0]["defaults"]["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in all_orders(placed(1))[0]["defaults"]


def test_interface_defaults():
    """gloo and NCCL are told the interface that holds the node's address, where one does."""
    placement = placed(1)
    env = default_env(placement, placement.ranks[0], FACTS)
    assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in default_env(
        placement, placement.ranks[0], replace(FACTS, interface=None)
    )


def test_secrets_are_not_shown():
    """Printing a program shows no environment: secrets are in it."""
    assert "secret" not in repr(PROGRAM)


def test_nodes_have_tokens_of_their_own():
    """Two nodes may be one machine: an agent must not find the other's ranks by its own token."""
    tokens = [order["env"]["DISTPERF_JOB_TOKEN"] for order in all_orders(placed(1, 1))]
    assert tokens == [node_token(PROGRAM, "h0"), node_token(PROGRAM, "h1")]
    assert tokens[0] != tokens[1]


def test_orders_are_json():
    """Start orders travel as JSON, unchanged."""
    assert json.loads(json.dumps(all_orders(placed(2, 1)))) == all_orders(placed(2, 1))


def test_workdir_and_devices_of_the_host():
    """A host's own workdir and devices go into its orders; argv is the interpreter and the program."""
    hosts = (host("a", 2, workdir="/scratch", devices=(2, 3)), host("b", 1))
    first, _, last = all_orders(place(hosts, lambda rank: {}))
    assert (first["cwd"], first["devices"], first["slots"]) == ("/scratch", [2, 3], [0, 1])
    assert (last["cwd"], last["devices"]) == ("/work", None)
    assert first["argv"] == ["/usr/bin/python3", "-u", "train.py"]


@pytest.mark.parametrize(
    ("name", "port", "text"),
    [
        ("gpu-a", None, "gpu-a"),
        ("gpu-a", 22, "gpu-a:22"),
        ("2001:db8::1", None, "2001:db8::1"),
        ("2001:db8::1", 22, "[2001:db8::1]:22"),
    ],
)
def test_label(name, port, text):
    """A host is called by its name, with the port where one is given; IPv6 gets brackets only beside a port."""
    assert label(Host(name, (0,), port=port)) == text


def test_labels_are_whole_names():
    """A17: names that share a first label are two nodes."""
    ranks = place((host("w.1.example.test", 1), host("w.2.example.test", 1)), lambda rank: {}).ranks
    assert [r.host for r in ranks] == ["w.1.example.test", "w.2.example.test"]


@pytest.mark.parametrize(
    ("counts", "nproc", "devices", "slots"),
    [
        ((2, None), None, {}, [2, None]),
        ((2, None), None, {"h1": 4}, [2, 4]),
        ((None,), None, {"h0": 0}, [1]),
        ((None, None), 3, {"h0": 8}, [3, 3]),
        ((2,), None, {"h0": 8}, [2]),
    ],
)
def test_fill_slots(counts, nproc, devices, slots):
    """Own slots, else nproc, else the devices found, 1 on a CPU node; who was not asked keeps none."""
    hosts = fill_slots(tuple(host(f"h{i}", count) for i, count in enumerate(counts)), nproc, devices)
    assert [None if h.slots is None else len(h.slots) for h in hosts] == slots


def test_nproc_beside_slots_is_refused():
    """Two numbers for one thing: the text names both."""
    with pytest.raises(PlacementError, match=r"nproc=2.*h0"):
        fill_slots((host("h0", 4), host("h1", None)), 2, {})


def test_an_axis_that_hosts_cut_is_told():
    """tp inside hosts says nothing; with three slots a host, the group that lies on two is named."""
    mesh = fit_mesh(6, tp=2)
    even = (Host("a", slots=(0, 1, 2, 3)), Host("b", slots=(0, 1)))
    assert split_axes(place(even, mesh.coordinates)) == []
    odd = (Host("a", slots=(0, 1, 2)), Host("b", slots=(0, 1, 2)))
    (warning,) = split_axes(place(odd, mesh.coordinates))
    assert "parallel.tp is 2: 1 of 3 groups lie on several hosts (ranks 2, 3 on a, b)" in warning

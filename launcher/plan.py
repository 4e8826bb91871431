"""Plan and placement: which rank is where, with which coordinates and environment. Pure.

Slots are filled host by host in hostfile order: global ranks follow the file, local ranks restart at 0 on each host,
and nothing assumes equal hosts.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

from distperf import contract
from launcher.errors import PlacementError
from launcher.hostfile import Host
from launcher.setup import UNCHANGED, Changes


@dataclass(frozen=True)
class PlacedRank:
    """One rank: place and coordinates."""

    rank: int
    local_rank: int
    slot: int
    host: str
    node_rank: int
    coordinates: dict[str, int]


@dataclass(frozen=True)
class Node:
    """One host taking part, with its ranks."""

    host: Host
    node_rank: int
    ranks: tuple[PlacedRank, ...]


@dataclass(frozen=True)
class Placement:
    """All nodes in order."""

    nodes: tuple[Node, ...]

    @property
    def ranks(self) -> tuple[PlacedRank, ...]:
        """All ranks in order."""
        return tuple(rank for node in self.nodes for rank in node.ranks)

    @functools.cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


def fill_slots(hosts: tuple[Host, ...], nproc: int | None, devices: dict[str, int]) -> tuple[Host, ...]:
    """Give every host its slots: its own, else nproc, else its device count (1 on a CPU node).

    `devices`: what a probe found, by host label; a host that is neither here nor has slots keeps None.
    Raises PlacementError when nproc stands beside explicit slots.
    """
    explicit = [host.name for host in hosts if host.slots is not None]
    if nproc is not None and explicit:
        raise PlacementError(
            f"nproc={nproc} cannot stand beside the slots that the hostfile gives for {explicit[0]}: "
            "take away one of the two"
        )
    return tuple(host if host.slots is not None else _fill(host, nproc, devices) for host in hosts)


def _fill(host: Host, nproc: int | None, devices: dict[str, int]) -> Host:
    if nproc is None and label(host) not in devices:
        return host
    count = nproc if nproc is not None else max(1, devices[label(host)])
    return dataclasses.replace(host, slots=tuple(range(count)))


def label(host: Host) -> str:
    """What a host is called in messages and logs: its name, with the port where one is given."""
    name = f"[{host.name}]" if ":" in host.name and host.port is not None else host.name
    return name if host.port is None else f"{name}:{host.port}"


def first_slots(hosts: tuple[Host, ...], count: int) -> tuple[Host, ...]:
    """The hosts with their first `count` slots in order; those that have none of them are left out."""
    taken = []
    for host in hosts:
        slots = (host.slots or ())[:count]
        if slots:
            devices = host.devices and host.devices[: len(slots)]
            taken.append(dataclasses.replace(host, slots=slots, devices=devices))
        count -= len(slots)
    return tuple(taken)


def place(hosts: tuple[Host, ...], coordinates: Any) -> Placement:
    """Fill the slots in order. `coordinates(rank) -> dict` names each rank's place in the mesh."""
    nodes: list[Node] = []
    first = 0
    for node_rank, host in enumerate(hosts):
        assert host.slots is not None
        ranks = tuple(
            PlacedRank(first + i, i, slot, label(host), node_rank, coordinates(first + i))
            for i, slot in enumerate(host.slots)
        )
        nodes.append(Node(host, node_rank, ranks))
        first += len(ranks)
    return Placement(tuple(nodes))


INSIDE_A_HOST = ("tp", "cp")  # axes that communicate in every layer


def split_axes(placement: Placement) -> list[str]:
    """Warnings of axes that communicate in every layer and yet have ranks of one group on several hosts."""
    warnings = []
    for axis in INSIDE_A_HOST:
        groups: dict[tuple[int, ...], list[PlacedRank]] = {}
        for rank in placement.ranks:
            others = tuple(place for name, place in rank.coordinates.items() if name != axis)
            groups.setdefault(others, []).append(rank)
        split = [ranks for ranks in groups.values() if len({rank.node_rank for rank in ranks}) > 1]
        if split:
            ranks, hosts = split[0], list(dict.fromkeys(rank.host for rank in split[0]))
            warnings.append(
                f"parallel.{axis} is {len(ranks)}: {len(split)} of {len(groups)} groups lie on several hosts (ranks "
                f"{', '.join(str(rank.rank) for rank in ranks)} on {', '.join(hosts)}) and send in every layer over "
                f"the network; give each host slots in multiples of tp x cp"
            )
    return warnings


def planned_ranks(placement: Placement) -> list[dict[str, Any]]:
    """The ranks as the journal has them: where each is, but for its slot."""
    return [
        {key: value for key, value in dataclasses.asdict(rank).items() if key != "slot"}
        for rank in placement.ranks
    ]


@dataclass(frozen=True)
class Attempt:
    """What differs from attempt to attempt."""

    number: int
    address: str  # of node 0, as the other nodes reach it
    port: int
    max_restarts: int


@dataclass(frozen=True)
class Program:
    """What every rank runs: argv after the interpreter, and the run's own variables."""

    args: tuple[str, ...]
    run_id: str
    token: str
    workdir: str
    env: dict[str, str] = field(repr=False)
    warm_start: bool | Literal["auto"] = "auto"
    log_limit_bytes: int | None = None
    memory_dir: str | None = None  # where nodes keep checkpoints in memory


@dataclass(frozen=True)
class NodeFacts:
    """What was learned about a node before the start."""

    python: str
    address: str
    interface: str | None
    setup: Changes = UNCHANGED


def node_token(program: Program, host: str) -> str:
    """What every process of the run on a host carries, in each attempt. Hosts may be one machine: each agent ends its
    own only. (A checksum stands for the label, which may hold dashes and what no variable should.)
    """
    return f"{program.token}-{zlib.crc32(host.encode()):08x}"


def rank_env(
    program: Program, placement: Placement, rank: PlacedRank, attempt: Attempt, facts: NodeFacts
) -> dict[str, str]:
    """The variables that a rank must have: torchrun's contract in full, distperf's own, then the recipe's env, less
    what launch.setup, which has seen it, has made of it.
    """
    touched = {*facts.setup.env, *facts.setup.unset}
    world, nodes = placement.world_size, len(placement.nodes)
    local_world = len(placement.nodes[rank.node_rank].ranks)
    return {
        **{name: value for name, value in program.env.items() if name not in touched},
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank.node_rank),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": attempt.address,
        "MASTER_PORT": str(attempt.port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(attempt.max_restarts),
        "TORCHELASTIC_RUN_ID": program.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store itself
        contract.RUN_ID_ENV: program.run_id,
        contract.TOKEN_ENV: node_token(program, rank.host),
        contract.ATTEMPT_ENV: str(attempt.number),
        contract.ADDRESS_ENV: facts.address,
        "PYTHONUNBUFFERED": "1",
    }


def default_env(placement: Placement, rank: PlacedRank, facts: NodeFacts) -> dict[str, str]:
    """Variables that a rank gets only where neither its node nor the recipe sets them."""
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if len(placement.nodes[rank.node_rank].ranks) > 1:
        defaults["OMP_NUM_THREADS"] = (
            "1"  # torchrun's rule: ranks that share a node must not fight for its cores
        )
    if facts.interface:
        defaults["GLOO_SOCKET_IFNAME"] = facts.interface
        defaults["NCCL_SOCKET_IFNAME"] = facts.interface
    return defaults


TRAINING = ("-m", "distperf.train")
TRAINING_MODULES = {"distperf.train": "", "torch._dynamo": ""}
# What a script is likely to need, by what its text must hold. Optimizers, DDP and FSDP import torch._dynamo when they
# are first used, and that takes as long as torch itself.
IMPORTS_TORCH = r"(?m)^[ \t]*(from[ \t]+torch\b|import[ \t]+([^#\n]*[\s,])?torch\b)"
USES_DYNAMO = r"\boptim\b|\bDDP\b|DistributedDataParallel|fully_shard|FSDP|FullySharded|torch\.compile"


def warm(program: Program, node: Node, max_restarts: int) -> dict[str, Any] | None:
    """How a node's ranks may be forked from one process that has done their imports (launcher.protocol.Start).

    auto: where it pays. One rank is started directly, and finds the process when it is restarted; a script must
    import torch itself, since what it imports through others is not looked for.
    """
    is_training, auto, alone = program.args == TRAINING, program.warm_start == "auto", len(node.ranks) == 1
    if not program.warm_start or (auto and alone and not max_restarts):
        return None
    script_modules = {
        "torch": IMPORTS_TORCH if auto else "",
        "torch.distributed": "",
        "torch._dynamo": USES_DYNAMO,
    }
    return {
        "modules": TRAINING_MODULES if is_training else script_modules,
        "wait": not (auto and alone),
    }


def orders(
    program: Program, placement: Placement, node: Node, attempt: Attempt, facts: NodeFacts
) -> list[dict[str, Any]]:
    """The start orders of one node, as the agent takes them (launcher.protocol.Start)."""
    host = node.host
    return [
        {
            "rank": rank.rank,
            "local_rank": rank.local_rank,
            "argv": [facts.python, "-u", *program.args],
            "env": rank_env(program, placement, rank, attempt, facts),
            "setup": facts.setup.wire(),
            "log_limit_bytes": program.log_limit_bytes,
            "memory_dir": program.memory_dir,
            "defaults": default_env(placement, rank, facts),
            "cwd": host.workdir or program.workdir,
            "slots": list(host.slots or ()),
            "devices": None if host.devices is None else list(host.devices),
        }
        for rank in node.ranks
    ]

"""Where ranks meet: the device a rank uses, the store and the process group, bound to one address.

Torch's store and gloo let anyone in who can reach their ports, so they must not listen on every interface:
the store's socket is made here, on (MASTER_ADDR, MASTER_PORT), and gloo and NCCL are given the interface that
has DISTPERF_ADDRESS.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from distperf.contract import ADDRESS_ENV
from distperf.errors import DistperfError

# Above the time the slowest legitimate wait takes (a cold file system while rank 0 writes a manifest); a hung
# collective is noticed much sooner by the launcher's stall watch.
GROUP_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Ranks:
    """Place of this process among the ranks, from torchrun's variables."""

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    agent_store: bool  # torchrun's agent already serves the store on the master port

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Ranks:
        """Read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
        try:
            return cls(
                rank=int(environ["RANK"]),
                world_size=int(environ["WORLD_SIZE"]),
                local_rank=int(environ["LOCAL_RANK"]),
                node_rank=int(environ.get("GROUP_RANK", "0")),
                num_nodes=int(environ.get("GROUP_WORLD_SIZE", "1")),
                master_addr=environ["MASTER_ADDR"].strip("[]"),
                master_port=int(environ["MASTER_PORT"]),
                agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
        except (KeyError, ValueError) as error:
            raise DistperfError(
                f"cannot join the other ranks: environment variable {error}. Start this with "
                "`distperf launch` or torchrun"
            ) from error


def pick_device(local_rank: int, visible: int) -> torch.device:
    """The device of a rank: by local rank, or the only one this process can see (SLURM's one GPU a task)."""
    if visible == 0:
        return torch.device("cpu")
    if visible > 1 and local_rank >= visible:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DistperfError(
            f"local rank {local_rank} has no GPU: {visible} are visible (CUDA_VISIBLE_DEVICES={shown}). "
            "Give the host fewer slots"
        )
    return torch.device("cuda", local_rank if visible > 1 else 0)


def join(ranks: Ranks, timeout: timedelta = GROUP_TIMEOUT) -> tuple[torch.device, Store]:
    """Meet the other ranks; afterwards torch's default process group is theirs.

    Raises:
        DistperfError: the master port is taken, or the address is not this node's.
    """
    device = pick_device(ranks.local_rank, torch.cuda.device_count())
    use_interface_of(os.environ.get(ADDRESS_ENV, ""))
    store = _store(ranks, timeout)
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    dist.init_process_group(
        backend,
        store=store,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    return device, store


def leave() -> None:
    """Leave together, so that no rank closes its connections while another still waits for it."""
    dist.barrier()
    dist.destroy_process_group()


def exchange(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Every rank gives a JSON value and gets all ranks' values in rank order. No pickle crosses the network.

    `group`: all ranks in a group of another thread's, where this one must not get between training's collectives.

    Cost: (world size - 1) x the longest text in bytes to each rank; that much times world size of memory.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    lengths = [int(length) for length in _gather(torch.tensor([len(text)], device=device), group)]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(text)] = text
    rows = _gather(padded, group)
    return [json.loads(row[:n].numpy().tobytes()) for row, n in zip(rows, lengths, strict=True)]


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Every rank's tensor, on the CPU; all have the same shape."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor, group=group)
    return [each.cpu() for each in gathered]


def use_interface_of(address: str) -> None:
    """Make gloo and NCCL listen on the interface that has `address` only, unless the user chose another."""
    interface = interface_of(address) if address else None
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault(
            "NCCL_SOCKET_IFNAME", f"={interface}"
        )  # "=": this name, not names that begin so


def interface_of(address: str) -> str | None:
    """Name of the network interface that has this address (or host name); None when it is not this node's."""
    try:
        infos = socket.getaddrinfo(address.strip("[]"), None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return None
    wanted = {ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            own = ipaddress.ip_address(entry.address.partition("%")[0])
            # The whole of 127.0.0.0/8 is this node's, though only 127.0.0.1 is listed.
            if own in wanted or (own.is_loopback and any(ip.is_loopback for ip in wanted)):
                return name
    return None


def _store(ranks: Ranks, timeout: timedelta) -> TCPStore:
    serve = ranks.rank == 0 and not ranks.agent_store
    return TCPStore(
        ranks.master_addr,
        ranks.master_port,
        ranks.world_size,
        is_master=serve,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=_listen(ranks.master_addr, ranks.master_port) if serve else None,
    )


def _listen(host: str, port: int) -> int:
    """A listening socket on exactly this address; the store takes its descriptor over and closes it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            return listener.detach()
    except OSError as error:
        raise DistperfError(_why_not_listening(host, port, error)) from error


def _why_not_listening(host: str, port: int, error: OSError) -> str:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        owner = _owner_of(port)
        held = f"it is held by process {owner}" if owner else "by a process this user cannot see"
        return f"cannot serve the rendezvous on {shown}: address already in use, {held}. Use another port"
    return f"cannot serve the rendezvous on {shown}: {error.strerror}"


def _owner_of(port: int) -> str | None:
    """`PID (name)` of whoever listens on a TCP port, where this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr or not connection.pid:
                continue
            if connection.laddr.port == port:
                return f"{connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        return None
    return None

"""The device of a rank, and the sockets it listens on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest
import torch
from train_program import free_port, make_spec, training

from distperf.errors import DistperfError
from distperf.process_group import Ranks, interface_of, pick_device
from distperf.recipe.runspec import to_json


@pytest.mark.parametrize(
    ("local_rank", "visible", "device"),
    [(0, 0, "cpu"), (3, 0, "cpu"), (3, 8, "cuda:3"), (3, 1, "cuda:0"), (0, 1, "cuda:0")],
)
def test_the_device_follows_what_is_visible_d07(local_rank, visible, device):
    """D07: by local rank, but 0 where the scheduler shows each task one GPU of its own."""
    assert pick_device(local_rank, visible) == torch.device(device)


def test_more_ranks_than_gpus_is_explained_d07():
    """D07: the mismatch is named, not an "invalid device ordinal" later."""
    with pytest.raises(DistperfError, match="local rank 2 has no GPU: 2 are visible"):
        pick_device(2, 2)


def test_the_interface_of_an_address():
    """Loopback in all its addresses is lo; an address of another machine has none here."""
    loopback = interface_of("127.0.0.1")
    assert loopback in psutil.net_if_addrs()
    assert interface_of("127.0.0.2") == loopback
    assert interface_of("192.0.2.77") is None


def test_ranks_from_torchrun_variables():
    """Bracketed IPv6 is taken as the address that it is; a missing variable is named."""
    place = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "[::1]",
        "MASTER_PORT": "29500",
    }
    assert Ranks.from_env(place) == Ranks(3, 4, 1, 0, 1, "::1", 29500, False)
    with pytest.raises(DistperfError, match="WORLD_SIZE"):
        Ranks.from_env({"RANK": "0"})


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nothing_listens_on_every_interface_a20(tmp_path, address):
    """The store and gloo listen on loopback only when that is the chosen address; IPv6 works (A20)."""
    spec = make_spec(tmp_path, world=2, zero=3, steps=100000)
    with training(spec, MASTER_ADDR=address, DISTPERF_ADDRESS=address) as ranks:
        ranks.wait_until(lambda: bool(ranks.ranks[0].of("progress")))
        listening = [
            connection.laddr.ip
            for rank in ranks.ranks
            for connection in psutil.Process(rank.process.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert address in listening
    assert set(listening) <= {"127.0.0.1", "::1"}


@pytest.mark.slow
def test_a_taken_port_is_named_with_its_owner_c10(tmp_path):
    """C10: host:port and the process that holds it, also in torch's error file; no traceback."""
    error_file = tmp_path / "error.json"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        spec = make_spec(tmp_path)
        with training(spec, MASTER_PORT=port, TORCHELASTIC_ERROR_FILE=str(error_file)) as ranks:
            assert ranks.wait() == [1]
    assert f"127.0.0.1:{port}: address already in use, it is held by process {os.getpid()} (" in ranks.output
    assert "Traceback" not in ranks.output
    assert f"127.0.0.1:{port}" in error_file.read_text()


@pytest.mark.slow
def test_plain_torchrun_will_do(tmp_path):
    """Without any launcher of ours: torchrun's own agent serves the store."""
    spec = to_json(make_spec(tmp_path, world=2, steps=3))
    place = ["--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *place, "-m", "distperf.train"],
        env={**os.environ, "DISTPERF_RUNSPEC": spec, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, "done: 3 steps" in done.stdout) == (0, True), done.stderr

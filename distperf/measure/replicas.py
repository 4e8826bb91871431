"""A guard against silent damage: ranks that must hold equal weights are asked whether they do, to the bit.

Which ranks must is read off the parameters: those that have the same part of the same parameter. So it holds on any
mesh: for copies over data-parallel ranks, for what tensor-parallel ranks have whole, for the shards of hybrid
sharding, and for an embedding that two pipeline stages share.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distperf.errors import DistperfError
from distperf.measure.minority import agree, disagreements, shared
from distperf.process_group import exchange

CHUNK = 1 << 16  # elements hashed at a time: what is multiplied stays in a CPU's cache
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NAMED = 3  # parameters and ranks that a message names


class Replicas:
    """The weights of this rank, to be compared with those of others that should be the same."""

    def __init__(self, parts: Sequence[nn.Module], tied: Collection[str] = ()) -> None:
        """`parts`: of the model, on this rank. `tied`: names of parameters that other pipeline stages have too."""
        self._parts = parts
        self._tied = frozenset(tied)
        self._checked = 0
        self._shared: set[str] | None = None  # scopes that other ranks have too; learnt at the first check

    def check(self, step: int) -> None:
        """Compare after `step`. Collective.

        Raises:
            DistperfError: on every rank, when contents differ; names the odd ranks, their hosts, and parameters.

        Cost: reads the weights that other ranks have too; about a hundred bytes to each rank.
        """
        scopes: dict[str, dict[str, Tensor]] = {}
        for scope, label, tensor in self._pieces():
            scopes.setdefault(scope, {})[label] = tensor
        keyed = {_key(scope, pieces): pieces for scope, pieces in scopes.items()}
        if self._shared is None:
            self._shared = shared(exchange(sorted(keyed)))
        hashes = {
            key: {label: content_hash(tensor) for label, tensor in pieces.items()}
            for key, pieces in keyed.items()
            if key in self._shared
        }
        held = exchange({key: _combined(list(each.values())) for key, each in hashes.items()})
        if not agree(held):
            self._refuse(step, {label: found for each in hashes.values() for label, found in each.items()})
        self._checked = step

    def _pieces(self) -> Iterator[tuple[str, str, Tensor]]:
        """Scope, label and contents of all parameters: equal labels say equal contents, and scopes group them.

        A scope's labels are held together: a rank that has one of them has all.
        """
        for part in self._parts:
            for fqn, parameter in part.named_parameters():
                place = _place(parameter)
                scope = f"{place} {fqn}" if fqn in self._tied else place
                yield scope, f"{fqn} {place}".rstrip(), local_part(parameter)

    def _refuse(self, step: int, own: dict[str, int]) -> None:
        answers = exchange({"host": socket.gethostname(), "held": own})
        found = disagreements([answer["held"] for answer in answers])
        assert found, "scopes that differ have tensors that differ"
        lines = []
        for entry in found:
            names = _few(entry.names, "parameters")
            ranks = _few([f"{rank} ({answers[rank]['host']})" for rank in entry.odd], "ranks")
            if entry.others:
                lines.append(
                    f"rank {ranks} differs from rank {_few(list(map(str, entry.others)), 'ranks')} in {names}"
                )
            else:
                lines.append(f"rank {ranks} hold different {names}, and no majority says which is right")
        raise DistperfError(
            f"step {step}: ranks that must hold equal weights do not, since some step after {self._checked}: "
            + "; ".join(lines)
            + ". Suspect the memory of these hosts first. Nothing was saved since; a restart goes on from the last "
            "checkpoint"
        )


def _place(parameter: Tensor) -> str:
    """Which part of a parameter this rank has, as far as it is divided: "dp_shard 1, tp 0"."""
    if not isinstance(parameter, DTensor):
        return ""
    mesh, coordinates = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    assert coordinates is not None, "a rank outside the mesh has no part of it"
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    zipped = zip(names, coordinates, parameter.placements, strict=True)
    return ", ".join(f"{name} {at}" for name, at, placement in zipped if not placement.is_replicate())


def local_part(parameter: Tensor) -> Tensor:
    """The contents that this rank has of a parameter."""
    plain = parameter.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


@torch.no_grad()
def content_hash(tensor: Tensor) -> int:
    """64 bits that tell contents from others: any change of one element changes them, whatever the dtype.

    Of the elements' raw bits w, the sum over CHUNK elements of (w ^ w >> half), each times an odd number of its own;
    these sums are then digested. Integers wrap and no float is added, so it is the same on every device.

    Cost: reads the tensor; one CPU core takes 0.3 billion elements a second.
    """
    words = tensor.contiguous().view(-1).view(WORDS[tensor.element_size()])
    half = 4 * words.element_size() - 1
    low = (1 << half + 2) - 1  # what an unsigned shift by half would leave
    length = min(CHUNK, words.numel())
    # 2^64 / golden ratio: odd numbers that are far apart, also when cut to fewer bits
    steps = torch.arange(1, 2 * length, 2, device=words.device) * -7046029254386353131
    odd, mixed = (steps >> 32 | 1).to(words.dtype), torch.empty_like(words[:length])
    sums = []
    for start in range(0, words.numel(), CHUNK):
        chunk = words[start : start + CHUNK]
        part = torch.bitwise_right_shift(chunk, half, out=mixed[: chunk.numel()])
        part.bitwise_and_(low).bitwise_xor_(chunk).mul_(odd[: chunk.numel()])
        sums.append(part.sum(dtype=max(torch.int32, words.dtype, key=lambda dtype: dtype.itemsize)))
    return _combined(torch.stack(sums).tolist()) if sums else 0


def _combined(hashes: Sequence[int]) -> int:
    digest = hashlib.blake2b(repr(list(hashes)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _key(scope: str, labels: Collection[str]) -> str:
    """What a scope is called among ranks: the same only where it has the same labels."""
    digest = hashlib.blake2b("\0".join(sorted(labels)).encode(), digest_size=8).hexdigest()
    return f"{scope} {digest}"


def _few(items: Sequence[str], what: str) -> str:
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more} more {what}" if more > 0 else "")

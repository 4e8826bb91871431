"""Who shares what: the ranks that state is divided by, those with copies of it, and whose copy counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from distperf.parallel.collectives import Peers
from distperf.parallel.mesh import Mesh

SHARD_AXES = ("dp_shard", "cp")


@dataclass(frozen=True)
class Sharing:
    """One rank's relations to the others. A parameter is `divided` (over tp) and `tied` (to another stage) or not."""

    shards: Peers  # state is divided by these ranks
    copies: Peers  # these hold copies of the same shard (dp_replicate)
    ends: Peers  # first and last pipeline stage, which both hold tied parameters
    is_first_copy: bool
    is_first_tensor_rank: bool
    is_first_end: bool

    @classmethod
    def of(cls, mesh: Mesh, device: torch.device, *, ties: bool) -> Sharing:
        """From the mesh; `ties`: first and last pipeline stage have tied parameters, on ranks of their own.

        Collective.
        """
        at = mesh.coordinates
        ends = mesh.ends("pp") if ties else None
        return cls(
            shards=Peers.of(mesh.group(*SHARD_AXES), device),
            copies=Peers.of(mesh.group("dp_replicate"), device),
            ends=Peers.of(ends, device),
            is_first_copy=at["dp_replicate"] == 0,
            is_first_tensor_rank=at["tp"] == 0,
            is_first_end=at["pp"] == 0 or ends is None,
        )

    @classmethod
    def alone(cls) -> Sharing:
        """Of a rank without others."""
        nobody = Peers.of(None, torch.device("cpu"))
        return cls(nobody, nobody, nobody, True, True, True)

    @property
    def multiple_of(self) -> int:
        """What sizes of buckets are rounded up to, so that all of these divide them."""
        return self.shards.size * self.copies.size * self.ends.size

    def sums(self, tied: bool) -> tuple[Peers, ...]:
        """Over whom a shard's gradients are added up, after those that it is a shard of."""
        return tuple(
            peers for peers in (self.ends if tied else None, self.copies) if peers and peers.size > 1
        )

    def counts(self, divided: bool, tied: bool) -> bool:
        """Whether this rank's copy is the one of its equals that is saved and enters the gradient norm."""
        return (
            self.is_first_copy and (divided or self.is_first_tensor_rank) and (self.is_first_end or not tied)
        )

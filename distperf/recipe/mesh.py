"""The shape of the mesh: how many ranks along each axis, and which coordinates a rank has. Pure arithmetic."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distperf.errors import MeshError


@dataclass(frozen=True)
class MeshShape:
    """Sizes of the axes, outermost first: neighbouring ranks differ in `tp`, the axis that communicates most."""

    pp: int = 1  # pipeline stages
    dp_replicate: int = 1  # copies of the whole sharded model
    dp_shard: int = 1  # ranks that state is divided by (ZeRO)
    cp: int = 1  # parts of a sequence
    tp: int = 1  # parts of a layer

    def __post_init__(self) -> None:
        for axis, size in self.sizes().items():
            if size < 1:
                raise MeshError(
                    f"the mesh axis {axis} has size {size}; it takes a whole number of at least 1"
                )

    def sizes(self) -> dict[str, int]:
        """Axis -> size, outermost first."""
        return dataclasses.asdict(self)

    @property
    def product(self) -> int:
        """How many ranks the mesh has."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_parallel_size(self) -> int:
        """How many ranks see different samples: not the world size where one sample occupies several ranks."""
        return self.dp_replicate * self.dp_shard

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis -> place of `rank` on it, row-major."""
        assert 0 <= rank < self.product, (rank, self)
        places: dict[str, int] = {}
        for axis, size in reversed(self.sizes().items()):
            rank, places[axis] = divmod(rank, size)
        return dict(reversed(places.items()))

    def __str__(self) -> str:
        return " x ".join(f"{axis} {size}" for axis, size in self.sizes().items())


def fit_mesh(
    world_size: int,
    *,
    pp: int = 1,
    dp_replicate: int = 1,
    dp_shard: int | None = None,
    cp: int = 1,
    tp: int = 1,
) -> MeshShape:
    """The mesh of `world_size` ranks; `dp_shard` None takes what the other axes leave.

    Raises: MeshError with the product and every factor where they do not multiply to the world size.
    """
    others = MeshShape(pp, dp_replicate, 1, cp, tp)
    mesh = dataclasses.replace(others, dp_shard=dp_shard or max(1, world_size // others.product))
    if mesh.product == world_size:
        return mesh
    if dp_shard is None:
        text = f"{world_size} ranks are not a multiple of {others.product} ({others} without dp_shard)"
    else:
        left, rest = divmod(world_size, others.product)
        fitting = f"; dp_shard: {left} (or auto) would fit" if left and not rest else ""
        text = f"the mesh takes {mesh.product} ranks ({mesh}), but there are {world_size}{fitting}"
    raise MeshError(text)

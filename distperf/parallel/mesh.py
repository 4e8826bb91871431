"""The mesh of ranks as process groups: who shares what with whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import GroupName

from distperf.recipe.mesh import MeshShape


@dataclass(frozen=True)
class Mesh:
    """This rank's place in the mesh, and the groups of ranks that differ from it along some axes only."""

    shape: MeshShape
    coordinates: dict[str, int]
    _devices: DeviceMesh | None  # the axes of more than one rank; None: this rank is alone
    _flattened: dict[tuple[str, ...], DeviceMesh] = field(default_factory=dict)

    def size(self, *axes: str) -> int:
        """How many ranks differ along these axes."""
        return math.prod(self.shape.sizes()[axis] for axis in axes)

    def device_mesh(self, *axes: str) -> DeviceMesh | None:
        """The ranks along these axes as one dimension; None where that is this rank alone.

        Collective at the first call for axes of which more than one has several ranks: all ranks of the mesh call.
        """
        named = tuple(axis for axis in axes if self.shape.sizes()[axis] > 1)
        if not named or self._devices is None:
            return None
        if len(named) == 1:
            return self._devices[named[0]]
        if named not in self._flattened:
            self._flattened[named] = self._devices[named]._flatten("_".join(named))
        return self._flattened[named]

    def hybrid(self, replicated: str, divided: tuple[str, ...]) -> DeviceMesh | None:
        """Two dimensions: copies along `replicated`, each divided along `divided`; one where one has one rank."""
        outer, inner = self.device_mesh(replicated), self.device_mesh(*divided)
        if outer is None or inner is None:
            return inner or outer
        return DeviceMesh._concatenate([outer, inner])  # as fully_shard itself joins its mesh and that of tp

    def ends(self, axis: str) -> dist.ProcessGroup | None:
        """The first and the last rank along an axis; None for ranks between them. Collective.

        Cost: a new process group for each line of ranks along the axis.
        """
        size = self.size(axis)
        assert size > 1, "one rank is both ends"
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.shape.product):
            at = self.shape.coordinates(rank)
            lines.setdefault(tuple(place for name, place in at.items() if name != axis), []).append(rank)
        groups = {(line[0], line[-1]): dist.new_group([line[0], line[-1]]) for line in lines.values()}
        own = next((pair for pair in groups if dist.get_rank() in pair), None)
        return None if own is None else groups[own]

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """The ranks along these axes as a process group; None where that is this rank alone."""
        mesh = self.device_mesh(*axes)
        return None if mesh is None else mesh.get_group()


def alone(device: torch.device) -> DeviceMesh:
    """The one rank of a run without others, as a mesh."""
    world = dist.group.WORLD
    assert world is not None, "even one rank has a group"
    assert world.size() == 1, "several ranks have a mesh"
    return DeviceMesh.from_group(world, device.type, mesh_dim_names=("dp_shard",))


def named_group(name: str) -> dist.ProcessGroup:
    """The process group of this `group_name`: operators of torch take names, not groups."""
    group: dist.ProcessGroup = _resolve_process_group(GroupName(name))
    return group


def make_mesh(shape: MeshShape, device: torch.device) -> Mesh:
    """The mesh over all ranks of the default process group. Collective.

    Cost: a new process group for each axis of more than one rank, but where one axis takes all ranks.
    """
    coordinates = shape.coordinates(dist.get_rank() if shape.product > 1 else 0)
    axes = [axis for axis, size in shape.sizes().items() if size > 1]
    if not axes:
        return Mesh(shape, coordinates, None)
    if len(axes) == 1:
        world = dist.group.WORLD
        assert world is not None, "ranks have met"
        return Mesh(shape, coordinates, DeviceMesh.from_group(world, device.type, mesh_dim_names=(axes[0],)))
    sizes = tuple(shape.sizes()[axis] for axis in axes)
    return Mesh(shape, coordinates, init_device_mesh(device.type, sizes, mesh_dim_names=tuple(axes)))

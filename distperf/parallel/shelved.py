"""fully_shard over shards that rest on drives: brought when it gathers them, gradients taken as they are reduced.

Note [What is taken from fully_shard]: it reads a group's shards in `unshard` and `wait_for_unshard` and nowhere else
(torch 2.13), so around these two they are in memory. Its parameters keep their views of a shelf's regions, whose
addresses stay. A reduced gradient comes through the hook of its parameter, and is taken away there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from distperf.errors import OffloadError
from distperf.measure.memory import give_back_freed_memory
from distperf.offload.keeping import open_shelf
from distperf.offload.shelf import Shelf
from distperf.offload.spans import FP32, following, padded
from distperf.optim.clip import squares
from distperf.parallel.materialize import local
from distperf.parallel.rows import Rows
from distperf.parallel.shards import OUTSIDE


@dataclass(frozen=True)
class Slot:
    """Elements [start, start + length) of a group's region: this rank's rows of a parameter."""

    group: int
    start: int
    length: int

    def of(self, region: Tensor) -> Tensor:
        """(length,) view."""
        return region[self.start :][: self.length]


@dataclass
class Gradients:
    """How far a step has got with a group's. `waits`: parameters whose gradients a backward pass still brings."""

    names: frozenset[int]  # by id, all that are trained
    waits: set[int] = field(default_factory=set)
    is_stored: bool = False  # earlier micro-batches' are on the drive


def groups_of(part: nn.Module) -> list[FSDPParamGroup]:
    """In the order of modules: what lies outside the blocks, then each block."""
    modules = [module for module in part.modules() if isinstance(module, FSDPModule)]
    return [group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups]


def open_shelves(part: nn.Module, files: Sequence[Path]) -> OnDrives:
    """Files for the shards of a part that was put under fully_shard on the meta device. Collective.

    Raises:
        OffloadError: a drive is too small or cannot be written; on every rank.
    """
    give_back_freed_memory()  # layers come and go
    groups = groups_of(part)
    lengths = [region_bytes(group) for group in groups]
    weights = open_shelf(files, "weights", lengths)
    try:
        return OnDrives(groups, weights, open_shelf(files, "gradients", lengths))
    except OffloadError:
        weights.close()
        raise


def region_bytes(group: FSDPParamGroup) -> int:
    """Of all shards of a group, each from a block on."""
    return sum(padded(FP32 * param.padded_sharded_param_size.numel()) for param in group.fsdp_params)


def adopt(group: FSDPParamGroup, at: int, region: Tensor) -> dict[int, Slot]:
    """Make a group's shards, on the meta device so far, views of a region; returns their places by parameter's id."""
    slots, start = {}, 0
    for param in group.fsdp_params:
        size, rows = param.padded_sharded_param_size, param.sharded_size[0]
        shard = region[start:][: size.numel()]
        param._sharded_param_data = shard
        requires_grad = param.sharded_param.requires_grad
        param.sharded_param = nn.Parameter(param.to_sharded_dtensor(shard.view(size)[:rows]), requires_grad)
        param._setattr_on_modules(param.sharded_param)
        slots[id(param.sharded_param)] = Slot(at, start, param.sharded_size.numel())
        start += padded(FP32 * size.numel()) // FP32
    return slots


def attend(group: FSDPParamGroup, bring: Callable[[], None], drop: Callable[[], None]) -> None:
    """Have `bring` called before shards are read, `drop` after. See Note [What is taken from fully_shard]."""
    unshard, finish = group.unshard, group.wait_for_unshard

    def brought(async_op: bool = False) -> None:
        if group.is_sharded:
            bring()
        unshard(async_op)

    def finished() -> None:
        finish()
        drop()

    group.unshard, group.wait_for_unshard = brought, finished  # type: ignore[method-assign]


class OnDrives:
    """Shards of groups that rest on two shelves, behind the seam `distperf.parallel.shards.Shards`.

    Parameters without dims, which fully_shard does not divide, stay in memory.
    """

    def __init__(self, groups: Sequence[FSDPParamGroup], weights: Shelf, gradients: Shelf) -> None:
        self._weights, self._gradients = weights, gradients
        self._slots: dict[int, Slot] = {}
        self._held: list[Gradients] = []
        self._squares: dict[int, Tensor] = {}
        self._before = OUTSIDE  # the group that was wanted last
        self._last = False
        for at, group in enumerate(groups):
            self._slots |= adopt(group, at, weights.values(at))
            attend(group, partial(self._bring, at), partial(weights.drop, at))
            trained = [p.sharded_param for p in group.fsdp_params if p.sharded_param.requires_grad]
            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]  # torch's
            self._held.append(Gradients(frozenset(map(id, trained))))

    def _bring(self, at: int) -> None:
        self._weights.bring(at)
        ahead, self._before = following(self._before, at), at
        if 0 <= ahead < len(self._held):
            self._weights.ahead(ahead)

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        """A reduced gradient of a group, which comes all at once; the last one has it written."""
        assert parameter.grad is not None, "the hook runs after accumulation"
        slot, grad = self._slots[id(parameter)], local(parameter.grad.detach())
        parameter.grad = None
        held = self._held[slot.group]
        if not held.waits:
            held.waits = set(held.names)
            (self._gradients.bring if held.is_stored else self._gradients.blank)(slot.group)
        place = slot.of(self._gradients.values(slot.group)).view_as(grad)
        place.add_(grad) if held.is_stored else place.copy_(grad)
        if self._last:
            self._squares[id(parameter)] = squares(place)
        held.waits.remove(id(parameter))
        if not held.waits:
            held.is_stored = True
            self._gradients.store(slot.group)

    def group(self, rows: Rows) -> int:
        """As `Shards.group`."""
        slot = self._slots.get(id(rows.parameter))
        return OUTSIDE if slot is None else slot.group

    def filling(self, groups: Sequence[int]) -> Iterator[int]:
        """As `Shards.filling`: one is filled while the last are written."""
        for at in groups:
            if at != OUTSIDE:
                self._weights.blank(at)
            yield at
            if at != OUTSIDE:
                self._weights.store(at)

    def expect(self, *, last: bool) -> None:
        """As `Shards.expect`."""
        self._last = last

    def squares(self, rows: Rows) -> Tensor:
        """As `Shards.squares`; taken when the gradient came."""
        found = self._squares.get(id(rows.parameter))
        return squares(rows.grad.contiguous()) if found is None else found

    def updating(self, groups: Sequence[int]) -> Iterator[int]:
        """As `Shards.updating`: the next is read while one is updated, and the last written."""
        for at, then in zip(groups, [*groups[1:], OUTSIDE], strict=True):
            self._open(at)
            self._ahead(then)
            yield at
            if at != OUTSIDE:
                self._weights.store(at)
                self._gradients.drop(at)
        self._before = OUTSIDE

    def _open(self, at: int) -> None:
        if at != OUTSIDE:
            self._weights.bring(at)
            (self._gradients.bring if self._held[at].is_stored else self._gradients.blank)(at)

    def _ahead(self, at: int) -> None:
        if at != OUTSIDE:
            self._weights.ahead(at)
            if self._held[at].is_stored:
                self._gradients.ahead(at)

    def gradient(self, rows: Rows) -> Tensor:
        """As `Shards.gradient`; of a parameter that no rank used, zeros."""
        slot = self._slots.get(id(rows.parameter))
        return rows.grad.flatten() if slot is None else slot.of(self._gradients.values(slot.group))

    def stored(self, rows: Rows) -> Tensor:
        """As `Shards.stored`: in the file's map."""
        slot = self._slots.get(id(rows.parameter))
        return rows.weights.view(-1) if slot is None else slot.of(self._weights.view(slot.group))

    def settle(self) -> None:
        """As `Shards.settle`."""
        self._weights.settle()

    def forget(self) -> None:
        """As `Shards.forget`."""
        self._gradients.forget()
        self._squares.clear()
        for held in self._held:
            held.is_stored = False

    def memory(self) -> dict[str, int]:
        """As `Shards.memory`: what of shards was in memory at its peak."""
        return {
            "parameters_bytes": self._weights.peak_bytes,
            "gradients_bytes": self._gradients.peak_bytes,
            "disk_bytes": self._weights.disk_bytes + self._gradients.disk_bytes,
        }

    def close(self) -> None:
        """Remove the files."""
        self._weights.close()
        self._gradients.close()

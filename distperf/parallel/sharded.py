"""ZeRO stage 3 on torch's fully_shard: a layer's weights are whole only while it computes.

Legend: n parameters, N ranks, L parameters of the largest layer, w bytes of a working weight.

Rows (dim 0) of every parameter are divided among ranks. fully_shard keeps fp32 shards, which in bf16 are the
masters, and fp32 gradients: 4n/N of each. Gradients are reduced in fp32, in every micro-batch. Adam's moments rest
where offload has them, in spans of a parameter's rows.

A whole layer that some ranks skip in forward cannot work here: its weights are gathered by all ranks or by
none, and the group's timeout ends the run. Parameters inside a layer may be unused on any rank.

Source: Rajbhandari et al., arXiv:1910.02054 (ZeRO); Zhao et al., arXiv:2304.11277 (FSDP).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from distperf.errors import OffloadError
from distperf.offload.keeping import NO_OFFLOAD, Offload, keep
from distperf.offload.moving import Mover
from distperf.offload.states import State, frozen
from distperf.optim.adamw import Moments, Update
from distperf.optim.clip import total
from distperf.optim.groups import Treatment
from distperf.parallel.buckets import ParameterInfo
from distperf.parallel.collectives import Peers, sum_in_place
from distperf.parallel.fsdp import Policy, give_memory, shard_part
from distperf.parallel.materialize import FILL_BLOCK, Fill, block_values, parameter_infos
from distperf.parallel.pieces import OwnedTensor
from distperf.parallel.rows import Rows
from distperf.parallel.scratch import Scratch
from distperf.parallel.shards import InMemory, Shards
from distperf.parallel.sharing import Sharing
from distperf.parallel.shelved import OnDrives, open_shelves
from distperf.recipe.runspec import OptimizerSpec


class ShardedEngine:
    """Trains a model with ZeRO stage 3. The seam is described at `distperf.parallel.engine.Engine`."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        policy: Policy,
        sharing: Sharing,
        device: torch.device,
        optimizer: OptimizerSpec,
        tied: Collection[str] = (),
        offload: Offload = NO_OFFLOAD,
    ) -> None:
        self.parts = parts
        self.optimizer_step = 0
        self._spec, self._sharing, self._policy = optimizer, sharing, policy
        self._scratch = Scratch(device, 0)
        self._rows: list[Rows] = []
        self._twins: list[Rows] = []  # rows of parameters that an earlier part of this rank has too
        away: OnDrives | None = None
        for part in parts:
            infos = parameter_infos([part], optimizer, tied)
            shard_part(part, policy, sharing.shards, device)
            if offload.params == "nvme":
                away = open_shelves(part, offload.files)
            give_memory(part, policy, device)
            self._hold(infos, list(part.parameters()))
        self._shards: Shards = away or InMemory(self._rows + self._twins)
        group = self._shards.group
        self._trained = [rows for rows in self._rows if rows.info.trainable]
        twins = [rows for rows in self._twins if rows.info.trainable]
        self._updated = sorted(self._trained, key=group) + twins  # buckets of states
        self._groups: dict[int, list[int]] = {}
        for at, rows in enumerate(self._updated):
            self._groups.setdefault(group(rows), []).append(at)
        kept = [rows.weights.view(-1) for rows in self._updated]
        try:
            self._states, self._lane = keep(offload, kept, policy.home(device), torch.float32)
        except OffloadError:
            self._shards.close()
            raise

    def _hold(self, infos: list[ParameterInfo], parameters: list[nn.Parameter]) -> None:
        known = {rows.info.fqn for rows in self._rows}
        for info, parameter in zip(infos, parameters, strict=True):
            counts = self._sharing.counts(info.divided, info.tied)
            rows = Rows.of(info, parameter, self._sharing.shards, counts)
            (self._twins if info.fqn in known else self._rows).append(rows)

    @torch.no_grad()
    def fill(self, fill: Fill) -> None:
        """Set the weights. Each rank makes its own rows, some elements at a time; nothing is sent."""
        by_group: dict[int, list[Rows]] = {}
        for rows in self._rows + self._twins:
            by_group.setdefault(self._shards.group(rows), []).append(rows)
        for group in self._shards.filling(sorted(by_group)):
            for rows in by_group[group]:
                weights = rows.weights.view(-1)
                for at in range(0, weights.numel(), FILL_BLOCK):
                    part, start = weights[at : at + FILL_BLOCK], rows.start + at
                    part.copy_(block_values(fill, rows.info, start, start + part.numel()))
        for rows, states in self._views():
            for state in states:
                if not state.is_working:
                    state.master.copy_(rows.weights.view(-1)[state.span.part])
        self._settle()

    def backward(self, loss: Tensor, last: bool) -> None:
        """Gradients of one micro-batch, reduced inside the backward pass. `last`: the update is near.

        Cost: sends (N - 1) / N * n * (4 + w) bytes a rank, reducing gradients and gathering weights; the forward
        pass gathers once more. Peak extra 2 * L * (4 + w).
        """
        self._shards.expect(last=last)
        if last:
            self._states.prepare()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here

    def collect(self) -> None:
        """Nothing to do: fully_shard keeps gradients and adds them up until a pipeline's last backward pass."""

    @torch.no_grad()
    def finish(self) -> None:
        """Add up the gradients of parameters without dims, and of those that first and last pipeline stage share.

        Cost: of these as `sum_in_place`; of others nothing, as fully_shard waits at the end of the backward pass.
        """
        for rows in self._updated:
            if not rows.info.shape:
                for peers in (self._sharing.shards, *self._sharing.sums(tied=False)):
                    rows.parameter.grad = self._summed(rows.grad, peers)
        by_name = {rows.info.fqn: rows for rows in self._trained}
        for twin in self._updated[len(self._trained) :]:
            total = by_name[twin.info.fqn].grad.add_(twin.grad)
            twin.grad.copy_(total)
        if self._sharing.ends.size > 1:
            for rows in self._trained:
                if rows.info.tied:
                    rows.grad.copy_(self._summed(rows.grad, self._sharing.ends))
        self._states.prepare()
        if self._lane is not None:
            for at, rows in enumerate(self._updated):
                self._lane.send(self._states.away(at), rows.grad.flatten())

    def _summed(self, rows: Tensor, peers: Peers) -> Tensor:
        """The sum over ranks that have the same rows, to the same bits."""
        padded = torch.zeros(-(-rows.numel() // peers.size) * peers.size, device=rows.device)
        padded[: rows.numel()] = rows.flatten()
        sum_in_place(padded, peers, self._scratch)
        return padded[: rows.numel()].view_as(rows)

    @torch.no_grad()
    def grad_norm_sq(self) -> Tensor:
        """() float64: this rank's rows only, and of equal copies one."""
        return total(self._shards.squares(rows) for rows in self._trained if rows.counts)

    def overflowed(self) -> list[str]:
        """Names of parameters with gradients on this rank that are not finite, or not even their squares."""
        return [rows.info.fqn for rows in self._trained if not self._shards.squares(rows).isfinite()]

    def skip(self) -> None:
        """Let go of this step's gradients without an update."""
        for rows in self._updated:
            rows.parameter.grad = None
        self._shards.forget()
        if self._lane is not None:
            self._lane.forget()

    @torch.no_grad()
    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update this rank's rows with gradients times `grad_scale`; the next forward pass gathers them."""
        self.optimizer_step += 1
        update = Update(self._spec, self.optimizer_step, lr, grad_scale)
        mover = Mover(update)
        for group in self._shards.updating(list(self._groups)):
            buckets = self._groups[group]
            self._update_resident(buckets, update)
            for at in buckets:
                for state in self._states.updating(at, self._states.away(at)):
                    self._update_away(self._updated[at], state, mover)
        if self._lane is not None:
            self._lane.join()
        self.skip()

    def _update_resident(self, buckets: Sequence[int], update: Update) -> None:
        """What rests with the weights, all that is treated alike at once."""
        found: dict[Treatment, tuple[list[Tensor], list[Tensor], list[Moments]]] = {}
        for at in buckets:
            rows = self._updated[at]
            weights, grads, moments = found.setdefault(rows.info.treatment, ([], [], []))
            for state in self._states.updating(at, self._states.resident(at)):
                assert state.moments is not None, "it is trained"
                weights.append(state.master)
                grads.append(self._shards.gradient(rows)[state.span.part])
                moments.append(state.moments)
        for treatment, alike in found.items():
            update.apply(*alike, treatment)

    def _update_away(self, rows: Rows, state: State, mover: Mover) -> None:
        part, treatment = state.span.part, rows.info.treatment
        if self._lane is None:
            mover.move(state, self._shards.gradient(rows)[part], None, treatment)
            return
        mover.move(state, self._lane.gradients(state.span), self._lane.stage(state.span), treatment)
        self._lane.publish(rows.weights.view(-1)[part])

    # State

    def _views(self) -> Iterator[tuple[Rows, list[State]]]:
        """All rows that this rank holds, twins last, each with views of its states."""
        for at, rows in enumerate(self._updated):
            yield rows, [self._stored(rows, state) for state in self._states.views(at)]
        for rows in self._rows + self._twins:
            if not rows.info.trainable:
                yield rows, [frozen(self._shards.stored(rows))]

    def _stored(self, rows: Rows, state: State) -> State:
        """With weights from where they rest."""
        return (
            replace(state, master=self._shards.stored(rows)[state.span.part]) if state.is_working else state
        )

    def _settle(self) -> None:
        """What views were given was overwritten."""
        self._shards.settle()
        self._states.settle()

    def state(self) -> dict[str, OwnedTensor]:
        """Rows of weights and moments, as views."""
        owned: dict[str, OwnedTensor] = {}
        for rows, states in self._views():
            if rows not in self._twins:
                owned |= rows.owned(states)
        return owned

    @torch.no_grad()
    def loaded(self) -> None:
        """Whole weights exist only while a layer computes, and are gathered then; twins are brought up to date."""
        firsts = {rows.info.fqn: states for rows, states in self._views() if rows not in self._twins}
        for rows, states in self._views():
            if rows in self._twins:
                _copy(firsts[rows.info.fqn], states)
        self._spread()
        self._settle()

    def _spread(self) -> None:
        """Weights from what is updated elsewhere in their place."""
        for rows, states in self._views():
            for state in states:
                if not state.is_working:
                    rows.weights.view(-1)[state.span.part].copy_(state.master)

    def memory(self) -> dict[str, int]:
        """Bytes of live tensors. Gradients are those of the last step, which `step` has freed since.

        Gathered layers come and go with the allocator and are not counted, but for those that stay from forward to
        backward pass; `buckets_bytes` are buffers to and from drives.
        """
        found = dict.fromkeys(("parameters_bytes", "gradients_bytes", "optimizer_bytes", "buckets_bytes"), 0)
        found |= {"host_bytes": 0 if self._lane is None else self._lane.bytes, "disk_bytes": 0}
        for kind, size in [*self._states.memory().items(), *self._shards.memory().items()]:
            found[kind] += size
        found["parameters_bytes"] += self._gathered_bytes()
        return found

    def close(self) -> None:
        """Remove what of the state is on disk."""
        self._states.close()
        self._shards.close()

    def _gathered_bytes(self) -> int:
        """Of whole weights that are there all at once."""
        if self._policy.reshards:
            return 0
        return self._policy.dtype.itemsize * sum(rows.info.numel for rows in self._rows + self._twins)


def _copy(sources: Sequence[State], into: Sequence[State]) -> None:
    """The same rows twice, cut into spans alike."""
    for source, target in zip(sources, into, strict=True):
        for own, other in zip(target.kinds.values(), source.kinds.values(), strict=True):
            own.copy_(other)

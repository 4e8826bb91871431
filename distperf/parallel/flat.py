"""ZeRO stages 0, 1 and 2: whole working weights on every rank, the rest in flat buckets.

Legend: n parameters, N ranks, P elements of a bucket, S = P / N of a shard.

    stage   gradients               optimizer state   after backward                   after the update
    0       whole                   whole             sum to shards, gather gradients  nothing
    1       whole until reduced     own shard         sum to shards                    gather weights
    2       own shard               own shard         sum to shards, every backward    gather weights

All three add the same numbers in the same order: without accumulation their results are equal to the last bit.

Note [Order of reductions]: a bucket's reduction starts inside the backward pass, as soon as its last gradient
arrives, but never before the bucket ahead of it: all ranks then communicate in one order even when they use
different parameters. What got no gradient by the end of the backward pass counts as zero.

Source: Rajbhandari et al., arXiv:1910.02054 (ZeRO); Li et al., arXiv:2006.15704 (buckets, DDP).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.measure.memory import storage_bytes
from distperf.optim.adamw import Moments, Update
from distperf.optim.clip import sum_of_squares
from distperf.parallel.background import Background, Task
from distperf.parallel.buckets import layout
from distperf.parallel.collectives import Pending, start_gather, start_reduce, sum_in_place
from distperf.parallel.live import FlatPlan, LiveBucket, slot_view
from distperf.parallel.materialize import (
    Fill,
    block_values,
    install,
    local_gradient,
    parameter_infos,
    place_buffers,
)
from distperf.parallel.pieces import OwnedTensor, pieces_of
from distperf.parallel.scratch import Scratch
from distperf.parallel.sharing import Sharing
from distperf.recipe.runspec import OptimizerSpec

# Reductions under way at a time: bounds transient memory, and lets a rank be ahead of the others for a while.
MAX_REDUCING = 2

# Weights updated at a time in bf16: the cast gradient and the new working copy then stay in cache.
UPDATE_BLOCK = 1 << 18


class FlatEngine:
    """Trains a model with ZeRO stage 0, 1 or 2. The seam is described at `engine.Engine`."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        plan: FlatPlan,
        sharing: Sharing,
        device: torch.device,
        optimizer: OptimizerSpec,
        tied: Collection[str] = (),
    ) -> None:
        self.parts = parts
        self.optimizer_step = 0
        peers = sharing.shards
        self._plan, self._peers, self._sharing, self._spec = plan, peers, sharing, optimizer
        infos = parameter_infos(parts, optimizer, tied)
        buckets = layout(infos, sharing.multiple_of, plan.bucket_bytes // plan.dtype.itemsize)
        largest = max((b.size for b in buckets if b.trainable), default=0)
        self._lent = Scratch(device, largest)
        self._received = Scratch(device, largest - largest // peers.size)
        self._live = [LiveBucket.allocate(b, plan, peers, sharing.sums(b.tied), device) for b in buckets]
        self._trained = [live for live in self._live if live.bucket.trainable]
        self._reduces = False  # the running backward pass ends in reductions
        self._last = False  # it is the last one of its step
        self._next = 0  # first bucket whose reduction has not started in it
        self._reducing: deque[Task] = deque()  # calling one waits for a reduction under way
        exchanges = any(p.size > 1 and p.exchanges for p in (peers, sharing.copies, sharing.ends))
        self._background = Background() if exchanges else None
        self._gathering: list[Pending] = []
        self._waiting: list[tuple[LiveBucket, int, nn.Parameter]] = []  # looked at by `collect`
        self._attach(device)

    def _attach(self, device: torch.device) -> None:
        """Make the model's parameters views of the buckets, and hear of their gradients."""
        places = {
            slot.fqn: (live, index) for live in self._live for index, slot in enumerate(live.bucket.slots)
        }
        views = {
            fqn: slot_view(live.working, live.bucket.slots[index]) for fqn, (live, index) in places.items()
        }
        for fqn, parameter in install(self.parts, views).items():
            if not parameter.requires_grad:
                continue
            if self._plan.pipelined:
                self._waiting.append((*places[fqn], parameter))
            else:
                hook = partial(self._on_gradient, *places[fqn])
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's
        for part in self.parts:
            place_buffers(part, device)

    def fill(self, fill: Fill) -> None:
        """Set the weights: each rank makes its own shard and gets the rest from the others.

        Cost: as `start_gather` of every bucket.
        """
        for live in self._live:
            shard = live.own(live.master)
            for part in live.own_parts():
                stop = part.in_block + part.length
                values = block_values(fill, part.slot.info, part.in_block, stop)
                shard[part.in_shard :][: part.length].copy_(values)
            self._spread(live)

    # Backward

    def backward(self, loss: Tensor, last: bool) -> None:
        """Gradients of one micro-batch. Their reductions, where due, have started when this returns.

        Cost: with `last`, and in stage 2 always, as `start_reduce` of every bucket.
        """
        self._settle()  # their buffers may be wanted again
        self._reduces, self._last = last or self._plan.stage == 2, last
        self._next = 0
        for live in self._trained:
            live.awaited = set(range(len(live.bucket.slots)))
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        if self._reduces:
            self._reduce_until(len(self._trained))

    @torch.no_grad()
    def _on_gradient(self, live: LiveBucket, index: int, parameter: Tensor) -> None:
        if index not in live.awaited:
            raise DistperfError(
                f"parameter {live.bucket.slots[index].fqn} got two gradients in one backward pass, so it cannot be "
                "sent at the first. Use non-reentrant activation checkpointing (use_reentrant=False)."
            )
        self._take(live, index, parameter)
        live.awaited.remove(index)
        if self._reduces:
            self._reduce_until(self._first_awaited())

    def _take(self, live: LiveBucket, index: int, parameter: Tensor) -> None:
        """Move a parameter's gradient to where the bucket wants it."""
        grad, parameter.grad = parameter.grad, None
        assert grad is not None, "the hook runs after accumulation"
        place = slot_view(self._destination(live), live.bucket.slots[index])
        if index in live.seen:
            place.add_(local_gradient(parameter, grad))
        else:
            place.copy_(local_gradient(parameter, grad))
        live.seen.add(index)

    @torch.no_grad()
    def collect(self) -> None:
        """Take the gradients that parameters have: after each backward pass of a stage, in a pipeline."""
        for live, index, parameter in self._waiting:
            if parameter.grad is not None:
                self._take(live, index, parameter)

    def _first_awaited(self) -> int:
        waiting = (at for at in range(self._next, len(self._trained)) if self._trained[at].awaited)
        return next(waiting, len(self._trained))

    def _destination(self, live: LiveBucket) -> Tensor:
        """(P,) where this backward pass puts gradients: a lent buffer in stage 2, else where they stay."""
        if live.arriving is None and self._plan.stage == 2:
            live.arriving = self._lent.take(live.bucket.size, self._plan.dtype)
            live.arriving[live.bucket.used :] = 0
        elif live.arriving is None:
            live.arriving = live.grads
        return live.arriving

    @torch.no_grad()
    def _reduce_until(self, stop: int) -> None:
        """Start the reductions of buckets before `stop`, in order. See Note [Order of reductions]."""
        for live in self._trained[self._next : stop]:
            self._settle(MAX_REDUCING - 1)
            full = self._destination(live)
            for index in set(range(len(live.bucket.slots))) - live.seen:
                slot_view(full, live.bucket.slots[index]).zero_()
            out = live.own(live.grads)
            pending = start_reduce(full, out, self._peers, self._received, add=live.reduced)
            task = partial(self._complete, live, pending, self._last)
            self._reducing.append(self._background.submit(task) if self._background else task)
            self._next += 1

    def _settle(self, leave: int = 0) -> None:
        """Wait for reductions under way, the oldest first, until only so many are left."""
        while len(self._reducing) > leave:
            self._reducing.popleft()()

    @torch.no_grad()
    def _complete(self, live: LiveBucket, pending: Pending, last: bool) -> None:
        """Receive and add up. On the CPU this runs in the background; NCCL's streams need no thread for it."""
        pending.wait()
        if last:
            for peers in live.sums:
                sum_in_place(live.own(live.grads), peers, self._received)
        if last and self._plan.stage == 0:
            self._gathering.append(start_gather(live.grads, self._peers))
        if self._plan.stage == 2 and live.arriving is not None:
            self._lent.give(live.arriving)
            live.arriving = None
            live.seen.clear()
            live.reduced = True

    def finish(self) -> None:
        """Wait until gradients are sums over all ranks and micro-batches.

        Cost: stage 0, as `start_gather` of every bucket, all but the last overlapped with the backward pass. In a
        pipeline, also as `start_reduce` of every bucket: nothing is sent before the last backward pass is through.
        """
        if self._plan.pipelined:
            self._reduces, self._last, self._next = True, True, 0
            self._reduce_until(len(self._trained))
        self._settle()
        self._wait_gathering()

    def _wait_gathering(self) -> None:
        for pending in self._gathering:
            pending.wait()
        self._gathering.clear()

    # Update

    def grad_norm_sq(self) -> Tensor:
        """() float64: this rank's shards only, and of equal copies one: the sum over ranks is the norm."""
        return sum_of_squares(live.own(live.grads) for live in self._trained if self._counts(live))

    def _counts(self, live: LiveBucket) -> bool:
        return self._sharing.counts(live.bucket.divided, live.bucket.tied)

    def overflowed(self) -> list[str]:
        """Names of parameters with gradients on this rank that are not finite."""
        return [
            part.slot.fqn
            for live in self._trained
            for part in live.own_parts()
            if not live.own(live.grads)[part.in_shard :][: part.length].isfinite().all()
        ]

    def skip(self) -> None:
        """Let go of this step's gradients without an update."""
        for live in self._trained:
            live.forget()

    @torch.no_grad()
    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update the weights with gradients times `grad_scale`. All ranks have the new weights on return.

        Cost: stages 1 and 2, as `start_gather` of every bucket, overlapped with the next bucket's update.
        """
        self.optimizer_step += 1
        update = Update(self._spec, self.optimizer_step, lr, grad_scale)
        for live in self._trained:
            self._update(live, update)
            if self._plan.stage > 0:
                self._gathering.append(start_gather(live.working, self._peers))
            live.forget()
        self._wait_gathering()

    def _update(self, live: LiveBucket, update: Update) -> None:
        master, moments, treatment = live.master, live.moments, live.bucket.treatment
        grads, working = self._kept(live, live.grads), self._kept(live, live.working)
        if self._plan.dtype == torch.float32:
            update.apply([master], [grads], [moments], treatment)
            return
        length = UPDATE_BLOCK if master.device.type == "cpu" else master.numel()
        for start in range(0, master.numel(), length):
            block = slice(start, start + length)
            state = Moments(moments.exp_avg[block], moments.exp_avg_sq[block])
            update.apply([master[block]], [grads[block].float()], [state], treatment)
            working[block] = master[block]

    # State

    def state(self) -> dict[str, OwnedTensor]:
        """Shards of weights and moments, as views. Stage 0 is divided among ranks likewise."""
        owned = {}
        for live in self._live:
            parts = live.own_parts()
            for kind, kept in live.kinds().items():
                shard, saves = live.own(kept), self._counts(live)
                for slot in live.bucket.slots:
                    owned[f"{kind}.{slot.fqn}"] = OwnedTensor(slot.info.shape, kept.dtype, (), saves)
                for part in parts:
                    info, held = part.slot.info, shard[part.in_shard :][: part.length]
                    pieces = pieces_of(held, info.local_shape, part.in_block, info.offsets)
                    owned[f"{kind}.{info.fqn}"] = OwnedTensor(info.shape, kept.dtype, pieces, saves)
        return owned

    @torch.no_grad()
    def loaded(self) -> None:
        """Bring all ranks up to date after the views of `state` were overwritten.

        Cost: as `start_gather` of every bucket; in stage 0 three times, with 4 bytes an element.
        """
        for live in self._live:
            self._spread(live)
            if self._plan.stage == 0 and live.bucket.trainable:
                start_gather(live.moments.exp_avg, self._peers).wait()
                start_gather(live.moments.exp_avg_sq, self._peers).wait()

    def _spread(self, live: LiveBucket) -> None:
        """Working weights of all ranks from the shards of `master`."""
        whole = live.master if self._plan.stage == 0 else live.working
        if self._plan.stage > 0 and live.has_master:
            live.own(live.working).copy_(live.master)
        start_gather(whole, self._peers).wait()
        if self._plan.stage == 0 and live.has_master:
            live.working.copy_(whole)

    def memory(self) -> dict[str, int]:
        """Bytes of live tensors; `buckets_bytes` is the peak of gradients on their way."""
        masters = [live.master for live in self._trained if live.has_master]
        moments = [t for live in self._trained for t in (live.moments.exp_avg, live.moments.exp_avg_sq)]
        return {
            "parameters_bytes": storage_bytes(live.working for live in self._live),
            "gradients_bytes": storage_bytes(live.grads for live in self._trained),
            "optimizer_bytes": storage_bytes(masters + moments),
            "buckets_bytes": self._lent.bytes + self._received.bytes,
        }

    def _kept(self, live: LiveBucket, whole: Tensor) -> Tensor:
        """What this rank updates: everything in stage 0, else its shard."""
        return whole if self._plan.stage == 0 else live.own(whole)

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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.measure.memory import storage_bytes
from distperf.measure.stopwatch import COMMUNICATION
from distperf.offload.keeping import NO_OFFLOAD, Offload, keep
from distperf.offload.moving import Mover
from distperf.offload.states import State, frozen
from distperf.optim.adamw import Update
from distperf.optim.clip import sum_of_squares
from distperf.parallel.background import Background, Task
from distperf.parallel.buckets import Overlap, layout, overlaps
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
        offload: Offload = NO_OFFLOAD,
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
        self._live = [
            LiveBucket.allocate(at, bucket, plan, peers, sharing.sums(bucket.tied), device)
            for at, bucket in enumerate(buckets)
        ]
        self._trained = [live for live in self._live if live.bucket.trainable]
        kept = [self._kept(live, live.working) for live in self._trained]
        self._states, self._lane = keep(offload, kept, device, plan.gradient_dtype)
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
            for state, part, place in self._own(live, self._views(live)):
                stop = part.in_block + part.length
                state.master[place].copy_(block_values(fill, part.slot.info, part.in_block, stop))
            self._spread(live)
        self._states.settle()

    # Backward

    def backward(self, loss: Tensor, last: bool) -> None:
        """Gradients of one micro-batch. Their reductions, where due, have started when this returns.

        Cost: with `last`, and in stage 2 always, as `start_reduce` of every bucket.
        """
        self._settle()  # their buffers may be wanted again
        self._reduces, self._last = last or self._plan.stage == 2, last
        if last:
            self._states.prepare()
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
            with COMMUNICATION:
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
        elif last:
            self._send(live)
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
            self._states.prepare()
            self._reduce_until(len(self._trained))
        self._settle()
        self._wait_gathering()
        if self._plan.stage == 0:
            for live in self._trained:
                self._send(live)

    def _send(self, live: LiveBucket) -> None:
        """Start complete gradients on their way to where they are wanted, if that is not here."""
        if self._lane is not None:
            self._lane.send(self._states.away(live.at), self._kept(live, live.grads))

    def _wait_gathering(self) -> None:
        with COMMUNICATION:
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
        if self._lane is not None:
            self._lane.forget()

    @torch.no_grad()
    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update the weights with gradients times `grad_scale`. All ranks have the new weights on return.

        Cost: stages 1 and 2, as `start_gather` of every bucket, overlapped with the next bucket's update.
        """
        self.optimizer_step += 1
        mover = Mover(Update(self._spec, self.optimizer_step, lr, grad_scale))
        for live in self._trained:
            for state in self._states.updating(live.at):
                self._update(live, state, mover)
            if self._lane is not None:
                self._lane.join()
            if self._plan.stage > 0:
                self._gathering.append(start_gather(live.working, self._peers))
            live.forget()
        self._wait_gathering()

    def _update(self, live: LiveBucket, state: State, mover: Mover) -> None:
        part, treatment = state.span.part, live.bucket.treatment
        working = self._kept(live, live.working)[part]
        if self._lane is None or not state.span.away:
            grads = self._kept(live, live.grads)[part]
            mover.move(state, grads, None if state.is_working else working, treatment)
            return
        mover.move(state, self._lane.gradients(state.span), self._lane.stage(state.span), treatment)
        self._lane.publish(working)

    # State

    def _own(self, live: LiveBucket, views: list[State]) -> Iterator[tuple[State, Overlap, slice]]:
        """What this rank's shard of a bucket holds of which parameter, and where in which state's tensors."""
        low, high = live.bucket.shard(self._peers.rank, self._peers.size)
        first = 0 if self._plan.stage == 0 else low  # of the bucket, what is kept begins here
        for state in views:
            origin = first + state.span.start
            start, stop = max(low, origin), min(high, first + state.span.stop)
            for part in overlaps(live.bucket, start, stop):
                place = start - origin + part.in_shard
                yield state, part, slice(place, place + part.length)

    def _views(self, live: LiveBucket) -> list[State]:
        if live.bucket.trainable:
            return self._states.views(live.at)
        return [frozen(self._kept(live, live.working))]

    def state(self) -> dict[str, OwnedTensor]:
        """Shards of weights and moments, as views. Stage 0 is divided among ranks likewise."""
        owned: dict[str, OwnedTensor] = {}
        for live in self._live:
            views, saves = self._views(live), self._counts(live)
            for kind, kept in views[0].kinds.items():
                for slot in live.bucket.slots:
                    owned[f"{kind}.{slot.fqn}"] = OwnedTensor(slot.info.shape, kept.dtype, (), saves)
            for state, part, place in self._own(live, views):
                for kind, kept in state.kinds.items():
                    held, name = part.slot.info, f"{kind}.{part.slot.fqn}"
                    pieces = pieces_of(kept[place], held.local_shape, part.in_block, held.offsets)
                    owned[name] = replace(owned[name], pieces=owned[name].pieces + pieces)
        return owned

    @torch.no_grad()
    def loaded(self) -> None:
        """Bring all ranks up to date after the views of `state` were overwritten.

        Cost: as `start_gather` of every bucket; in stage 0 three times, with 4 bytes an element.
        """
        for live in self._live:
            self._spread(live)
            if self._plan.stage == 0 and live.bucket.trainable:
                self._gather_kind(live, "optimizer.exp_avg")
                self._gather_kind(live, "optimizer.exp_avg_sq")
        self._states.settle()

    def _spread(self, live: LiveBucket) -> None:
        """Working weights of all ranks from the shards of fp32 weights."""
        apart = [state for state in self._views(live) if not state.is_working]
        if self._plan.stage == 0 and apart:
            self._gather_kind(live, "model")
        for state in apart:
            self._kept(live, live.working)[state.span.part].copy_(state.master)
        if self._plan.stage > 0 or not apart:
            start_gather(live.working, self._peers).wait()

    def _gather_kind(self, live: LiveBucket, kind: str) -> None:
        """In stage 0: all of a kind of state on every rank, from each one's shard."""
        full = torch.empty(live.bucket.size, device=live.working.device)
        places = [(full[state.span.part], state.kinds[kind]) for state in self._views(live)]
        for place, kept in places:
            place.copy_(kept)
        start_gather(full, self._peers).wait()
        for place, kept in places:
            kept.copy_(place)

    def memory(self) -> dict[str, int]:
        """Bytes of live tensors; `buckets_bytes` is the peak of what is under way, also to and from drives.

        `host_bytes` and `disk_bytes`: what of the optimizer's state rests elsewhere, with gradients sent after it.
        """
        found = {
            "parameters_bytes": storage_bytes(live.working for live in self._live),
            "gradients_bytes": storage_bytes(live.grads for live in self._trained),
            "optimizer_bytes": 0,
            "buckets_bytes": self._lent.bytes + self._received.bytes,
            "host_bytes": 0 if self._lane is None else self._lane.bytes,
            "disk_bytes": 0,
        }
        for kind, size in self._states.memory().items():
            found[kind] += size
        return found

    def close(self) -> None:
        """Remove what of the state is on disk."""
        self._states.close()

    def _kept(self, live: LiveBucket, whole: Tensor) -> Tensor:
        """What this rank updates: everything in stage 0, else its shard."""
        return whole if self._plan.stage == 0 else live.own(whole)

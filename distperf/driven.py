"""An engine for a loop of the user's own, which keeps its passes and has distperf do gradients, update and checkpoints.

    engine = distperf.initialize(model, optimizer, recipe={"parallel": {"zero": 2}})
    for inputs, targets in batches:
        loss = loss_of(engine(inputs), targets)
        engine.backward(loss)
        engine.step()

The step is the trainer's, with the loop's passes in place of its own: losses count alike, whichever rank and pass they
come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distperf import contract
from distperf.checkpoint.agree import agreed
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import MANIFEST, Origin, Position, list_checkpoints
from distperf.checkpoint.save import CheckpointWriter
from distperf.errors import DistperfError
from distperf.measure.progress import StepResult
from distperf.parallel.engine import Engine
from distperf.requests import Asked
from distperf.stop import StopRequest
from distperf.trainer import Trainer


class LoopPasses:
    """What the loop's backward passes since the last update come to: the trainer's `Passes`."""

    def __init__(self, engine: Engine, accumulation: int, device: torch.device) -> None:
        self.accumulation = accumulation
        self.count = 0
        self.complete = False  # the last one of an update is through
        self._engine = engine
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: Tensor, factor: float, last: bool | None) -> None:
        """The backward pass of a mean loss. Cost: the engine's."""
        if self.complete:
            raise DistperfError(
                f"engine.backward: {self.count} backward passes wait for engine.step, which makes the update; call it "
                "after every backward"
            )
        self.count += 1
        self.complete = self.count == self.accumulation if last is None else last
        self._engine.backward(loss if factor == 1.0 else loss.float() * factor, last=self.complete)
        self._loss_sum += loss.detach()

    def run(self, step: int, factor: float) -> tuple[Tensor, Tensor]:
        """As `distperf.passes.Passes.run`, with backward passes in place of targets. Cost: the engine's."""
        self._engine.finish()
        sums = self._loss_sum.clone(), torch.full_like(self._loss_sum, self.count)
        self._loss_sum.zero_()
        self.count, self.complete = 0, False
        return sums


class Driven:
    """A model that `distperf.initialize` has taken over; called for the forward pass, as the model itself may be.

    `module` is the model. `steps`: updates so far, those that an overflow in fp16 has skipped among them.
    """

    def __init__(
        self,
        module: nn.Module,
        trainer: Trainer,
        passes: LoopPasses,
        origin: Origin,
        dtype: torch.dtype,
        end: Callable[[], None],
    ) -> None:
        self.module = module
        self.steps = 0
        self._began = 0  # the step that this process began after
        self.dtype = dtype  # of working weights, and so of activations
        self._trainer = trainer
        self._passes = passes
        self._origin = origin
        self._end = end
        self._stop = StopRequest()
        self._writers: dict[tuple[str, int], CheckpointWriter] = {}

    @property
    def accumulation(self) -> int:
        """Backward passes an update."""
        return self._passes.accumulation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, with floating-point tensors among the arguments in `dtype`."""
        return self.module(*map(self._cast, args), **{key: self._cast(arg) for key, arg in kwargs.items()})

    __call__ = forward

    def _cast(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def backward(self, loss: Tensor, *, last: bool | None = None) -> None:
        """Gradients of a loss that is a mean over this rank's samples, as it is: not divided by accumulation.

        `last`: the update follows; default: after every `accumulation` passes. Say True where fewer are left, on all
        ranks: the update is then the mean over those that there were.

        Raises:
            DistperfError: an update is due first.

        Cost: as of `distperf.parallel.flat` and `sharded`, `Engine.backward`.
        """
        factor = 1.0 if self._trainer.scaled is None else self._trainer.scaled.factor
        self._passes.add(loss, factor, last)

    def step(self) -> StepResult | None:
        """The update, where the last backward pass completed one; None where it did not. Tells distperf of it.

        The result is the same on every rank: the mean loss, the gradients' norm before clipping, the learning rate,
        whether an overflow in fp16 has had the update skipped, and in `asked.stop` whether to stop (`stop_on_sigterm`).

        Raises:
            DistperfError: loss or gradients are not finite, before any weight changes; on every rank.

        Cost: the engine's, and one all-reduce of 32 bytes.
        """
        if not self._passes.complete:
            return None
        result = self._trainer.step(self.steps + 1, lambda: Asked(stop=self._stop()))
        self.steps += 1
        lines = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr}
        contract.report(self.steps, **(lines if dist.get_rank() == 0 else {}))
        if self.steps == self._began + 2:  # gradients and optimizer state of a step have all been there once
            contract.reporter().send("memory", **self.memory())
        return result

    def stop_on_sigterm(self) -> None:
        """From here on SIGTERM ends no rank at once: `step` says `asked.stop` to all ranks after the same update."""
        self._stop.listen()

    def save(self, folder: str | os.PathLike[str], keep: int = 0) -> Path:
        """Write a checkpoint, complete or absent, below `folder`, which all ranks see; returns its path. Collective.

        keep: the newest of this run that stay; 0: all.

        Raises:
            CheckpointError: on every rank, when it failed on any.
        """
        key = (os.fspath(folder), keep)
        if key not in self._writers:
            self._writers[key] = CheckpointWriter(key[0], self._origin, Retention(keep))
        position = Position(
            self.steps,
            optimizer_step=self._trainer.engine.optimizer_step,
            tokens=0,
            samples=self._trainer.stream.first(self.steps + 1),
            loss_scale=self._trainer.loss_scale,
        )
        return self._writers[key].save(position, self._trainer.engine.state()).path

    def load(self, path: str | os.PathLike[str], *, missing_ok: bool = False) -> int:
        """Go on from a checkpoint, or from the newest whole one in a folder, of any ZeRO stage and number of ranks.

        Returns its step; 0, with `missing_ok`, where there is none. Collective.

        Raises:
            CheckpointMissing, CheckpointError: on every rank; as `distperf.checkpoint.load.load_newest`.
        """
        path = os.fspath(path)
        if missing_ok and not agreed(f"cannot look into {path}", lambda: _holds_some(path))[0]:
            return 0
        claims = not Path(path, MANIFEST).exists()
        found = load_newest(path, self._origin, path, self._trainer.engine.state, writes=claims)
        assert found is not None, "a path was named"
        self._trainer.engine.loaded()
        self._trainer.engine.optimizer_step = found.manifest.optimizer_step
        self._trainer.set_loss_scale(found.manifest.loss_scale)
        self._trainer.stream.go_on(found.manifest.step, found.manifest.samples)
        self.steps = self._began = found.manifest.step
        return self.steps

    def memory(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimizer state on this rank, at their peak."""
        return self._trainer.engine.memory()

    def close(self) -> None:
        """Let go of files of offloaded state, and of the process group where initialize has made it."""
        self._trainer.engine.close()
        self._end()

    def __enter__(self) -> Driven:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holds_some(path: str) -> bool:
    return dist.get_rank() != 0 or Path(path, MANIFEST).exists() or bool(list_checkpoints(path))

"""DeepSpeed's batch equation: train_batch_size = micro batch x gradient accumulation x data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

from distperf.errors import BatchError


@dataclass(frozen=True)
class Batch:
    """None: not given, or not known before the number of ranks is."""

    train: int | None
    micro: int | None
    accumulation: int | None
    equation: str = ""
    micro_why: str = ""


def solve(given: Batch, replicas: int | None) -> Batch:
    """What follows from what is given; accumulation is 1 where neither it nor the other two say more.

    replicas: data-parallel ranks, None where unknown. Raises BatchError where nothing fits, with the numbers.
    """
    train, micro, accumulation = given.train, given.micro, given.accumulation
    told = given.micro is not None
    if replicas is not None:
        if train is None and micro is not None:
            train = micro * (accumulation or 1) * replicas
        elif train is not None and micro is None:
            micro = _divided(train, (accumulation or 1) * replicas, accumulation or 1, replicas)
        if train is not None and micro is not None:
            found = _divided(train, micro * replicas, micro, replicas)
            if accumulation is not None and found != accumulation:
                raise BatchError(_misfit(train, micro, accumulation, replicas))
            accumulation = found
    equation = ""
    if None not in (train, micro, accumulation, replicas):
        equation = f"{train} = {micro} x {accumulation} x {replicas} (micro-batch x accumulation x ranks)"
    elif train is None:
        equation = "micro-batch x accumulation x data-parallel ranks: give --ranks, or the number itself"
    why = (
        ""
        if told
        else "by a rule, from the ranks there are"
        if micro is None
        else "follows from the other two"
    )
    return Batch(train, micro, accumulation, equation, why)


def _divided(train: int, by: int, one: int, replicas: int) -> int:
    if train % by or not train:
        low, high = train // by * by, (train // by + 1) * by
        near = f"{low} or {high}" if low else f"{high}"
        raise BatchError(
            f"train_batch_size {train} is no multiple of {one} x {replicas} data-parallel ranks = {by}; "
            f"the nearest that are: {near}"
        )
    return train // by


def _misfit(train: int, micro: int, accumulation: int, replicas: int) -> str:
    product = micro * accumulation * replicas
    fits = train // (micro * replicas)
    return (
        f"train_batch_size {train} is not {micro} x {accumulation} x {replicas} = {product} "
        f"(micro-batch x accumulation x data-parallel ranks); with accumulation {fits} it would be"
    )

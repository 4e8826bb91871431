"""What must hold between the keys of `data`, and the weights of a mixture as whole numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor, lcm

from distperf.recipe.feeding import DataSection, EvalSection

SOURCES = ("text", "tokens", "mixture", "factory", "synthetic")
NOT_BESIDE_FACTORY = {
    "field": "is about text",
    "boundary": "is about documents; targets of -100 carry no loss",
}
MOST_PERIOD = 2**16  # samples within which weights are met exactly; also the resolution of weights


def data_faults(data: DataSection, evaluation: EvalSection) -> Iterator[tuple[str, str, bool]]:
    """Keys, what is wrong with them, and whether the place to show is the key's."""
    given = [
        key
        for key in SOURCES
        if getattr(data, key) not in (None, False) and (key != "mixture" or data.mixture)
    ]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        unset = "; null (synthetic: false) drops one that was inherited" if given else ""
        yield "data", f"data takes exactly one of {', '.join(SOURCES)}; {found}{unset}", True
    for key in given:
        if getattr(data, key) == ():
            yield f"data.{key}", f"data.{key} is an empty list; it names where tokens come from", False
    yield from _mixture(data)
    yield from _factory(data)
    yield from _held_back(data, evaluation)


def _mixture(data: DataSection) -> Iterator[tuple[str, str, bool]]:
    seen: set[str] = set()
    shares = whole_weights([item.weight for item in data.mixture])
    for at, (item, share) in enumerate(zip(data.mixture, shares, strict=True)):
        key = f"data.mixture.{at}"
        if item.path in seen:
            yield (
                f"{key}.path",
                f"data.mixture[{at}].path, {item.path}, is there twice; add up the weights",
                False,
            )
        seen.add(item.path)
        if not share:
            text = (
                f"data.mixture[{at}].weight is {item.weight:g}, less than one of {MOST_PERIOD:,} samples; give it "
                "more, or take it out"
            )
            yield f"{key}.weight", text, False


def _factory(data: DataSection) -> Iterator[tuple[str, str, bool]]:
    if data.factory is None:
        if data.args:
            yield "data.args", "data.args are the arguments of data.factory, which is not given", False
        return
    for key, why in NOT_BESIDE_FACTORY.items():
        if getattr(data, key) != DataSection.model_fields[key].default:
            text = f"data.{key} {why}, and data.factory makes samples itself; take out one of the two"
            yield f"data.{key}", text, False
    if isinstance(data.validation, tuple):
        text = "data.validation beside data.factory is a share of its samples, as 0.01, not a list of files"
        yield "data.validation", text, False


def _held_back(data: DataSection, evaluation: EvalSection) -> Iterator[tuple[str, str, bool]]:
    if data.validation is not None and data.synthetic:
        text = "data.validation stands beside text or tokens; synthetic data has no more to tell"
        yield "data.validation", text, False
    if evaluation.every_steps and data.validation is None:
        text = "eval.every_steps asks for evaluations, but nothing is held back for them; give data.validation, as 0.01"
        yield "eval.every_steps", text, False


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """How many of every so many samples each source gives: exact where at most MOST_PERIOD will do, else the nearest.

    Weights are taken as they are written in decimal, so that 0.7 and 0.3 are 7 and 3. 0 for one that is too small.
    """
    written = [Fraction(repr(weight)) for weight in weights]
    shares = [weight / sum(written) for weight in written]
    period = lcm(*(share.denominator for share in shares))
    if period <= MOST_PERIOD:
        return tuple(int(share * period) for share in shares)
    whole = [floor(share * MOST_PERIOD) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda at: whole[at] - shares[at] * MOST_PERIOD)
    for at in by_rest[: MOST_PERIOD - sum(whole)]:
        whole[at] += 1
    return tuple(whole)

"""Functions of the user's: found where ranks run, called with generators that are seeded alike on all of them."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from distperf.errors import DistperfError


def own_function(name: str, args: dict[str, Any], key: str, error: type[DistperfError]) -> Callable[..., Any]:
    """Import `package.module:function`, which takes these keyword arguments.

    The folder in which ranks run comes first, as for a script that is started there. `key`: of the recipe, where the
    arguments are `args` beside it.

    Raises: `error`, where it is not there or does not take the arguments; whatever importing it raises.
    """
    where, (path, _, attribute) = f"{key} {name}", name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as problem:
        if not problem.name or not f"{path}.".startswith(f"{problem.name}."):
            raise  # the module is there, and what it imports is not
        raise error(
            f"{where}: no module {problem.name} in {os.getcwd()} or among the packages of {sys.executable}. Put it "
            "into launch.workdir, or install it on every node"
        ) from problem
    function = getattr(module, attribute, None)
    if not callable(function):
        found = "has no such name" if function is None else f"is {kind_of(function)}, no function"
        raise error(f"{where}: {attribute} {found} in {module.__file__}")
    signature = inspect.signature(function)
    try:
        signature.bind(**args)
    except TypeError as problem:
        section = key.rpartition(".")[0]
        raise error(f"{where}: {problem}; {section}.args are given as keywords to {signature}") from None
    return function  # type: ignore[no-any-return]  # whatever it is, it can be called


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the generators of torch, numpy and Python are seeded; afterwards they are as before."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


def seed_of(*numbers: int) -> int:
    """One seed of several numbers, 64 bits: different for different ones."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def kind_of(value: object) -> str:
    """`a Tensor`, `an int`."""
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"

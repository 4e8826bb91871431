"""What the runtime knows of a model of any family."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distperf.errors import DistperfError
from distperf.model.blocks import repeated_blocks
from distperf.model.blueprint import blueprint_of
from distperf.recipe.runspec import ModelSpec

LLAMA = ModelSpec("llama", 2, 16, 2, 2, 24, 11, False, 1e4, 1e-5, 0.0)


def frozen(*patterns: str) -> set[str]:
    model = blueprint_of(LLAMA, 1, patterns).build()
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_patterns_say_what_is_not_trained():
    """A pattern is a whole name in which * stands for anything, dots too."""
    assert frozen() == set()
    assert frozen("embed_tokens.*", "norm.weight") == {"embed_tokens.weight", "norm.weight"}
    assert len(frozen("layers.0.*")) == 9
    assert frozen("*") == {name for name, _ in blueprint_of(LLAMA, 1).build().named_parameters()}


def test_a_pattern_that_names_nothing_is_refused_with_the_nearest_names():
    """A slip of the pen must not train what was to be frozen."""
    with pytest.raises(
        DistperfError, match=r"model.frozen: embed_token.weight matches no.* embed_tokens.weight,"
    ):
        frozen("embed_token.weight")


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(9))


def test_layers_are_found_under_any_name():
    """The outermost list that holds most: not the experts of a layer, not a short list of heads, not nothing."""
    with torch.device("meta"):
        model = nn.ModuleDict(
            {
                "heads": nn.ModuleList(nn.Linear(3, 3) for _ in range(5)),
                "h": nn.ModuleList(Experts() for _ in range(2)),
                "none": nn.ModuleList(),
            }
        )
    assert repeated_blocks(model) == list(model["h"])
    assert repeated_blocks(nn.Linear(2, 2)) == []

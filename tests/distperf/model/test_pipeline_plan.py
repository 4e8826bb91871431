"""Modules of one's own, cut into stages as they declare."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from distperf.errors import ModelError
from distperf.model.factory import take_values
from distperf.model.pipeline_plan import PipelinePlan, declared_cut
from distperf.parallel.materialize import install
from distperf.recipe.stages import stages

VOCAB, WIDTH = 11, 6


class Decoder(nn.Module):
    pipeline_plan = PipelinePlan(first="embed", blocks="layers", last="head")

    def __init__(self, tied: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
        self.factor = factor
        if tied:
            self.head[1].weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.factor
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("split", [(4,), (1, 3), (2, 1, 1)])
def test_stages_one_after_the_other_are_the_whole(tied, split):
    """Same logits to the bit, same parameter names; what is tied is on first and last stage, one parameter in each."""
    whole = Decoder(tied)
    tokens = torch.randint(VOCAB, (2, 5))
    wanted = whole(tokens)
    names = [name for name, _ in whole.named_parameters()]
    cut = declared_cut(whole)
    assert cut is not None
    assert (cut.width, cut.shared) == (WIDTH, ("embed.weight",) if tied else ())
    fill = take_values(whole)
    found, x = [], tokens
    for place in stages(split):
        stage = cut.stage(place)
        shapes = {name: parameter.shape for name, parameter in stage.named_parameters()}
        install([stage], {name: fill(name, s, 0, s.numel()).view(s) for name, s in shapes.items()})
        found += shapes
        x = stage(x)
    assert torch.equal(x, wanted)
    twice = ["embed.weight"] if tied and len(split) > 1 else []
    assert sorted(found) == sorted(names + twice)
    assert [name for name, _ in whole.named_parameters()] == names


def test_a_plan_that_leaves_something_out_is_refused():
    """A factor between the parts, which stages would lose without a word."""
    with pytest.raises(ModelError, match="embed with the others gives other logits"):
        declared_cut(Decoder(tied=False, factor=2.0))


def test_a_plan_that_names_what_is_not_there_is_refused():
    """With the name."""
    decoder = Decoder(tied=False)
    decoder.pipeline_plan = PipelinePlan(first="embed", blocks="blocks", last="head")
    with pytest.raises(ModelError, match="names blocks, which is no child"):
        declared_cut(decoder)


def test_a_split_of_another_number_of_layers_is_refused():
    """On the rank that has the last stage, with both numbers."""
    cut = declared_cut(Decoder(tied=True))
    assert cut is not None
    with pytest.raises(ModelError, match=r"places 5 layers; layers of the model has 4"):
        cut.stage(stages((2, 3))[1])


def test_a_module_without_a_plan_cannot_be_cut():
    """And is left as it is."""
    assert declared_cut(nn.Linear(2, 2)) is None

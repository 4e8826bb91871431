"""How a model says that its layers can be divided over ranks. A declaration: no process groups here.

Tensor parallelism divides the matrices of every layer over the ranks of the mesh axis tp. Between them runs the
residual stream, of which each rank holds its own positions (sequence parallelism), so that norms and additions
are divided too. A model names, for each module that has parameters, one of six styles:

    style      parameters         takes                  gives
    embedding  rows (vocabulary)  token ids, all         the stream: own positions
    norm       whole              the stream             all positions
    head_norm  whole              own heads (B, S, H, K) the same
    colwise    output features    all positions          own features of all positions
    rowwise    input features     own features           the stream, summed over ranks
    head       rows (vocabulary)  all positions          logits of own vocabulary

A decoder is then `embedding`, and for each half of a block `norm`, some `colwise`, some `rowwise`. What computes
between colwise and rowwise sees this rank's features only, as plain tensors, so attention counts heads by what
arrives: `q.unflatten(-1, (-1, head_size))`. A module of one's own declares it by an attribute:

    self.tensor_plan = TensorPlan(
        {"embed": "embedding", "*norm": "norm", "*.qkv": "colwise", "*.out": "rowwise", "head": "head"}, {"heads": 8}
    )

Source: Shoeybi et al., arXiv:1909.08053 (Megatron); Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from distperf.errors import DistperfError

Style = Literal["embedding", "norm", "head_norm", "colwise", "rowwise", "head"]


@dataclass(frozen=True)
class TensorPlan:
    """What `distperf.parallel.tensor.apply_tensor_parallel` goes by.

    `styles`: pattern of module names (of the whole model, `*` for any part) -> style; the first that matches counts.
    `units`: name -> number of what cannot be cut, such as heads; the number of ranks must divide each.
    `sequence`: false keeps the whole stream on every rank, for models that look at its length (to number positions,
    say); it costs as many bytes sent, but activations between blocks are not divided.
    """

    styles: Mapping[str, Style]
    units: Mapping[str, int] = field(default_factory=dict)
    sequence: bool = True

    def style_of(self, fqn: str) -> Style | None:
        """The style of the module with this name; None for one that is left as it is."""
        return next((style for pattern, style in self.styles.items() if fnmatchcase(fqn, pattern)), None)


def declared_plan(module: nn.Module) -> TensorPlan | None:
    """What a module's attribute `tensor_plan` says; None where it has none.

    Raises:
        DistperfError: it is no TensorPlan.
    """
    plan = getattr(module, "tensor_plan", None)
    if plan is not None and not isinstance(plan, TensorPlan):
        raise DistperfError(
            f"{type(module).__name__}.tensor_plan is a {type(plan).__name__}; it must be a "
            "distperf.model.tensor_plan.TensorPlan"
        )
    return plan


_TRANSFORMERS: dict[str, Style] = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "replicated_with_grad_allreduce": "head_norm",
}


def transformers_plan(config: Any) -> TensorPlan | None:
    """The plan of a decoder of the transformers library, made of what its configuration declares for inference.

    None where that is nothing, or more than the styles here (mixtures of experts). These models number positions by
    the stream's length, so that it stays whole.
    """
    declared: Mapping[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not declared or not _TRANSFORMERS.keys() >= set(declared.values()):
        return None
    styles = {f"*{pattern}": _TRANSFORMERS[style] for pattern, style in declared.items()}
    ends: dict[str, Style] = {"*embed_tokens": "embedding", "*norm": "norm", "*lm_head": "head"}
    units = {"heads": config.num_attention_heads, "key and value heads": config.num_key_value_heads}
    return TensorPlan({**styles, **ends}, units, sequence=False)

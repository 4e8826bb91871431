from types import SimpleNamespace

import pytest
from torch import nn

from distperf.errors import DistperfError
from distperf.model.llama import build_model, tensor_plan
from distperf.model.tensor_plan import TensorPlan, declared_plan, transformers_plan
from distperf.recipe.runspec import ModelSpec

SPEC = ModelSpec("llama", 2, 32, 4, 2, 64, 96, False, 10000.0, 1e-5, 0.0)


def test_every_module_of_a_llama_with_parameters_has_a_style():
    """No parameter is left to be whole by oversight, and no style is given to what has none."""
    plan = tensor_plan(SPEC)
    for fqn, module in build_model(SPEC).named_modules():
        assert (plan.style_of(fqn) is not None) == bool(list(module.parameters(recurse=False))), fqn


def test_the_first_pattern_that_matches_counts():
    plan = TensorPlan({"layers.*.q_norm": "head_norm", "*norm": "norm"})
    assert plan.style_of("layers.3.q_norm") == "head_norm"
    assert plan.style_of("layers.3.norm") == "norm"
    assert plan.style_of("layers.3") is None


def test_a_module_declares_its_plan_by_an_attribute():
    module = nn.Linear(2, 2)
    assert declared_plan(module) is None
    module.tensor_plan = TensorPlan({"": "head"})
    assert declared_plan(module) is module.tensor_plan
    module.tensor_plan = {"": "head"}
    with pytest.raises(DistperfError, match=r"Linear.tensor_plan is a dict; it must be"):
        declared_plan(module)


def test_the_plan_of_a_transformers_configuration():
    """Its own styles by our names, with both ends and the norms; None for what we have no style for."""
    declared = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
        "layers.*.mlp.down_proj": "rowwise",
    }
    config = SimpleNamespace(base_model_tp_plan=declared, num_attention_heads=8, num_key_value_heads=2)
    plan = transformers_plan(config)
    assert plan is not None
    assert not plan.sequence
    assert plan.units == {"heads": 8, "key and value heads": 2}
    styles = {
        "model.embed_tokens": "embedding",
        "model.layers.0.input_layernorm": "norm",
        "model.layers.0.self_attn.q_norm": "head_norm",
        "model.layers.1.self_attn.q_proj": "colwise",
        "model.layers.1.mlp.down_proj": "rowwise",
        "model.norm": "norm",
        "lm_head": "head",
        "model.layers.0.self_attn": None,
    }
    assert {fqn: plan.style_of(fqn) for fqn in styles} == styles
    declared["layers.*.mlp.experts"] = "moe_tp_experts"
    assert transformers_plan(config) is None
    assert transformers_plan(SimpleNamespace()) is None

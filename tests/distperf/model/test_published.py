"""What parameters are called where models are published."""

from __future__ import annotations

from distperf.model.published import Published, llama_weight, renamed_config, transformers_weight
from distperf.model.stored import sources


def test_names_of_a_llama():
    """All but the head are inside `model`."""
    assert llama_weight("layers.0.mlp.up_proj.weight", (4, 2)).names == ("model.layers.0.mlp.up_proj.weight",)
    assert llama_weight("lm_head.weight", (4, 2)).names == ("lm_head.weight",)


def test_experts_leave_one_by_one_and_come_back():
    """What is written is what reading puts together again, in order, in either way of naming."""
    fqn, shape = "model.layers.1.mlp.experts.gate_up_proj", (3, 8, 2)
    for kind, first in (
        ("mixtral", ".block_sparse_moe.experts.0.w1.weight"),
        ("qwen3_moe", ".mlp.experts.0.gate_proj.weight"),
    ):
        found = transformers_weight(fqn, shape, model_type=kind)
        assert found.names[0] == "model.layers.1" + first
        assert (found.shape, found.numel, len(found.names)) == ((4, 2), 8, 6)
        assert sources(fqn, shape, found.names, {}) == list(found.names)


def test_only_mixtral_calls_its_router_otherwise():
    """The rule is about one family's files."""
    fqn = "model.layers.1.mlp.gate.weight"
    assert transformers_weight(fqn, (4, 2), model_type="qwen3_moe") == Published(fqn, (4, 2), (fqn,), (4, 2))
    (name,) = transformers_weight(fqn, (4, 2), model_type="mixtral").names
    assert name == "model.layers.1.block_sparse_moe.gate.weight"


def test_a_config_says_the_dtype_of_what_lies_beside_it():
    """Under both keys, whatever it said before."""
    assert renamed_config({"a": 1, "dtype": "float16"}, "bfloat16") == {
        "a": 1,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }

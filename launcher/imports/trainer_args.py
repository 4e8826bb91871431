"""What the Hugging Face Trainer puts where a DeepSpeed configuration says `auto`: its own arguments.

Source: the table under "auto" values in transformers' documentation of its DeepSpeed integration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ARGUMENTS = {
    "per_device_train_batch_size": ("train_micro_batch_size_per_gpu",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "max_grad_norm": ("gradient_clipping",),
    "learning_rate": ("optimizer.params.lr", "scheduler.params.warmup_max_lr"),
    "weight_decay": ("optimizer.params.weight_decay",),
    "adam_epsilon": ("optimizer.params.eps",),
    "warmup_steps": ("scheduler.params.warmup_num_steps",),
    "max_steps": ("scheduler.params.total_num_steps", "max_steps"),
    "fp16": ("fp16.enabled",),
    "bf16": ("bf16.enabled", "bfloat16.enabled"),
    "seed": ("seed",),
}
# The Trainer's own defaults, which count as soon as it is the Trainer that is called.
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_epsilon": 1e-8,
    "warmup_steps": 0,
    "fp16": False,
    "bf16": False,
}


def filled_in(args: Sequence[str]) -> dict[str, Any]:
    """Dotted key of DeepSpeed's -> value, from a script's arguments. Empty where they are not the Trainer's."""
    given = _options(args)
    said = {name: given[name] for name in (*ARGUMENTS, "adam_beta1", "adam_beta2") if name in given}
    if not said and "deepspeed" not in given:
        return {}
    said = {**DEFAULTS, **said}
    filled = {key: said[name] for name, keys in ARGUMENTS.items() if name in said for key in keys}
    filled["optimizer.params.betas"] = [said.get("adam_beta1", 0.9), said.get("adam_beta2", 0.999)]
    return filled


def _options(args: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value` and bare `--name` (true); dashes inside a name as underscores."""
    options: dict[str, Any] = {}
    for place, word in enumerate(args):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = args[place + 1] if place + 1 < len(args) else "--"
        if not equals:
            value = "true" if following.startswith("--") else following
        options[name.replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if any(char in text for char in ".eE") else int(text)
    except ValueError:
        return text

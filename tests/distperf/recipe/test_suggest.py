"""Which key was meant."""

import pytest

from distperf.recipe.schema import known_keys
from distperf.recipe.suggest import ALIASES, advice, nearest

KNOWN = list(known_keys())


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("", "learning_rate", "optimizer.lr"),
        ("train", "learning-rate", "optimizer.lr"),
        ("train", "stpes", "train.steps"),
        ("train", "Steps", "train.steps"),
        ("", "num-epochs", "train.steps"),
        ("", "steps", "train.steps"),
        ("train", "lr", "optimizer.lr"),
        ("optimizer", "warmup_steps", "optimizer.schedule.warmup_steps"),
        ("", "seq_len", "data.seq_len"),
        ("", "zero", "parallel.zero"),
        ("", "tain", "train"),
        ("", "extend", "extends"),
        ("model", "hidden_size", "model.hidden"),
        ("train", "gradient_accumulation_steps", "train.micro_batch"),
        ("optimizer", "name_", "optimizer.name"),
        ("launch", "max_restart", "launch.max_restarts"),
        ("optimizer", "lora_r", None),
        ("", "zzz", None),
        ("", "x" * 10_000, None),
    ],
)
def test_nearest(section: str, key: str, meant: str | None):
    """J04: misspelt, misplaced, or called as other tools call it."""
    assert nearest(section, key, KNOWN) == meant


def test_without_a_guess_the_keys_of_the_section_are_told():
    """All of them, and only them."""
    assert advice("data", "q", KNOWN).startswith("allowed in data: text, tokens")


def test_aliases_lead_to_keys_that_exist_and_shadow_none():
    """An alias is no key of ours, and means one only."""
    words = [alias for aliases in ALIASES.values() for alias in aliases.split()]
    assert set(ALIASES) <= set(KNOWN)
    assert len(words) == len(set(words))

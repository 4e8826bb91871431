"""DeepSpeed configurations: every key gets its word, and what they come to is a recipe."""

from pathlib import Path

import pytest
import yaml

from distperf.errors import BatchError
from distperf.recipe.load import load_recipe
from launcher.imports import render
from launcher.imports.deepspeed import from_deepspeed
from launcher.imports.findings import ASKED, Fate, flat, settled
from launcher.imports.trainer_args import filled_in

CASES = yaml.safe_load(Path(__file__).with_name("ds_configs.yaml").read_text())
FILL = {
    "model.preset": "llama-1m",
    "data.synthetic": True,
    "train.steps": 50_000,
    "train.global_batch": 64,
    "precision": "bf16",
}


def imported(case):
    return from_deepspeed(case["config"], filled_in(case.get("args", ())), case.get("ranks"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_key_gets_a_word(case):
    """Every key of a configuration is reported once, with the figures that the case states; the lines are as stated."""
    found = imported(case)
    assert [finding.key for finding in found.findings if finding.fate is Fate.UNKNOWN] == case.get(
        "unknown", []
    )
    assert sorted(finding.key for finding in found.findings) == sorted(flat(case["config"]))
    assert [found.count(fate) for fate in Fate] == case["counts"]
    lines = {line.key: line.value for line in found.lines}
    assert len(lines) == len(found.lines)
    assert {key: lines.get(key, "not there") for key in case["lines"]} == case["lines"]


def test_what_published_configurations_hold_is_known():
    """But for the three cases with keys that nobody knows, all keys are understood."""
    keys = sum(len(flat(case["config"])) for case in CASES)
    assert sum(imported(case).understood for case in CASES) == keys - 4
    assert len(CASES) >= 20


def test_the_figures_in_the_docs():
    """docs/importing.md has the figures of every case, and of all together."""
    page = (Path(__file__).parents[3] / "docs" / "importing.md").read_text()
    rows = [(case["name"], case["counts"]) for case in CASES]
    rows.append(
        (f"**all {len(CASES)}**", [sum(column) for column in zip(*(row[1] for row in rows), strict=True)])
    )
    for name, counts in rows:
        assert f"| {name} | {' | '.join(map(str, (sum(counts), *counts)))} |" in page


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_recipe_loads_once_it_is_filled_in(case, tmp_path):
    """What is written is a recipe as soon as the user has said what the configuration leaves open."""
    path = tmp_path / "recipe.yaml"
    found = settled(imported(case), FILL)
    path.write_text(render.recipe(found, "ds_config.json"))
    recipe = load_recipe(path)
    assert recipe.train.steps == 50_000
    assert not {line.key for line in found.lines if line.value is ASKED} & FILL.keys()


def test_what_this_version_does_not_take_is_told_not_written():
    """A value that the schema refuses is no line of the recipe, and its key is said to be not available yet."""
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": -1.0}}}
    found = settled(from_deepspeed(config, {}, 1), {})
    assert "optimizer.lr" not in {line.key for line in found.lines}
    fates = {finding.key: finding.fate for finding in found.findings}
    assert fates["optimizer.params.lr"] is Fate.INSTEAD


@pytest.mark.parametrize(
    ("config", "ranks", "batch"),
    [
        ({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}, 8, (256, 4)),
        ({"train_batch_size": 256, "gradient_accumulation_steps": 8}, 8, (256, 4)),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}, 8, (256, 4)),
        ({"train_batch_size": 256}, 8, (256, 32)),
        ({"train_micro_batch_size_per_gpu": 4}, 8, (32, 4)),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 4,
                "tensor_parallel": {"autotp_size": 4},
            },
            8,
            (64, 4),
        ),
        ({"train_micro_batch_size_per_gpu": 4, "pipeline": {"stages": 2}}, 8, (16, 4)),
        ({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}, None, (256, 4)),
        ({"train_micro_batch_size_per_gpu": 4}, None, (ASKED, 4)),
    ],
)
def test_batch_equation(config, ranks, batch):
    """Of batch, micro-batch and accumulation the missing ones follow, over data-parallel ranks, not all of them."""
    lines = {line.key: line.value for line in from_deepspeed(config, {}, ranks).lines}
    assert (lines["train.global_batch"], lines["train.micro_batch"]) == batch


@pytest.mark.parametrize(
    ("config", "ranks", "numbers"),
    [
        (
            {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8},
            7,
            "252 or 280",
        ),
        (
            {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8},
            4,
            "4 x 8 x 4 = 128",
        ),
        ({"train_batch_size": 3}, 8, "are: 8"),
        (
            {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 3}},
            8,
            "8 ranks are no multiple of tp x pp x cp = 3",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_told_with_its_numbers(config, ranks, numbers):
    """The error holds every factor, the product, and the nearest sizes that fit."""
    with pytest.raises(BatchError) as error:
        from_deepspeed(config, {}, ranks)
    assert numbers in str(error.value)

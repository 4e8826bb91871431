"""`distperf import`: files in, recipe and report out."""

import json

import pytest

from distperf.recipe.load import load_recipe
from launcher.errors import UsageError
from launcher.importing import Sources, imported
from launcher.imports import render


def test_everything_at_once(tmp_path):
    """Configuration, hostfile, environment file and command line become one recipe and one `launch`."""
    config = tmp_path / "ds.json"
    config.write_text(
        json.dumps(
            {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}
        )
    )
    (tmp_path / "hosts").write_text("a slots=8\nb slots=8\n")
    (tmp_path / "env").write_text(
        "NCCL_DEBUG=INFO\nexport WANDB_API_KEY=abc\n\n# a note\nMASTER_PORT=1\nPATHS=a b:c\n"
    )
    words = (
        "deepspeed",
        "--num_nodes",
        "1",
        "t.py",
        "--deepspeed",
        "ds.json",
        "--per_device_train_batch_size",
        "4",
    )
    sets = ("model.preset=llama-1m", "data.synthetic=true", "train.steps=10")
    found = imported(Sources(config, tmp_path / "hosts", tmp_path / "env", sets=sets, words=words))
    text = render.recipe(found, "all")
    assert "abc" not in text + "\n".join(render.report(found, ["all"]))
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert (recipe.train.global_batch, recipe.train.micro_batch) == (32, 4)
    assert recipe.launch.env == {"NCCL_DEBUG": "INFO", "PATHS": "a b:c"}
    assert recipe.launch.env_secret == ("WANDB_API_KEY",)
    assert found.command == ("--hosts", str(tmp_path / "hosts"), "--include", "a")


def test_a_command_line_alone_keeps_the_script(tmp_path):
    """Its arguments arrive byte for byte, whatever they hold."""
    args = ("--name", "a b", "it's", '"q"', "$HOME", "yes", "010", "# no", "日本", "", "x: y", "-1")
    text = render.recipe(
        imported(Sources(None, words=("torchrun", "--nproc_per_node=2", "train.py", *args))), "it"
    )
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert (recipe.script.path, recipe.script.args) == ("train.py", args)
    assert recipe.launch.nproc == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"a": 1,\n "b": }', "a.json:2:7: not JSON"),
        ("a.json", '{"a": 1, "a": 2}', "'a' is given twice"),
        ("a.json", "[]", "is a JSON object"),
        ("a.yaml", "a: 1", "not a configuration of Accelerate's"),
    ],
)
def test_files_that_are_none(tmp_path, name, text, message):
    """Told with the file, and where in it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        imported(Sources(tmp_path / name))
    assert message in str(error.value)


def test_nothing_to_import():
    """Neither file nor command line."""
    with pytest.raises(UsageError):
        imported(Sources(None))

"""The batch script: what is asked for, and nothing else."""

import subprocess

import pytest

from distperf.recipe.load import load_recipe
from launcher.slurm.script import batch_script

COMMAND = ("/opt/env/bin/python", "-m", "launcher", "launch", "my recipe.yaml")


@pytest.fixture
def script(tmp_path):
    def make(slurm, launch="{}"):
        path = tmp_path / "big.yaml"
        path.write_text(f"script: {{path: train.py}}\nlaunch: {launch}\nslurm: {slurm}\n")
        text = batch_script(load_recipe(path), COMMAND, "runs", "big.yaml")
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        return text

    return make


def options(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_a_whole_one(script):
    """Every key of the section is an option; setup lines come before the one command, whose words are quoted."""
    text = script(
        "{partition: gpu, account: a, qos: q, time: 1-12:00:00, nodes: 4, gpus: 8, cpus: 12, mem: 0, "
        "constraint: a100|h100, "
        'extra: ["--exclusive", "--mail-type=END"], setup: [module load cuda], signal_s: 300}'
    )
    assert options(text) == [
        "--job-name=big", "--output=runs/slurm-%j.log", "--open-mode=append", "--partition=gpu", "--account=a",
        "--qos=q", "--time=1-12:00:00", "--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--cpus-per-task=12",
        "--mem=0", "--constraint=a100|h100", "--signal=B:USR1@300", "--requeue", "--exclusive", "--mail-type=END",
    ]  # fmt: skip
    assert text.startswith("#!/bin/bash\n")
    assert text.index("module load cuda") < text.index("exec ")
    assert text.splitlines()[-1] == "exec /opt/env/bin/python -m launcher launch 'my recipe.yaml'"


def test_the_smallest(script):
    """What nobody has said is left to the cluster."""
    assert options(script("{}", launch="{nproc: 2}")) == [
        "--job-name=big", "--output=runs/slurm-%j.log", "--open-mode=append", "--nodes=1", "--ntasks-per-node=2",
        "--signal=B:USR1@120", "--requeue",
    ]  # fmt: skip


def test_another_signal_and_a_container(script):
    """The signal is asked for by its name; the container is srun's affair, and told in a comment."""
    text = script("{signal: USR2, signal_s: 60, container: {image: /images/a.sqsh}}")
    assert "--signal=B:USR2@60" in options(text)
    assert "container /images/a.sqsh" in text
    assert not any("container" in option for option in options(text))


def test_no_warning_no_requeue_and_an_array(script):
    """Each can be turned off; the output of an array's elements is kept apart."""
    found = options(script('{signal_s: 0, requeue: false, extra: ["--array=0-3%2"]}'))
    assert not any(option.startswith("--signal") for option in found)
    assert {"--no-requeue", "--output=runs/slurm-%A_%a.log", "--array=0-3%2"} <= set(found)

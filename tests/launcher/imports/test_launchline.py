"""Command lines of other launchers."""

import pytest

from launcher.errors import HostfileError, UsageError
from launcher.hostfile import parse_hostfile
from launcher.imports.findings import Fate
from launcher.imports.launchline import from_line, read_line, script_lines, world

HOSTS = parse_hostfile("a slots=4\nb slots=4\nc slots=2\n", "hostfile").hosts


def lines_of(text, hosts=None):
    line = read_line(text.split())
    found = from_line(line, hosts, "hostfile" if hosts else None)
    return {each.key: each.value for each in (*script_lines(line), *found.lines)}, found


def test_torchrun():
    """Ranks a node, restarts and the script are taken over; the rendezvous needs nothing."""
    text = (
        "OMP_NUM_THREADS=2 torchrun --nnodes=2 --nproc-per-node 8 --rdzv-backend=c10d --rdzv_endpoint a:29500 "
        "train.py --lr 1e-3 -v"
    )
    lines, found = lines_of(text)
    assert lines == {
        "script.path": "train.py",
        "script.args": ["--lr", "1e-3", "-v"],
        "launch.env.OMP_NUM_THREADS": "2",
        "launch.nproc": 8,
        "launch.max_restarts": 0,
    }
    fates = {finding.key: finding.fate for finding in found.findings}
    assert fates["--rdzv_backend"] is Fate.NEEDLESS
    assert fates["--nnodes"] is Fate.CARRIED
    assert world(read_line(text.split()), None) == 16


@pytest.mark.parametrize(
    "text",
    ["python -m torch.distributed.run", "python3 -m torch.distributed.launch", "/opt/env/bin/torchrun"],
)
def test_torchrun_by_other_names(text):
    """The launcher is known as a module and by a path too."""
    assert read_line([*text.split(), "--standalone", "train.py"]).tool == "torchrun"


@pytest.mark.parametrize(
    ("options", "command", "ranks"),
    [
        ("", (), 10),
        ("--include a:0,2@c", ("--include", "a:0,2@c"), 4),
        ("--exclude b", ("--exclude", "b"), 6),
        ("--num_nodes 2", ("--include", "a@b"), 8),
        ("--num_gpus 2", ("--include", "a:0,1@b:0,1@c"), 6),
        ("--num_nodes=2 --num_gpus=1", ("--include", "a:0@b:0"), 2),
    ],
)
def test_deepspeed_chooses_hosts_and_slots(options, command, ranks):
    """DeepSpeed's filters stay as they are; its counts become a filter over the hostfile."""
    line = read_line(["deepspeed", "--hostfile", "hostfile", *options.split(), "train.py"])
    assert from_line(line, HOSTS, "hostfile").command == ("--hosts", "hostfile", *command)
    assert world(line, HOSTS) == ranks


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ("--include a --num_gpus 2", UsageError, "give one of them"),
        ("--num_nodes 9", UsageError, "the hostfile has 3"),
        ("--num_gpus 4", UsageError, "c has fewer slots"),
        ("--include d", HostfileError, "no host d"),
        ("--num_gpus many", UsageError, "not a number"),
    ],
)
def test_deepspeed_refused(options, error, text):
    """What DeepSpeed would refuse, or could not hold, is refused here with the reason."""
    line = read_line(["deepspeed", *options.split(), "train.py"])
    with pytest.raises(error, match=text):
        from_line(line, HOSTS, "hostfile")


def test_ssh_and_environment_options():
    """Port, ssh arguments and the script that activates an environment have their places."""
    words = [
        "deepspeed",
        "--ssh_port",
        "2222",
        "--launcher_args",
        "-o ConnectTimeout=3",
        "--venv_script",
        "env/bin/activate",
        "t.py",
    ]
    found = from_line(read_line(words), None, None)
    assert found.command == ("--ssh-option", "Port=2222", "--ssh-option", "ConnectTimeout=3")
    assert {line.key: line.value for line in found.lines} == {"launch.setup": ["source env/bin/activate"]}


def test_accelerate_launch():
    """Accelerate counts ranks over all machines."""
    lines, _ = lines_of(
        "accelerate launch --num_processes 16 --num_machines 2 --mixed_precision bf16 run.py --x 1"
    )
    assert lines["launch.nproc"] == 8
    assert lines["script.path"] == "run.py"


def test_an_option_that_nobody_knows_is_told():
    """With the nearest one that exists."""
    _, found = lines_of("torchrun --nproc_per_nod 2 train.py")
    (finding,) = [each for each in found.findings if each.fate is Fate.UNKNOWN]
    assert "--nproc_per_node" in finding.note


@pytest.mark.parametrize(
    "text", ["mpirun -np 4 train.py", "torchrun --standalone", "python train.py", "accelerate config"]
)
def test_what_is_no_launch_is_refused(text):
    """Another tool, or no script."""
    with pytest.raises(UsageError):
        read_line(text.split())

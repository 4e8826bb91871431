"""Command lines of `deepspeed`, `torchrun` and `accelerate launch` as `distperf launch` and a script's recipe."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher import filters
from launcher.errors import UsageError
from launcher.hostfile import Host
from launcher.imports.findings import Fate, Finding, Imported, Line
from launcher.imports.options import ACCELERATE, DEEPSPEED, TORCHRUN, Option

TOOLS = {"deepspeed": DEEPSPEED, "torchrun": TORCHRUN, "accelerate": ACCELERATE}
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
SHORT = {"H": "hostfile", "i": "include", "e": "exclude", "m": "module", "r": "redirects", "t": "tee"}


@dataclass(frozen=True)
class LaunchLine:
    """A launcher's command line, taken apart. unknown: options that the tool has not, as far as known here."""

    tool: str
    options: dict[str, str]
    script: str
    args: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)  # NAME=VALUE words before the command

    def whole(self, name: str) -> int | None:
        """The option as a number. Raises UsageError."""
        text = self.options.get(name)
        if text is None:
            return None
        if not text.isdigit():
            raise UsageError(f"--{name} {text}: not a number")
        return int(text)


def read_line(words: Sequence[str]) -> LaunchLine:
    """Take a command line apart. Raises UsageError where it is none of the launchers', or names no script."""
    env: dict[str, str] = {}
    rest = list(words[0].split()) if len(words) == 1 and " " in words[0] else list(words)
    while rest and "=" in rest[0] and rest[0].partition("=")[0].isidentifier():
        name, _, value = rest.pop(0).partition("=")
        env[name] = value
    tool, rest = _tool(rest)
    table = TOOLS[tool]
    options: dict[str, str] = {}
    unknown: list[str] = []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = SHORT.get(name, name).replace("-", "_")
        entry = table.get(name)
        if entry is None:
            unknown.append(name)
        if equals:
            options[name] = value
        elif entry is not None and entry.flag:
            options[name] = "true"
        elif rest and (entry is not None or not rest[0].startswith("-")):
            options[name] = rest.pop(0)
        else:
            options[name] = "true"
    if not rest:
        raise UsageError(f"{tool}: no script in this command line")
    return LaunchLine(tool, options, rest[0], tuple(rest[1:]), tuple(unknown), env)


def _tool(words: list[str]) -> tuple[str, list[str]]:
    name = words[0].rpartition("/")[2] if words else ""
    if name.startswith("python") and "-m" in words[:3]:
        place = words.index("-m") + 1
        module = words[place] if place < len(words) else ""
        if module in MODULES:
            return MODULES[module], words[place + 1 :]
    if name == "accelerate" and words[1:2] == ["launch"]:
        return name, words[2:]
    if name in ("deepspeed", "torchrun"):
        return name, words[1:]
    raise UsageError(
        f"{shlex.join(words[:3]) or 'nothing'}: after -- stands a command line of deepspeed, torchrun or "
        "accelerate launch, as you type it today"
    )


def script_lines(line: LaunchLine) -> tuple[Line, ...]:
    """The recipe that runs the same script with the same arguments, unchanged."""
    why = f"the script of the {line.tool} command line"
    if "module" in line.options:
        raise UsageError(
            f"{line.script} is run as a module; not yet: write a file that calls it, and name that one"
        )
    lines = [Line("script.path", line.script, why)]
    if line.args:
        lines.append(Line("script.args", list(line.args), "its arguments"))
    return tuple(lines)


def from_line(line: LaunchLine, hosts: tuple[Host, ...] | None, hostfile: str | None) -> Imported:
    """What the launcher's own options come to. hosts: of the hostfile, where one is named."""
    lines: list[Line] = [
        Line(f"launch.env.{name}", value, "before the command") for name, value in line.env.items()
    ]
    used: dict[str, str] = {}
    command = ["--hosts", hostfile] if hostfile else []
    chosen = _chosen(line, hosts, used)
    command += chosen
    if hosts is None and (count := ranks_here(line)) is not None:
        lines.append(Line("launch.nproc", count, "ranks a node"))
    if line.tool != "deepspeed":
        restarts = line.whole("max_restarts") or 0
        lines.append(Line("launch.max_restarts", restarts, f"{line.tool}'s, 0 unless given"))
    for option, make in _MAKERS.items():
        if option in line.options:
            made = make(line.options[option])
            used[option] = made.note
            lines += made.lines
            command += made.command
    findings = tuple(_finding(line, name, used) for name in line.options)
    return Imported(tuple(lines), findings, tuple(command))


def ranks_here(line: LaunchLine) -> int | None:
    """Ranks a node, where the command line says it as a number."""
    if line.tool == "accelerate":
        total = line.whole("num_processes")
        return None if total is None else total // (line.whole("num_machines") or 1)
    if line.tool == "deepspeed":
        return line.whole("num_gpus")
    text = line.options.get("nproc_per_node", "")  # gpu, cpu and auto: the devices that are found
    return int(text) if text.isdigit() else None


def nodes(line: LaunchLine) -> int | None:
    """Nodes that take part; of torchrun's MIN:MAX, the most."""
    text = line.options.get(
        {"deepspeed": "num_nodes", "torchrun": "nnodes", "accelerate": "num_machines"}[line.tool], ""
    )
    most = text.rpartition(":")[2]
    return int(most) if most.isdigit() else None


def world(line: LaunchLine, hosts: tuple[Host, ...] | None) -> int | None:
    """The number of ranks that the command line starts, where it says so."""
    if hosts is None:
        per_node = ranks_here(line)
        return None if per_node is None else per_node * (nodes(line) or 1)
    left = filters.apply_filters(hosts, line.options.get("include"), line.options.get("exclude"))
    left = left[: nodes(line)]
    most = ranks_here(line)
    sizes = [most if host.slots is None else len(host.slots[:most]) for host in left]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _chosen(line: LaunchLine, hosts: tuple[Host, ...] | None, used: dict[str, str]) -> list[str]:
    """--include or --exclude: DeepSpeed's own, or what its num_nodes and num_gpus leave of the hostfile."""
    given = [name for name in ("include", "exclude") if line.options.get(name)]
    count, per_node = nodes(line), ranks_here(line)
    if line.tool == "deepspeed" and given and {"num_nodes", "num_gpus"} & line.options.keys():
        raise UsageError(
            "deepspeed refuses --num_nodes and --num_gpus beside --include and --exclude: give one of them"
        )
    for name in given:
        used[name] = f"launch --{name}, in the same words"
    if given:
        filters.apply_filters(hosts or (), line.options.get("include"), line.options.get("exclude"))
        return [word for name in given for word in (f"--{name}", line.options[name])]
    for name in ("num_gpus", "nproc_per_node", "num_processes"):
        used[name] = (
            "the hostfile's slots"
            if hosts is not None
            else f"launch.nproc: {per_node or 'the devices found'}"
        )
    for name in ("num_nodes", "nnodes", "num_machines"):
        alone = (
            "this machine, where no hostfile is named"
            if count in (None, 1)
            else f"name {count} hosts in a hostfile"
        )
        used[name] = "the hostfile's hosts" if hosts is not None else alone
    if ":" in line.options.get("nnodes", ""):
        used["nnodes"] = (
            f"launch.min_nodes: {line.options['nnodes'].partition(':')[0]}, with the most in the hostfile"
        )
    if hosts is None or (count is None and per_node is None):
        return []
    if count is not None and count > len(hosts):
        raise UsageError(f"{count} nodes are asked for, and the hostfile has {len(hosts)}")
    kept = hosts[:count]
    if short := [host.name for host in kept if per_node and host.slots and len(host.slots) < per_node]:
        raise UsageError(f"{per_node} ranks a node are asked for, and {short[0]} has fewer slots")
    if kept == hosts and all(per_node is None or len(host.slots or ()) in (0, per_node) for host in kept):
        return []
    chosen = "@".join(_named(host, per_node) for host in kept)
    return ["--include", chosen]


def _named(host: Host, count: int | None) -> str:
    """A host in a filter, with its first `count` slots."""
    name = f"[{host.name}]" if ":" in host.name else host.name
    slots = (host.slots or ())[:count]
    return f"{name}:{','.join(map(str, slots))}" if slots != (host.slots or ()) else name


@dataclass(frozen=True)
class _Made:
    note: str
    lines: tuple[Line, ...] = ()
    command: tuple[str, ...] = ()


def _ssh_args(text: str) -> _Made:
    """`-o Key=Value` and `-p PORT` of ssh's or pdsh's arguments."""
    words = shlex.split(text)
    options = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-o"]
    options += [f"Port={words[i + 1]}" for i, word in enumerate(words[:-1]) if word == "-p"]
    command = tuple(word for option in options for word in ("--ssh-option", option))
    return _Made(
        f"launch {shlex.join(command)}" if command else "put what it means for ssh into ~/.ssh/config",
        (),
        command,
    )


_MAKERS: Mapping[str, Callable[[str], _Made]] = {
    "ssh_port": lambda port: _Made("launch --ssh-option Port=", (), ("--ssh-option", f"Port={port}")),
    "launcher_args": _ssh_args,
    "venv_script": lambda path: _Made(
        f"launch.setup: source {path}",
        (Line("launch.setup", [f"source {shlex.quote(path)}"], "--venv_script"),),
    ),
    "hostfile": lambda path: _Made("launch --hosts: the format is the same"),
    "deepspeed_hostfile": lambda path: _Made("launch --hosts: the format is the same"),
    "config_file": lambda path: _Made("import that file too: `distperf import FILE`"),
    "deepspeed_config_file": lambda path: _Made("import that file too: `distperf import FILE`"),
    "max_restarts": lambda text: _Made(f"launch.max_restarts: {text}"),
    "gpu_ids": lambda text: _Made("a hostfile line has gpus=0,2; on this machine set CUDA_VISIBLE_DEVICES"),
}


def _finding(line: LaunchLine, name: str, used: Mapping[str, str]) -> Finding:
    entry: Option | None = TOOLS[line.tool].get(name)
    shown: Any = line.options[name]
    key = f"--{name}"
    if entry is None:
        near = difflib.get_close_matches(name, TOOLS[line.tool], n=1)
        hint = f"did you mean --{near[0]}?" if near else f"not an option of {line.tool}'s that is known here"
        return Finding(key, shown, Fate.UNKNOWN, hint)
    if entry.fate is None:
        note = used.get(name, "in the script's own hands")
        return Finding(key, shown, Fate.CARRIED, note)
    return Finding(key, shown, entry.fate, entry.note)

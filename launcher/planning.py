"""From a command line to a plan: parse, resolve, place. Contacts nobody; only files are read.

`plan_again` is the same for a restart that cannot have the hosts of before.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distperf import contract
from distperf.errors import BatchError, MeshError, RecipeError
from distperf.recipe.load import load_recipe, script_recipe
from distperf.recipe.mesh import MeshShape
from distperf.recipe.planner.hardware import UNKNOWN, Hardware
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import RunSpec, to_json
from distperf.recipe.schema import Recipe
from launcher import filters, words
from launcher.agent.facts import count_devices, node_facts
from launcher.bench.kept import is_still, of_hosts
from launcher.errors import PlacementError, UsageError
from launcher.hardware import assumed, of_nodes, said, with_measured
from launcher.hostfile import Host, Hostfile, load_hostfile, local_hostfile, parse_hostfile
from launcher.plan import (
    TRAINING,
    Placement,
    Program,
    fill_slots,
    first_slots,
    label,
    place,
    split_axes,
)
from launcher.rundir import RunDir, find_run, new_run_id
from launcher.slurm.allocation import Allocation, allocation
from launcher.slurm.queue import run_of
from launcher.summary import Color


@dataclass(frozen=True)
class Request:
    """What the user asked for, as the command line says it."""

    recipe: Path | None = None
    script: str | None = None
    script_args: tuple[str, ...] = ()
    hosts: Path | None = None
    include: str | None = None
    exclude: str | None = None
    sets: tuple[str, ...] = ()
    nproc: int | None = None
    run_dir: Path = Path("runs")
    resume: str | None = None
    ssh_options: tuple[str, ...] = ()
    check: bool = True
    quiet: bool = False
    verbose: bool = False
    assume: str | None = None
    color: Color = "auto"


@dataclass(frozen=True)
class Parsed:
    """The request with its files read. hosts may still lack slots."""

    recipe: Recipe
    hosts: tuple[Host, ...]
    hostfile_text: str | None
    warnings: tuple[str, ...]
    run: RunDir
    workdir: str
    resume: str = ""
    ssh_options: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()  # of the recipe
    allocation: Allocation | None = None  # the job of SLURM's that gives the hosts
    found: Hardware = UNKNOWN  # what ranks run on, as far as anybody has looked

    @property
    def local(self) -> bool:
        """No hostfile was named, and no job gives hosts: this machine, no SSH."""
        return self.hostfile_text is None

    @property
    def stall_timeout_s(self) -> float | None:
        """Seconds without a step that the recipe allows; None for auto."""
        given = self.recipe.launch.stall_timeout_s
        return None if given == "auto" else given


@dataclass(frozen=True)
class Planned:
    """Everything decided: what a dry run prints and a launch carries out."""

    parsed: Parsed
    spec: RunSpec | None  # None: a script of the user's
    mesh: MeshShape
    placement: Placement
    program: Program = field(repr=False)
    hardware: Hardware = UNKNOWN

    @property
    def ranks_per_host(self) -> int:
        """On the host that has most."""
        return max(len(node.ranks) for node in self.placement.nodes)

    @property
    def spares(self) -> dict[str, list[str]]:
        """Spare host -> hosts whose place it can take, for it has as many slots."""
        nodes = [node.host for node in self.placement.nodes]
        return {
            label(spare): [label(host) for host in nodes if len(host.slots or ()) <= len(spare.slots or ())]
            for spare in self.parsed.hosts[len(self.parsed.hosts) - self.parsed.recipe.launch.spares :]
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the files that were read, of axes that hosts cut, and of spares that can take nobody's place."""
        useless = [spare for spare, fits in self.spares.items() if not fits]
        text = "spare {} has fewer slots than any node, and can take the place of none"
        return (*self.parsed.warnings, *split_axes(self.placement), *map(text.format, useless))


def parse(request: Request) -> Parsed:
    """Read recipe and hostfile. Contacts nothing. Raises RecipeError, HostfileError, UsageError."""
    sets = request.sets if request.nproc is None else (*request.sets, f"launch.nproc={request.nproc}")
    if request.script is not None:
        recipe = script_recipe(request.script, request.script_args, sets)
    else:
        assert request.recipe is not None
        recipe = load_recipe(request.recipe, sets)
    nproc = None if recipe.launch.nproc == "auto" else recipe.launch.nproc
    found, job = UNKNOWN, None
    if request.hosts is None and request.assume is None:
        job = allocation(os.environ, nproc)
    if request.assume is not None:
        if request.hosts is not None or request.nproc is not None:
            raise UsageError("--assume is in place of --hosts and --nproc")
        text, found = assumed(request.assume, recipe.precision)
        hostfile = parse_hostfile(text, "--assume")
        hosts = hostfile.hosts
    elif job is not None:
        hostfile = Hostfile("(SLURM)", job.hosts, text=job.hostfile)
        hosts = filters.apply_filters(job.hosts, request.include, request.exclude)
    elif request.hosts is None:
        hostfile = local_hostfile(nproc or max(1, _local_devices()))
        if request.include or request.exclude:
            raise UsageError("--include and --exclude choose from a hostfile: name one with --hosts")
        hosts = hostfile.hosts
    else:
        hostfile = load_hostfile(request.hosts)
        hosts = fill_slots(filters.apply_filters(hostfile.hosts, request.include, request.exclude), nproc, {})
    if request.hosts is None and request.assume is None and recipe.launch.transport is not None:
        raise UsageError("launch.transport is about the hosts of a hostfile: name one with --hosts")
    _check_spares(recipe, hosts, local=hostfile.text is None)
    return Parsed(
        recipe=recipe,
        hosts=hosts,
        hostfile_text=hostfile.text,
        warnings=hostfile.warnings,
        run=_run(request.run_dir.absolute(), recipe.name, job),
        workdir=os.path.abspath(recipe.launch.workdir),
        resume=find_checkpoint(request.resume, request.run_dir),
        ssh_options=_ssh_options(request.ssh_options),
        folder=Path() if request.recipe is None else request.recipe.parent,
        allocation=job,
        found=found,
    )


def _run(runs: Path, name: str, job: Allocation | None) -> RunDir:
    """A new run; of a job that was submitted by us or has been requeued, its own."""
    return (job and run_of(job, name, runs)) or RunDir(runs / new_run_id(name))


def _check_spares(recipe: Recipe, hosts: tuple[Host, ...], local: bool) -> None:
    """Spares and min_nodes fit the number of hosts. Raises UsageError."""
    spares, least = recipe.launch.spares, recipe.launch.min_nodes
    nodes = len(hosts) - spares
    if local and (spares or least != "all"):
        key = "spares" if spares else "min_nodes"
        raise UsageError(f"launch.{key} is about the hosts of a hostfile: name one with --hosts")
    found = words.plural(len(hosts), "host")
    if nodes < 1:
        raise UsageError(f"launch.spares is {spares}, but there are {found}: at least one must be no spare")
    if least != "all" and least > nodes:
        rest = f", {spares} of them spare" if spares else ""
        raise UsageError(
            f"launch.min_nodes is {least}, but there are {found}{rest}: at most {nodes} is possible"
        )


def _ssh_options(texts: tuple[str, ...]) -> dict[str, str]:
    bad = next((text for text in texts if not re.fullmatch(r"[A-Za-z]+=.+", text)), None)
    if bad is not None:
        raise UsageError(f"--ssh-option {bad!r}: it takes KEY=VALUE, as ssh's -o does: ConnectTimeout=3")
    return dict(text.split("=", 1) for text in texts)


def _pinned(path: Path) -> Path:
    """The path without `latest` and `best` links on its way: they are about to point to what the new run writes.

    Other links stay: where nodes mount things may differ from here.
    """
    pinned = Path(path.anchor)
    for part in path.parts[1:]:
        moves = part in ("latest", "best") and (pinned / part).is_symlink()
        pinned /= os.readlink(pinned / part) if moves else part
    return pinned


def find_checkpoint(resume: str | None, runs: Path) -> str:
    """The folder that --resume names: a checkpoint, a folder of them, or a run's. Raises UsageError."""
    if resume is None:
        return ""
    from distperf.checkpoint.manifest import MANIFEST

    path = Path(resume)
    try:
        if (path / MANIFEST).exists() or (path.is_dir() and any(path.glob(f"step-*/{MANIFEST}"))):
            return str(_pinned(path.absolute()))
    except (OSError, ValueError) as error:  # a name too long, a NUL
        raise UsageError(f"--resume {resume!r:.100}: {error}") from None
    run = find_run(resume, runs)
    try:
        folder = json.loads(run.runspec.read_text())["checkpoint"]["dir"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"--resume {resume}: {run.runspec} names no checkpoints") from None
    return str(folder)


def plan(parsed: Parsed) -> Planned:
    """Decide everything; every host has its slots. Raises RecipeError (batch, mesh) and UsageError (secrets)."""
    hosts = parsed.hosts[: len(parsed.hosts) - parsed.recipe.launch.spares]
    spec, mesh = _resolved(parsed, hosts)
    placement = place(hosts, mesh.coordinates)
    return Planned(parsed, spec, mesh, placement, _program(parsed, spec), hardware_of(parsed, hosts))


def hardware_of(parsed: Parsed, hosts: tuple[Host, ...]) -> Hardware:
    """What ranks on these hosts run on: what the recipe says, else what was found; this machine is looked at.

    Rates are those that `distperf bench` has measured of these hosts, where it has.
    """
    recipe, ranks = parsed.recipe, max(len(host.slots or ()) for host in hosts)
    found, here = parsed.found, node_facts() if parsed.local else None
    if found == UNKNOWN and here is not None:
        found = of_nodes({"localhost": here}, ranks, recipe.precision, "this machine")
    measured = None if found.rates else of_hosts(map(label, hosts), ranks)
    if measured is not None and (
        here is None or all(is_still(node, here) for node in measured.nodes.values())
    ):
        found = with_measured(found, measured, recipe.precision)
    return said(recipe.hardware, found, ranks, recipe.precision)


def with_found_hardware(parsed: Parsed, facts: Mapping[str, Mapping[str, Any]]) -> Parsed:
    """With what the nodes' agents say of their memory and devices."""
    ranks = max((len(host.slots or ()) for host in parsed.hosts), default=1)
    found = of_nodes(facts, max(1, ranks), parsed.recipe.precision, "found on the hosts")
    return replace(parsed, found=found)


def with_folders(parsed: Parsed, folders: Mapping[str, str]) -> Parsed:
    """With the folder of each host that its ranks run in, by label, where the code went along."""
    hosts = (replace(host, workdir=folders.get(label(host), host.workdir)) for host in parsed.hosts)
    return replace(parsed, hosts=tuple(hosts))


def _local_devices() -> int:
    return count_devices(dict(os.environ), os.listdir("/dev"))


def _resolved(parsed: Parsed, hosts: tuple[Host, ...]) -> tuple[RunSpec | None, MeshShape]:
    world_size = sum(len(host.slots or ()) for host in hosts)
    if parsed.recipe.script is not None:
        return None, MeshShape(dp_shard=world_size)
    run_id, folder = parsed.run.run_id, checkpoint_folder(parsed)
    spec = resolve(
        parsed.recipe,
        run_id=run_id,
        world_size=world_size,
        checkpoint_dir=folder,
        nodes=len(hosts),
        hardware=hardware_of(parsed, hosts),
    )
    return spec, spec.parallel.mesh


def plan_again(planned: Planned, places: tuple[str, ...]) -> Planned:
    """The same run with other holders of its places, by host label ("": nobody).

    The global batch stays, and so do the axes of the mesh that the recipe names: where the ranks there could be do not
    fit these, the last ones are left out. Raises RecipeError and PlacementError where nothing is left that fits.
    """
    parsed, launch = planned.parsed, planned.parsed.recipe.launch
    known = {label(host): host for host in parsed.hosts}
    sizes = [len(host.slots or ()) for host in parsed.hosts]
    held = [first_slots((known[h],), size) for h, size in zip(places, sizes, strict=False) if h]
    hosts = tuple(host for one in held for host in one)
    refused: RecipeError | None = None
    for size in range(sum(len(host.slots or ()) for host in hosts), 0, -1):
        fewer = first_slots(hosts, size)
        try:
            spec, mesh = _resolved(parsed, fewer)
        except (BatchError, MeshError) as error:
            refused = refused or error
            continue
        if len(fewer) < (len(places) if launch.min_nodes == "all" else launch.min_nodes):
            break
        program = planned.program
        if spec is not None:
            program = replace(program, env={**program.env, contract.RUNSPEC_ENV: to_json(spec)})
        placement = place(fewer, mesh.coordinates)
        return replace(planned, spec=spec, mesh=mesh, placement=placement, program=program)
    raise refused or PlacementError("no slots are left")


def environment(recipe: Recipe) -> dict[str, str]:
    """The recipe's own variables, secret ones too. Raises UsageError for one that is not set here."""
    env = dict(recipe.launch.env)
    for name in recipe.launch.env_secret:
        if name not in os.environ:
            raise UsageError(f"launch.env_secret names {name}, which is not set in your environment")
        env[name] = os.environ[name]
    return env


def _program(parsed: Parsed, spec: RunSpec | None) -> Program:
    recipe, env = parsed.recipe, environment(parsed.recipe)
    if spec is None:
        assert recipe.script is not None
        args = (recipe.script.path, *recipe.script.args)
    else:
        args = TRAINING
        env[contract.RUNSPEC_ENV] = to_json(spec)
        env[contract.RESUME_ENV] = parsed.resume
    run_id = parsed.run.run_id
    token = f"{run_id}-{secrets.token_hex(8)}"
    launch = recipe.launch
    memory = spec.checkpoint.memory if spec is not None else None
    return Program(
        args=args,
        run_id=run_id,
        token=token,
        workdir=parsed.workdir,
        env=env,
        warm_start=launch.warm_start,
        log_limit_bytes=launch.log_limit_bytes,
        memory_dir=memory.dir if memory is not None and memory.every_steps else None,
    )


def slots_known(parsed: Parsed) -> bool:
    """Every host has its slots: the plan can be made without asking anybody."""
    return all(host.slots is not None for host in parsed.hosts)


def with_probed_slots(parsed: Parsed, facts: Mapping[str, Mapping[str, Any]]) -> Parsed:
    """Fill in the slots that the hostfile left to the hosts, from what their agents say of themselves."""
    devices = {host: int(found["devices"]) for host, found in facts.items()}
    return replace(parsed, hosts=fill_slots(parsed.hosts, None, devices))


def checkpoint_folder(parsed: Parsed) -> str:
    """Where the run's checkpoints go."""
    folder = parsed.recipe.checkpoint.dir
    return str(parsed.run.checkpoints if folder is None else Path(parsed.workdir, folder))

"""The story of a launch: parse, (probe), resolve, plan, place, launch, supervise, report."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distperf import contract
from distperf.recipe.load import dump_recipe, load_recipe, script_recipe
from distperf.recipe.mesh import MeshShape
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import RunSpec, to_json
from distperf.recipe.schema import Recipe
from distperf.version import __version__
from launcher import control, events, filters, words
from launcher.agent.facts import count_devices
from launcher.checks import MODULES, Needs
from launcher.console import Console
from launcher.controller import Controller, Order
from launcher.detach import Leave, farewell
from launcher.errors import UsageError
from launcher.hostfile import Host, load_hostfile, local_hostfile
from launcher.lifetime import started_at
from launcher.nodes import Nodes
from launcher.plan import TRAINING, NodeFacts, Placement, Program, fill_slots, label, place
from launcher.prepare import prepare
from launcher.rundir import RunDir, find_run, new_run_id, write_atomic
from launcher.state import Policy
from launcher.transport.base import Transport
from launcher.view import closing_lines


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

    @property
    def local(self) -> bool:
        """No hostfile was named: this machine, no SSH."""
        return self.hostfile_text is None


@dataclass(frozen=True)
class Planned:
    """Everything decided: what a dry run prints and a launch carries out."""

    parsed: Parsed
    spec: RunSpec | None  # None: a script of the user's
    mesh: MeshShape
    placement: Placement
    program: Program = field(repr=False)


def parse(request: Request) -> Parsed:
    """Read recipe and hostfile. Contacts nothing. Raises RecipeError, HostfileError, UsageError."""
    sets = request.sets if request.nproc is None else (*request.sets, f"launch.nproc={request.nproc}")
    if request.script is not None:
        recipe = script_recipe(request.script, request.script_args, sets)
    else:
        assert request.recipe is not None
        recipe = load_recipe(request.recipe, sets)
    nproc = None if recipe.launch.nproc == "auto" else recipe.launch.nproc
    if request.hosts is None:
        hostfile = local_hostfile(nproc or max(1, count_devices(dict(os.environ), os.listdir("/dev"))))
        if request.include or request.exclude:
            raise UsageError("--include and --exclude choose from a hostfile: name one with --hosts")
        hosts = hostfile.hosts
    else:
        hostfile = load_hostfile(request.hosts)
        hosts = fill_slots(filters.apply_filters(hostfile.hosts, request.include, request.exclude), nproc, {})
    return Parsed(
        recipe=recipe,
        hosts=hosts,
        hostfile_text=hostfile.text,
        warnings=hostfile.warnings,
        run=RunDir(request.run_dir.absolute() / new_run_id(recipe.name)),
        workdir=os.path.abspath(recipe.launch.workdir),
        resume=find_checkpoint(request.resume, request.run_dir),
        ssh_options=_ssh_options(request.ssh_options),
    )


def _ssh_options(texts: tuple[str, ...]) -> dict[str, str]:
    bad = next((text for text in texts if not re.fullmatch(r"[A-Za-z]+=.+", text)), None)
    if bad is not None:
        raise UsageError(f"--ssh-option {bad!r}: it takes KEY=VALUE, as ssh's -o does: ConnectTimeout=3")
    return dict(text.split("=", 1) for text in texts)


def find_checkpoint(resume: str | None, runs: Path) -> str:
    """The folder that --resume names: a checkpoint, a folder of them, or a run's. Raises UsageError."""
    if resume is None:
        return ""
    from distperf.checkpoint.manifest import MANIFEST

    path = Path(resume)
    try:
        if (path / MANIFEST).exists() or (path.is_dir() and any(path.glob(f"step-*/{MANIFEST}"))):
            return str(path.absolute())
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
    world_size = sum(len(host.slots or ()) for host in parsed.hosts)
    recipe = parsed.recipe
    spec = None
    if recipe.script is None:
        folder = checkpoint_folder(parsed)
        spec = resolve(recipe, run_id=parsed.run.run_id, world_size=world_size, checkpoint_dir=folder)
    mesh = MeshShape(dp_shard=world_size if spec is None else spec.parallel.dp_shard)
    return Planned(parsed, spec, mesh, place(parsed.hosts, mesh.coordinates), _program(parsed, spec))


def _program(parsed: Parsed, spec: RunSpec | None) -> Program:
    recipe, env = parsed.recipe, dict(parsed.recipe.launch.env)
    for name in recipe.launch.env_secret:
        if name not in os.environ:
            raise UsageError(f"launch.env_secret names {name}, which is not set in your environment")
        env[name] = os.environ[name]
    if spec is None:
        assert recipe.script is not None
        args = (recipe.script.path, *recipe.script.args)
    else:
        args = TRAINING
        env[contract.RUNSPEC_ENV] = to_json(spec)
        env[contract.RESUME_ENV] = parsed.resume
    run_id = parsed.run.run_id
    token = f"{run_id}-{secrets.token_hex(8)}"
    return Program(args, run_id, token, parsed.workdir, env, recipe.launch.warm_start)


def make_transport(parsed: Parsed) -> Transport:
    """Local without a hostfile, SSH with one, whatever it names."""
    if parsed.local:
        from launcher.transport.local import LocalTransport

        return LocalTransport()
    from launcher.transport.ssh import SshTransport  # 0.1 s of imports that a local run does without

    return SshTransport(options=parsed.ssh_options)


def with_probed_slots(parsed: Parsed, nodes: Nodes) -> Parsed:
    """Fill in the slots that the hostfile left to the hosts."""
    devices = {host: int(facts["devices"]) for host, facts in nodes.facts.items()}
    return replace(parsed, hosts=fill_slots(parsed.hosts, None, devices))


def slots_known(parsed: Parsed) -> bool:
    """Every host has its slots: the plan can be made without asking anybody."""
    return all(host.slots is not None for host in parsed.hosts)


def launch(request: Request, say: Callable[[str], None], leave: Leave | None = None) -> int:
    """Run it from beginning to end; returns the exit code. `say` prints a line for the user.

    leave: called once the run has begun, to go on in the background from there.
    """
    parsed = parse(request)
    for warning in parsed.warnings:
        say(f"warning: {warning}")
    planned = plan(parsed) if slots_known(parsed) else None  # a wrong recipe is told before any host is asked
    nodes = Nodes(make_transport(parsed))
    try:
        nodes.open_all(parsed.hosts)
        planned = planned or plan(with_probed_slots(parsed, nodes))
        facts = prepare(nodes, planned.parsed.hosts, needs(planned.parsed, request.check))
        console = Console(quiet=request.quiet or leave is not None)
        return _run(planned, facts, nodes, console, say, leave)
    finally:
        nodes.close()


def needs(parsed: Parsed, check: bool) -> Needs:
    """What pre-flight must find on the nodes."""
    recipe, training = parsed.recipe, parsed.recipe.script is None and check
    saves = training and bool(recipe.checkpoint.every_steps or recipe.checkpoint.save_last)
    return Needs(
        python=None if recipe.launch.python == "auto" else recipe.launch.python,
        workdir=parsed.workdir,
        training=training,
        modules=MODULES if training else (),
        shared_dir=checkpoint_folder(parsed) if saves else None,
    )


def checkpoint_folder(parsed: Parsed) -> str:
    """Where the run's checkpoints go."""
    folder = parsed.recipe.checkpoint.dir
    return str(parsed.run.checkpoints if folder is None else Path(parsed.workdir, folder))


def _run(
    planned: Planned,
    facts: dict[str, NodeFacts],
    nodes: Nodes,
    console: Console,
    say: Callable[[str], None],
    leave: Leave | None,
) -> int:
    run = planned.parsed.run
    _write_folder(planned)
    say(f"run {run.run_id}: {describe(planned)}")

    def begun() -> None:
        if leave is not None:
            for line in farewell(run):
                say(line)
            leave(run.controller_log, run.run_id)

    with _control_socket(run, nodes, say) as path:
        order = Order(run, _created(planned, path), planned.program, planned.placement, facts)
        try:
            state = Controller(order, nodes, console).run(begun)
        finally:
            console.close()
    for line in closing_lines(run, state):
        say(line)
    assert state.exit_code is not None
    return state.exit_code


@contextmanager
def _control_socket(run: RunDir, nodes: Nodes, say: Callable[[str], None]) -> Iterator[str | None]:
    """Other processes' requests go into the controller's queue; a run without a socket is stopped by signals."""
    with ExitStack() as stack:
        try:
            path = stack.enter_context(
                control.listening(run.path, lambda request: nodes.inbox.put(("", request)))
            )
        except OSError as error:
            say(f"warning: no control socket, `distperf stop` will use a signal: {error}")
            path = None
        yield path


def describe(planned: Planned) -> str:
    """One line: how many ranks on how many nodes, and what is trained how."""
    placement, spec = planned.placement, planned.spec
    hosts = ", ".join(label(node.host) for node in placement.nodes[:4])
    where = f"{words.plural(placement.world_size, 'rank')} on {hosts}"
    if len(placement.nodes) > 4:
        where += f" and {len(placement.nodes) - 4} more nodes"
    if spec is None:
        return f"{where}, {planned.program.args[0]}"
    return f"{where}, ZeRO-{spec.parallel.zero}, {spec.precision}, {spec.train.steps} steps"


def _write_folder(planned: Planned) -> None:
    """Everything that says what is run, before anything runs. Secrets are in none of it."""
    run, parsed = planned.parsed.run, planned.parsed
    run.create()
    write_atomic(run.recipe, dump_recipe(parsed.recipe))
    if parsed.hostfile_text is not None:
        write_atomic(run.hostfile, parsed.hostfile_text)
    spec = (
        {"script": parsed.recipe.script.model_dump()}
        if parsed.recipe.script
        else json.loads(to_json(planned.spec))
    )
    run.write_json(run.runspec, spec)
    run.write_json(run.placement, [asdict(rank) for rank in planned.placement.ranks])


def _created(planned: Planned, control_socket: str | None) -> events.RunCreated:
    launch, spec = planned.parsed.recipe.launch, planned.spec
    policy = Policy(
        max_restarts=launch.max_restarts,
        heartbeat_timeout_s=launch.heartbeat_timeout_s,
        lease_s=launch.lease_s,
        grace_s=launch.grace_s,
        script=spec is None,
    )
    ranks: list[dict[str, Any]] = [
        {key: value for key, value in asdict(rank).items() if key != "slot"}
        for rank in planned.placement.ranks
    ]
    controller = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created": started_at(os.getpid()),
        "socket": control_socket,
    }
    return events.RunCreated(
        0.0, planned.parsed.run.run_id, planned.parsed.recipe.name, None if spec is None else spec.train.steps, ranks,
        asdict(policy), controller, __version__,
    )  # fmt: skip

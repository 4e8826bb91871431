"""The story of a launch: parse, (probe), resolve, plan, place, launch, supervise, report."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from distperf import contract
from distperf.recipe.load import dump_recipe
from distperf.recipe.runspec import to_json
from distperf.version import __version__
from launcher import control, events, forecast, stall, words
from launcher.checks import MODULES, Needs
from launcher.console import Console
from launcher.controller import Controller, Order
from launcher.detach import Leave, farewell
from launcher.errors import LauncherError, UsageError
from launcher.journal import replay
from launcher.librarian import keeping_bookmarks
from launcher.lifetime import started_at
from launcher.nodes import Nodes
from launcher.nodeset import fold
from launcher.plan import NodeFacts, Placement, Program, label, planned_ranks
from launcher.planning import (
    Parsed,
    Planned,
    Request,
    checkpoint_folder,
    environment,
    parse,
    plan,
    plan_again,
    slots_known,
    with_folders,
    with_found_hardware,
    with_probed_slots,
)
from launcher.prepare import prepare
from launcher.rundir import RunDir, readable_by_group, write_atomic
from launcher.screen import Screen
from launcher.setup import Setup
from launcher.sinks.feeding import feeding
from launcher.sinks.trackers import asked_for
from launcher.sinks.tracking import tracked
from launcher.slurm import container, queue
from launcher.slurm.allocation import fewer_cpus
from launcher.state import Policy
from launcher.sync.collect import collect
from launcher.sync.send import Carrier
from launcher.transport.base import Transport
from launcher.view import closing_lines

PREEMPTED_LIMIT_S = 3.0  # ranks wait for the answer with their last checkpoint


def make_transport(parsed: Parsed) -> Transport:
    """In a job srun, unless the recipe wants SSH; else local without a hostfile, and with one SSH or the user's own."""
    if parsed.local:
        from launcher.transport.local import LocalTransport

        return LocalTransport()
    if parsed.allocation is not None and parsed.recipe.slurm.agents == "srun":
        from launcher.transport.slurm import SlurmTransport

        saved = needs(parsed, check=True).shared_dir
        inside = container.options(parsed.recipe.slurm.container, parsed.workdir, saved)
        return SlurmTransport(parsed.allocation, inside)
    if parsed.recipe.launch.transport is not None:
        from launcher.transport.own import load

        return load(parsed.recipe.launch.transport, parsed.folder)
    from launcher.transport.ssh import SshTransport  # 0.1 s of imports that a local run does without

    return SshTransport(options=parsed.ssh_options)


def carrier_of(parsed: Parsed) -> Carrier | None:
    """What brings the code along, if any goes along. Raises UsageError where that cannot be read, or is too much."""
    sync = parsed.recipe.launch.sync
    if sync.source is None:
        return None
    named = next((host for host in parsed.hosts if host.workdir), None)
    if named is not None:
        raise UsageError(
            f"{label(named)} has workdir= in the hostfile, but with launch.sync.source ranks run in a copy of "
            "that; take out one of the two"
        )
    return Carrier(collect(sync, parsed.run.run_id, parsed.run.path.parent))


def launch(
    request: Request,
    say: Callable[[str], None],
    leave: Leave | None = None,
    screen: Screen | None = None,
) -> int:
    """Run it from beginning to end; returns the exit code. `say` prints a line for the user.

    leave: called once the run has begun, to go on in the background from there. screen: who shows the run, if not a
    Console.
    """
    parsed = parse(request)
    if (others := parsed.allocation) is not None and others.task > 0:
        say(f"this is task {others.task} of {others.tasks} in job {others.key}: task 0 leads the run, and starts ranks "
            "on all nodes; start distperf once, not under srun")  # fmt: skip
        return contract.EXIT_OK
    asked_for(parsed.recipe.report)
    planned = plan(parsed) if slots_known(parsed) else None  # a wrong recipe is told before any host is asked
    carrier = carrier_of(parsed)
    nodes = Nodes(make_transport(parsed), carrier)
    try:
        nodes.open_all(parsed.hosts)
        if carrier is not None:
            say(carrier.told(len(parsed.hosts)))
            parsed = with_folders(parsed, nodes.folders)
        for warning in fewer_cpus(
            parsed.allocation, {host: int(seen["cpus"]) for host, seen in nodes.facts.items()}
        ):
            say(f"warning: {warning}")
        if planned is None:
            parsed = with_probed_slots(parsed, nodes.facts)
        planned = plan(with_found_hardware(parsed, nodes.facts))
        found = forecast.forecast(planned)
        if request.check:
            forecast.refuse(found)
        for warning in (*planned.warnings, *forecast.warning(found)):
            say(f"warning: {warning}")
        needed = needs(planned.parsed, request.check)
        if needed.setup.lines:
            hosts = words.plural(len(planned.parsed.hosts), "host")
            say(f"launch.setup: {words.plural(len(needed.setup.lines), 'line')} on {hosts}")
        facts = prepare(nodes, planned.parsed.hosts, needed)
        quiet = request.quiet or leave is not None
        shown = screen or Console(quiet, verbose=request.verbose, color=request.color)
        with readable_by_group(planned.parsed.recipe.run.share == "group"):
            return _run(planned, facts, nodes, shown, say, leave)
    finally:
        nodes.close()


def needs(parsed: Parsed, check: bool) -> Needs:
    """What pre-flight must find on the nodes."""
    recipe, training = parsed.recipe, parsed.recipe.script is None and check
    memory = recipe.checkpoint.memory
    saves = training and bool(recipe.checkpoint.every_steps or recipe.checkpoint.save_last)
    return Needs(
        python=None if recipe.launch.python == "auto" else recipe.launch.python,
        workdir=parsed.workdir,
        training=training,
        modules=MODULES if training else (),
        shared_dir=checkpoint_folder(parsed) if saves else None,
        drives=(recipe.offload.path or ()) if training else (),
        memory_dir=memory.dir if training and memory.every_steps else None,
        setup=Setup(recipe.launch.setup, environment(recipe), recipe.launch.env_secret),
    )


def _run(
    planned: Planned,
    facts: dict[str, NodeFacts],
    nodes: Nodes,
    screen: Screen,
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

    def again(places: tuple[str, ...]) -> tuple[Program, Placement]:
        found = plan_again(planned, places)
        _write_plan(found)
        return found.program, found.placement

    report, lost = planned.parsed.recipe.report, list[str]()
    with _control_socket(run, nodes, say) as path:
        order = Order(
            run,
            _created(planned, path),
            planned.program,
            planned.placement,
            planned.parsed.hosts,
            facts,
            again,
            needs(planned.parsed, check=False).setup,
            lambda: _preempted(planned.parsed),
        )
        try:
            with keeping_bookmarks(run), feeding(run, report, screen.note), tracked(run, report, lost.append):
                state = Controller(order, nodes, screen).run(begun)
        finally:
            screen.close()
    for line in (*closing_lines(run, state), *(f"warning: {problem}" for problem in lost)):
        say(line)
    assert state.exit_code is not None
    if state.exit_code == contract.EXIT_PREEMPTED:
        _queue_again(planned.parsed, say)
    return state.exit_code


def _preempted(parsed: Parsed) -> bool:
    """SIGTERM to a job that SLURM still calls running: it has a while to go; one that is cancelled is not called so."""
    try:
        return (
            parsed.allocation is not None
            and queue.look(parsed.allocation.key, PREEMPTED_LIMIT_S).state == "RUNNING"
        )
    except LauncherError:  # no squeue in a container, or no answer
        return False


def _queue_again(parsed: Parsed, say: Callable[[str], None]) -> None:
    """The run's job goes on as another attempt, once it has its nodes again."""
    job = parsed.allocation
    if job is None or not parsed.recipe.slurm.requeue:
        return
    say(f"job {job.key} is queued again")
    if (why := queue.requeue(job.key)) is not None:
        say(f"warning: it is not: {why}; queue it yourself: scontrol requeue {job.key}")


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
    if planned.spares:
        where += f" ({words.plural(len(planned.spares), 'spare')}: {fold(planned.spares)})"
    if spec is None:
        return f"{where}, {planned.program.args[0]}, {stall.watched(planned.parsed.stall_timeout_s)}"
    return f"{where}, ZeRO-{spec.parallel.zero}, {spec.precision}, {spec.train.steps} steps"


def _write_folder(planned: Planned) -> None:
    """Everything that says what is run, before anything runs. Secrets are in none of it."""
    run, parsed = planned.parsed.run, planned.parsed
    run.create(shared=parsed.recipe.run.share == "group")
    if parsed.allocation is not None:
        queue.mark(run, parsed.allocation.key, parsed.allocation.restarts)
    write_atomic(run.recipe, dump_recipe(parsed.recipe))
    if parsed.hostfile_text is not None:
        write_atomic(run.hostfile, parsed.hostfile_text)
    _write_plan(planned)


def _write_plan(planned: Planned) -> None:
    """What ranks are told and where they are: of the newest attempt, which may have other hosts than the first."""
    run, script = planned.parsed.run, planned.parsed.recipe.script
    spec = {"script": script.model_dump()} if script else json.loads(to_json(planned.spec))
    run.write_json(run.runspec, spec)
    run.write_json(run.placement, [asdict(rank) for rank in planned.placement.ranks])
    found = forecast.forecast(planned)
    if found is not None:
        run.write_json(run.plan, {**forecast.as_json(found), "ranks_per_host": planned.ranks_per_host})


def _attempts_before(run: RunDir) -> int:
    """Of earlier jobs, where this one was requeued: they keep their logs."""
    return replay(run).attempt if run.events.exists() else 0


def _created(planned: Planned, control_socket: str | None) -> events.RunCreated:
    launch, spec = planned.parsed.recipe.launch, planned.spec
    policy = Policy(
        max_restarts=launch.max_restarts,
        heartbeat_timeout_s=launch.heartbeat_timeout_s,
        lease_s=launch.lease_s,
        grace_s=launch.grace_s,
        script=spec is None,
        stall_timeout_s=planned.parsed.stall_timeout_s,
        min_nodes=None if launch.min_nodes == "all" else launch.min_nodes,
        in_job=planned.parsed.allocation is not None,
    )
    pool = [{"host": label(host), "slots": len(host.slots or ())} for host in planned.parsed.hosts]
    controller = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created": started_at(os.getpid()),
        "socket": control_socket,
    }
    return events.RunCreated(
        0.0, planned.parsed.run.run_id, planned.parsed.recipe.name, None if spec is None else spec.train.steps,
        planned_ranks(planned.placement), asdict(policy), controller, __version__, pool,
        _attempts_before(planned.parsed.run),
    )  # fmt: skip

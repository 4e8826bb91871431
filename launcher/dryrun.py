"""What `plan` and `launch --dry-run` say: everything that is decided before a rank starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from distperf.recipe.estimate import known_parameters
from distperf.recipe.holdings import largest_state
from launcher import forecast, pipeline, stall, words
from launcher.checks import candidates
from launcher.launch import carrier_of, make_transport, needs
from launcher.nodes import Nodes
from launcher.plan import Attempt, Node, NodeFacts, label, orders
from launcher.planning import Parsed, Planned, Request, parse, plan, slots_known, with_probed_slots

SCHEMA = 1
SECRET = "***"
MOST_RANKS = 64  # that `plan` lists in text; --json lists all
ONCE_BUILT = "known once built: only the model's own code knows its parameters"
UNKNOWN = "(known when the nodes have answered)"
# Keys of `plan --json` that are null where nobody can know.
OPEN = ("fits", "host_bytes", "disk_bytes", "step_s", "binding_limit", "hardware")
TERMS = (
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "host_bytes",
    "disk_bytes",
    "activations_bytes",
    "other_bytes",
    "total_bytes",
)


@dataclass(frozen=True)
class Wanted:
    """What else `plan` is asked for: a picture of a pipeline's step, so many candidates, the largest model."""

    drawn: bool = False
    candidates: int = 0
    largest: bool = False


PLAIN = Wanted()


def outcome(request: Request, probe: bool) -> Planned | Parsed:
    """The plan; or what was parsed, where hosts must be asked for their slots and `probe` does not allow it."""
    parsed = parse(request)
    if slots_known(parsed):
        return plan(parsed)
    if not probe:
        return parsed
    nodes = Nodes(make_transport(parsed))
    try:
        nodes.open_all(parsed.hosts)
        return plan(with_probed_slots(parsed, nodes.facts))
    finally:
        nodes.close()


def as_json(outcome: Planned | Parsed, with_commands: bool, wanted: Wanted = PLAIN) -> dict[str, Any]:
    """The plan for scripts. Values that are not known are null. `wanted.drawn`: every pass of a pipeline's step."""
    if isinstance(outcome, Parsed):
        hosts = [
            {"host": label(h), "slots": None if h.slots is None else len(h.slots)} for h in outcome.hosts
        ]
        empty = dict.fromkeys(("world_size", "mesh", "batch", "per_rank", "pipeline", "spares", *OPEN))
        return {"schema": SCHEMA, **empty, "warnings": list(outcome.warnings), "hosts": hosts, "ranks": None}
    spec, found, carrier = outcome.spec, forecast.forecast(outcome), carrier_of(outcome.parsed)
    known: dict[str, Any] = {} if found is None else forecast.as_json(found)
    state = None if spec is None else largest_state(spec)
    train = spec and spec.train
    return {
        "schema": SCHEMA,
        "run": outcome.parsed.run.run_id,
        "world_size": outcome.placement.world_size,
        "mesh": outcome.mesh.sizes(),
        "batch": train
        and {"global": train.global_batch, "micro": train.micro_batch, "accumulation": train.accumulation},
        "parameters": spec and known_parameters(spec.model),
        "per_rank": dict.fromkeys(TERMS),
        "unknown": {"parameters": ONCE_BUILT, "per_rank": ONCE_BUILT} if spec and state is None else {},
        "pipeline": spec and pipeline.as_json(spec, wanted.drawn),
        **dict.fromkeys(OPEN),
        **known,
        **(_asked(outcome, wanted) if found else {}),
        "reasons": spec.reasons if spec else {},
        "warnings": [*outcome.warnings, *(state.notes if state else ()), *forecast.warning(found)],
        "spares": outcome.spares,
        "sync": None if carrier is None else carrier.as_json(),
        "setup": list(outcome.parsed.recipe.launch.setup),
        "nodes": _nodes(outcome) if with_commands else None,
        "ranks": _ranks(outcome, with_commands),
    }


def _asked(planned: Planned, wanted: Wanted) -> dict[str, Any]:
    """Candidates and the largest model, if they are wanted."""
    asked: dict[str, Any] = {}
    if wanted.candidates:
        asked["candidates"] = forecast.candidates_json(forecast.candidates(planned, wanted.candidates))
    if wanted.largest:
        asked["largest"] = forecast.largest(planned)
    return asked


def as_text(outcome: Planned | Parsed, with_commands: bool, wanted: Wanted = PLAIN) -> list[str]:
    """The plan for people."""
    if isinstance(outcome, Parsed):
        lines = [f"{label(h)}: " + ("slots unknown" if h.slots is None else words.plural(len(h.slots), "slot"))
                 for h in outcome.hosts]  # fmt: skip
        return [
            *lines,
            "hosts without slots are asked for their devices at launch; --dry-run --probe asks now",
        ]
    value = as_json(outcome, with_commands)
    lines = [
        f"{words.plural(value['world_size'], 'rank')} on {words.plural(len(outcome.placement.nodes), 'node')}"
    ]
    lines += [f"spare {spare}: for {', '.join(fits) or 'none'}" for spare, fits in value["spares"].items()]
    if (sync := value["sync"]) is not None:
        lines.append(
            f"sync       {words.plural(sync['files'], 'file')}, {words.size(sync['bytes'])} of {sync['source']}"
        )
    lines += [f"setup      {line}" for line in value["setup"]]
    if outcome.spec is not None:
        lines += [*_training_lines(outcome, value), *pipeline.lines(outcome.spec, wanted.drawn)]
        lines += _asked_lines(outcome, wanted)
    else:
        lines.append(f"stalls     {stall.watched(outcome.parsed.stall_timeout_s)}")
    lines += [f"warning: {warning}" for warning in value["warnings"]]
    lines += [f"{node['host']}: {node['connect']}" for node in value["nodes"] or () if node["connect"]]
    many = len(value["ranks"]) > MOST_RANKS and not with_commands
    for rank in () if many else value["ranks"]:
        lines.append(
            f"rank {rank['rank']}: {rank['host']} slot {rank['slot']} (local rank {rank['local_rank']})"
        )
        if with_commands:
            lines.append(f"    argv  {rank['argv']}")
            lines += [f"    env   {name}={text}" for name, text in rank["env"].items()]
    return lines


def _training_lines(planned: Planned, value: dict[str, Any]) -> list[str]:
    spec, batch = planned.spec, value["batch"]
    assert spec is not None
    found = forecast.forecast(planned)
    count = (
        "parameters known once built"
        if value["parameters"] is None
        else f"{value['parameters']:,} parameters"
    )
    return [
        f"model      {count}, {spec.precision}, ZeRO-{spec.parallel.zero}",
        f"mesh       {planned.mesh}",
        f"batch      {batch['global']} = {batch['micro']} (micro) x {batch['accumulation']} (accumulation) x "
        f"{planned.mesh.data_parallel_size} (data-parallel ranks)",
        *([f"per rank   {ONCE_BUILT}"] if found is None else forecast.lines(found)),
        *(f"auto       {key}: {reason}" for key, reason in sorted(spec.reasons.items())),
    ]


def _asked_lines(planned: Planned, wanted: Wanted) -> list[str]:
    if forecast.forecast(planned) is None:
        return []
    lines = [forecast.largest_line(forecast.largest(planned))] if wanted.largest else []
    if wanted.candidates:
        found = forecast.candidates(planned, wanted.candidates)
        lines += ["", "candidates, the best first", *forecast.candidates_table(found), ""]
    return lines


def _nodes(planned: Planned) -> list[dict[str, Any]]:
    """How each node would be reached: the ssh command that logs in the same way."""
    transport = make_transport(planned.parsed)
    nodes = [
        {"host": label(node.host), "connect": transport.describe(node.host) or None}
        for node in planned.placement.nodes
    ]
    transport.close()
    return nodes


def _ranks(planned: Planned, with_commands: bool) -> list[dict[str, Any]]:
    ranks = [asdict(rank) for rank in planned.placement.ranks]
    if with_commands:
        commands = [order for node in planned.placement.nodes for order in _orders(planned, node)]
        for rank, order in zip(ranks, commands, strict=True):
            rank.update(argv=order["argv"], env=order["env"], defaults=order["defaults"], cwd=order["cwd"])
    return ranks


def _orders(planned: Planned, node: Node) -> list[dict[str, Any]]:
    """The start orders as far as they are known before a node was asked, without secrets."""
    python = candidates(node.host, needs(planned.parsed, check=False).python)[0]
    facts = NodeFacts(python, "127.0.0.1" if len(planned.parsed.hosts) == 1 else UNKNOWN, None)
    launch = planned.parsed.recipe.launch
    attempt = Attempt(1, facts.address, 0, launch.max_restarts)
    result = orders(planned.program, planned.placement, node, attempt, facts)
    for order in result:
        order["env"].update(dict.fromkeys(launch.env_secret, SECRET))
        order["env"].update(MASTER_PORT=UNKNOWN, DISTPERF_JOB_TOKEN=UNKNOWN)
        if launch.sync.source is not None:
            order["cwd"] = UNKNOWN
    return result

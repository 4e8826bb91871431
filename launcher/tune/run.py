"""`distperf tune`: launches one trial after the other, writes every outcome down, and the best one as a recipe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from distperf import contract
from distperf.errors import RecipeError
from distperf.recipe.load import dump_recipe
from distperf.recipe.planner.candidates import ranked
from launcher import launch, words
from launcher.bar import Bar
from launcher.errors import RunFolderError, UsageError
from launcher.journal import read_lines, replay
from launcher.nodes import Nodes
from launcher.plan import label
from launcher.planning import (
    Parsed,
    Planned,
    Request,
    parse,
    plan,
    slots_known,
    with_found_hardware,
    with_probed_slots,
)
from launcher.rundir import find_run, write_atomic
from launcher.tune import trials
from launcher.tune.ledger import Ledger
from launcher.tune.screen import TrialScreen
from launcher.tune.trials import FAILED, NO_ROOM, OF_TRIALS, REFUSED, Outcome, Trial
from launcher.tune.winner import recipe_of

INTERRUPTED = (contract.EXIT_INTERRUPTED, contract.EXIT_TERMINATED, contract.EXIT_PREEMPTED)


class Stopped(Exception):
    """A trial was interrupted: so is the tuning. code: what it ended with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Tuned:
    """All trials, as far as they came."""

    trials: tuple[Trial, ...]
    ledger: Ledger
    code: int  # 0, or of the interruption

    @property
    def best(self) -> Trial | None:
        """The fastest; None where none went well."""
        return trials.best(self.trials)


def tune(request: Request, count: int, steps: int, folder: Path, say: Callable[[str], None]) -> Tuned:
    """Try `count` ways to run a recipe, `steps` steps each; those that are done in `folder` are not done again.

    Raises RecipeError, TransportError, PreflightError; UsageError where the planner knows no candidates.
    """
    parsed = parse(request)
    if parsed.recipe.script is not None:
        raise UsageError("tune is about recipes that train a model; this one runs a script")
    planned = _planned(parsed)
    assert planned.spec is not None, "a model's"
    found = ranked(planned.spec, planned.hardware, planned.ranks_per_host)
    if not found:
        raise UsageError(
            "tune knows the ways to run Llama-family models only: of others, only their code knows the size"
        )
    hosts = [f"{label(node.host)} {len(node.ranks)}" for node in planned.placement.nodes]
    ledger = Ledger.of(folder, dump_recipe(parsed.recipe), hosts, steps)
    todo = ledger.resumed(trials.chosen(planned.spec, found, count), count)
    ledger.write(todo)
    code = contract.EXIT_OK
    with Bar() as bar:
        for at, trial in enumerate(todo):
            if trial.outcome is not None:
                say(f"trial {at + 1} of {len(todo)}: {trial.name}: done before")
                continue
            screen = TrialScreen(bar, at + 1, len(todo), trial.name)
            try:
                outcome = _try(replace(request, run_dir=ledger.runs), trial, steps, ledger, screen)
            except Stopped as stopped:
                code = stopped.code
                break
            todo[at] = replace(trial, outcome=outcome)
            ledger.write(todo)
            bar.clear()
            say(f"trial {at + 1} of {len(todo)}: {trial.name}: {said(outcome)}")
    tuned = Tuned(tuple(todo), ledger, code)
    if tuned.best is not None:
        write_atomic(ledger.best, _winner(request, parsed, tuned))
    return tuned


def said(outcome: Outcome) -> str:
    """In a few words."""
    if outcome.step_s is None:
        return f"{outcome.verdict}: {outcome.why}" if outcome.why else outcome.verdict
    peak = words.size(outcome.peak_bytes or 0)
    return f"{outcome.step_s:.3f} s a step, {outcome.tokens_per_s:,.0f} tokens/s, peak {peak} (rank 0)"


def _planned(parsed: Parsed) -> Planned:
    """With what the hosts say of themselves: what fits depends on it."""
    nodes = Nodes(launch.make_transport(parsed))
    try:
        nodes.open_all(parsed.hosts)
        if not slots_known(parsed):
            parsed = with_probed_slots(parsed, nodes.facts)
        return plan(with_found_hardware(parsed, nodes.facts))
    finally:
        nodes.close()


def _try(request: Request, trial: Trial, steps: int, ledger: Ledger, screen: TrialScreen) -> Outcome:
    """Launch it, and read from its run folder what came of it.

    A trial that cannot be run is one outcome of several; hosts that are not there are the end of all.
    """
    keys = {**trial.keys, **OF_TRIALS, "train.steps": str(steps)}
    own = replace(request, sets=(*request.sets, *(f"{key}={value}" for key, value in keys.items())))
    try:
        with ledger.log.open("a") as log:
            log.write(f"--- {trial.name}\n")
            code = launch.launch(own, lambda line: print(line, file=log, flush=True), screen=screen)
    except RecipeError as error:
        return Outcome(REFUSED, str(error))
    except OSError as error:
        raise RunFolderError(f"cannot write {ledger.log}: {error.strerror}") from None
    if code in INTERRUPTED:
        raise Stopped(code)
    return _outcome(ledger, code)


def _outcome(ledger: Ledger, code: int) -> Outcome:
    run = find_run(None, ledger.runs)
    folder = str(run.path)
    if code == contract.EXIT_OK:
        return trials.of_metrics(read_lines(run.metrics), folder)
    failure = replay(run).first_failure
    if failure is None:
        return Outcome(FAILED, f"exit code {code}", run=folder)
    verdict = NO_ROOM if failure.cause == "oom" else FAILED
    return Outcome(verdict, failure.message.splitlines()[0], run=folder)


def _winner(request: Request, parsed: Parsed, tuned: Tuned) -> str:
    """The best trial as a recipe that extends the tuned one; what was set on the command line is in it."""
    best, base = tuned.best, request.recipe
    assert base is not None
    assert best is not None
    assert best.outcome is not None
    done = [trial for trial in tuned.trials if trial.outcome is not None]
    day = time.strftime("%Y-%m-%d")
    remark = [
        f"The fastest of {words.plural(len(done), 'trial')} by `distperf tune`, {day}:",
        said(best.outcome),
    ]
    remark += [
        f"(the recipe as it was: {said(t.outcome)})" for t in done if t.as_is and t.outcome and t != best
    ]
    sets = [*request.sets, *(f"{key}={value}" for key, value in best.keys.items())]
    if (transport := parsed.recipe.launch.transport) is not None:  # its path begins at the recipe's folder
        sets.append(f"launch.transport={json.dumps(os.path.abspath(base.parent / transport))}")
    return recipe_of(sets, os.path.relpath(base, tuned.ledger.folder), "\n".join(remark))

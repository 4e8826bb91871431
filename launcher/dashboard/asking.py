"""What the dashboard asks of the run's controller, after a question: as data, and done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.asking import BUSY, ask_controller
from launcher.errors import RunFolderError, UsageError
from launcher.journal import replay
from launcher.rundir import RunDir
from launcher.save import ask_to_save
from launcher.stop import ask_to_stop


@dataclass(frozen=True)
class Ask:
    """What is asked first, what yes is called, and what is done then; `do` returns what to tell the user."""

    question: str
    yes: str
    do: Callable[[RunDir], str]


def _stop(run: RunDir) -> str:
    ask_to_stop(run)
    return "asked: ranks get SIGTERM and their grace; once more ends them now"


def _stacks(run: RunDir) -> str:
    if BUSY in ask_controller(replay(run), "stacks"):
        return "the controller is busy; it has the request"
    return "asked: stacks come within a few seconds, into the view of each rank"


def _save(run: RunDir) -> str:
    ask_to_save(run)
    return "asked: all ranks save after the step they are at; it is told under what happened"


ASKS = {
    "stop": Ask("End this run? Ranks get SIGTERM, may write a last checkpoint, and end.", "Stop it", _stop),
    "stacks": Ask("Take the Python stack of every rank? They go on running.", "Take them", _stacks),
    "save": Ask("Write a checkpoint now? Training goes on after it.", "Save it", _save),
}


def told(ask: Ask, run: RunDir) -> str:
    """Do what was asked; a refusal is told as well."""
    try:
        return ask.do(run)
    except (UsageError, RunFolderError) as error:
        return str(error)

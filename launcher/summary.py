"""What `launch` says about a run that goes: how far it is, and, if asked, every change of its ranks. Pure."""

from __future__ import annotations

from typing import Any, Literal

from launcher import stall, words
from launcher.nodeset import fold_numbers
from launcher.state import RunState

Color = Literal["auto", "always", "never"]

BAR_CELLS = 24
LEAST_COLUMNS = 70  # a narrower terminal has no room for a bar
_INKS = (36, 33, 35, 32, 34, 31)  # of ranks: cyan, yellow, magenta, green, blue, red


def progress_line(state: RunState, last: dict[str, Any], bar: str = "") -> str:
    """Step of steps, loss, tokens/s, time left; or what is being waited for. bar: shown after the step."""
    step = last.get("step", state.step)
    if not step:
        phases = sorted({rank.phase for rank in state.ranks if rank.phase})
        return f"{state.state}" + (f" ({', '.join(phases)})" if phases else "")
    parts = [f"step {step}" + (f"/{state.steps}" if state.steps else "")]
    parts[0] += f" {bar}" if bar else ""
    if isinstance(last.get("loss"), (int, float)):
        parts.append(f"loss {last['loss']:.4f}")
    if isinstance(last.get("eval_loss"), (int, float)):
        parts.append(f"eval {last['eval_loss']:.4f}")
    if isinstance(last.get("tokens_per_s"), (int, float)):
        parts.append(f"{last['tokens_per_s']:,.0f} tokens/s")
    if state.steps and isinstance(last.get("step_s"), (int, float)):
        parts.append(f"{words.seconds((state.steps - step) * last['step_s'])} left")
    now = {rank.phase for rank in state.ranks if not rank.over}
    parts += [name for phase, name in stall.PAUSES.items() if phase in now]
    if state.attempt > 1:
        parts.append(f"attempt {state.attempt}")
    return "   ".join(parts)


def live_line(state: RunState, last: dict[str, Any], columns: int, *, plain: bool) -> str:
    """The same with a bar, in fewer columns than the terminal has: a line that wraps could not be taken away.

    plain: ASCII only.
    """
    share = last.get("step", state.step) / state.steps if state.steps else 0.0
    bar = progress_bar(share, plain=plain) if state.steps and columns >= LEAST_COLUMNS else ""
    return progress_line(state, last, bar)[: columns - 1]


def progress_bar(share: float, *, plain: bool) -> str:
    """`[####....]  50%`, or the same in better signs."""
    share = min(1.0, max(0.0, share))
    done = round(share * BAR_CELLS)
    full, rest = (
        ("#", ".") if plain else ("\N{BOX DRAWINGS HEAVY HORIZONTAL}", "\N{BOX DRAWINGS LIGHT HORIZONTAL}")
    )
    bar = full * done + rest * (BAR_CELLS - done)
    return f"{f'[{bar}]' if plain else bar} {share:4.0%}"


def changes(before: RunState, after: RunState) -> list[str]:
    """What has become of ranks and hosts since, equal changes folded: `ranks 0-7: running`."""
    if before.attempt != after.attempt or len(before.ranks) != len(after.ranks):
        return [f"attempt {after.attempt}: {words.plural(len(after.ranks), 'rank')}"]
    found: dict[str, list[int]] = {}
    for old, new in zip(before.ranks, after.ranks, strict=True):
        if old is new:
            continue
        if new.pid != old.pid and new.pid is not None:
            found.setdefault(f"started on {new.host}", []).append(new.rank)
        elif new.state != old.state:
            found.setdefault(new.state, []).append(new.rank)
        if new.phase != old.phase and new.phase is not None:
            found.setdefault(f"phase {new.phase}", []).append(new.rank)
    told = [
        f"{'ranks' if len(ranks) > 1 else 'rank'} {fold_numbers(ranks)}: {what}"
        for what, ranks in found.items()
    ]
    if after.checkpoint and after.checkpoint != before.checkpoint:
        told.append(f"checkpoint {after.checkpoint}")
    return told + [f"{host} does not answer" for host in sorted(after.unreachable - before.unreachable)]


def inked(text: str, rank: int) -> str:
    """The text in the rank's colour."""
    return f"\x1b[{_INKS[rank % len(_INKS)]}m{text}\x1b[0m"


def emphasized(text: str) -> str:
    """The text in bold."""
    return f"\x1b[1m{text}\x1b[0m"

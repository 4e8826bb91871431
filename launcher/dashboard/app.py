"""`distperf status` on a terminal. Thin: keys and clicks in, lines of the pure views out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.message import Message

from launcher.dashboard import asking, failures, grid, keys, one, overview, planned, tones
from launcher.dashboard.ask import Prompt, Question
from launcher.dashboard.lines import Line, Look, Span, line
from launcher.dashboard.logpage import LogPage, chosen, why_no_choice, why_no_pattern
from launcher.dashboard.logview import Wanted
from launcher.dashboard.pane import Pane
from launcher.dashboard.reader import Logs, Looked, Reader
from launcher.errors import RunFolderError
from launcher.follow import Seen
from launcher.heat import next_metric
from launcher.rundir import RunDir

Pattern = re.Pattern[str]

NOTE_S = 8.0
ARROWS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


class Dashboard(App[str]):
    """One run on the screen. Its return value is why it could not be shown, if so."""

    CSS = """
    Pane { height: 1; scrollbar-size: 0 0; }
    #main { height: 1fr; scrollbar-size: 0 1; }
    .plain #main { scrollbar-size: 0 0; }
    ModalScreen { align: center middle; background: $background 60%; }
    #window { width: 70; max-width: 90%; height: auto; border: round $accent; padding: 1 2; background: $surface; }
    .plain #window { border: ascii $foreground; background: $background; }
    #window Horizontal { height: 2; }
    #window Button { width: auto; min-width: 12; height: 1; border: none; margin: 1 2 0 0; }
    #window Input { border: none; height: 1; margin: 1 0; background: $panel; }
    """
    ENABLE_COMMAND_PALETTE = False

    class News(Message):
        """The reader has looked."""

        def __init__(self, looked: Looked) -> None:
            super().__init__()
            self.looked = looked

    def __init__(self, run: RunDir, *, ascii: bool = False, color: bool = True, dark: bool = True) -> None:
        super().__init__(ansi_color=not color)
        self._run, self._ascii, self._color = run, ascii, color
        self.theme = ("textual-dark" if dark else "textual-light") if color else "ansi-dark"
        self._view = "overview"
        self._before_help = "overview"
        self._seen: Seen | None = None
        self._choice = grid.Choice()
        self._rank = 0
        self._opened = False  # failures, with their stacks
        self._page = LogPage()
        self._note = ""
        self._styles: dict[str, Style] = {}
        self._reader = Reader(
            run,
            lambda looked: self._post(self.News(looked)),
            lambda error: self._post(self.Lost(error)),
        )

    class Lost(Message):
        """The folder could not be read."""

        def __init__(self, error: RunFolderError) -> None:
            super().__init__()
            self.error = error

    def _post(self, message: Message) -> None:
        self.post_message(message)

    # Parts.

    def compose(self) -> ComposeResult:
        """Header, views, a line that says something now and then, the view, keys."""
        for name in ("header", "tabs", "info", "main", "keys"):
            yield Pane(name)

    def on_mount(self) -> None:
        """Start to read."""
        self.set_class(self._ascii or not self._color, "plain")
        self.app.screen.set_class(self._ascii or not self._color, "plain")
        self._restyle()
        self._reader.start()

    def on_unmount(self) -> None:
        """Let the reader end."""
        self._reader.close()

    def _restyle(self) -> None:
        self._styles = tones.styles(self.theme_variables, dark=self.current_theme.dark, color=self._color)
        self._paint()

    # What happens.

    def on_dashboard_news(self, message: News) -> None:
        """Show it."""
        first, self._seen = self._seen is None, message.looked.seen
        if message.looked.lines is not None and message.looked.logs == self._logs():
            self._page.lines = message.looked.lines
        if first:
            self._reader.want(self._logs())
        self._paint()

    def on_dashboard_lost(self, message: Lost) -> None:
        """There is nothing to show."""
        self.exit(str(message.error))

    def on_resize(self, _event: events.Resize) -> None:
        """Views are made for the room there is."""
        self.call_after_refresh(self._paint)

    def on_pane_picked(self, message: Pane.Picked) -> None:
        """A click is a key."""
        kind, _, what = message.target.partition(" ")
        if kind == "view":
            self._go(what)
        elif kind == "rank":
            self._open(int(what))
        elif kind == "do":
            self.call_next(self.run_action, what)
        elif kind == "fold":
            self.action_unfold()

    async def on_key(self, event: events.Key) -> None:
        """Numbers are views; arrows move the cursor or the view; the rest is in launcher.dashboard.keys."""
        if len(self.screen_stack) > 1:
            return
        known = (*keys.OF_VIEW.get(self._view, ()), *keys.EVERYWHERE)
        found = next((key for key in known if key.key == event.key), None)
        if found is not None:
            await self.run_action(found.action)
        elif event.key in "123456" and len(event.key) == 1:
            self._go(keys.VIEWS[int(event.key) - 1])
        elif event.key == "escape":
            self._go(self._before_help if self._view == "help" else "overview")
        elif event.key in ARROWS and self._view == "ranks":
            self._move(*ARROWS[event.key])
        elif not self._main.scroll_by(event.key):
            return
        event.stop()

    # Painting.

    @property
    def _main(self) -> Pane:
        return self.query_one("#main", Pane)

    def _look(self, pane: Pane) -> Look:
        return Look(max(20, pane.size.width), max(4, pane.size.height), self._ascii)

    def _paint(self) -> None:
        if not self._styles or len(self.screen_stack) == 0 or not self.is_running:
            return
        base = self.screen_stack[0]
        panes = {
            name: base.query_one(f"#{name}", Pane) for name in ("header", "tabs", "info", "main", "keys")
        }
        look = self._look(panes["main"])
        if look.width < 20 or self._seen is None:
            panes["main"].show([line(Span(f" reading {self._run.path} ...", "dim"))], self._styles)
            return
        info = self._info()
        panes["info"].display = bool(info)
        panes["header"].show([overview.header(self._seen, look)], self._styles)
        panes["tabs"].show([keys.tabs(self._view, look)], self._styles)
        panes["info"].show(info, self._styles)
        panes["keys"].show([keys.footer(self._view, look)], self._styles)
        main, follows = panes["main"], panes["main"].at_end
        if self._view == "logs":
            if not follows and self._page.entries:  # somebody reads: what is read stays where it is
                main.show(main.lines, self._styles)
                return
            hosts = [rank.host for rank in self._seen.state.ranks]
            main.show(self._page.draw(hosts, look), self._styles)
            main.scroll_end(animate=False, immediate=False)
            return
        main.show(self._view_lines(self._seen, look), self._styles)

    def _view_lines(self, seen: Seen, look: Look) -> Sequence[Line]:
        views: dict[str, Callable[[], Sequence[Line]]] = {
            "overview": lambda: overview.overview(seen, look),
            "ranks": lambda: grid.grid(seen, look, self._choice),
            "rank": lambda: one.one_rank(seen, self._rank, self._page.tail(look.height), look),
            "events": lambda: failures.events(seen, look, opened=self._opened),
            "plan": lambda: planned.planned(seen, look),
            "help": lambda: keys.help_lines(look),
        }
        return views[self._view]()

    def _info(self) -> list[Line]:
        """The line between the tabs and the view: what was just done, and how logs are shown."""
        spans = [Span(f" {self._note}  ", "accent")] if self._note else []
        if self._view == "logs":
            spans += self._page.status(follows=self._main.at_end)
        return [tuple(spans)] if spans else []

    # Actions.

    def _go(self, view: str) -> None:
        if view == "help":
            self._before_help = self._view
        self._view = view
        self._page.clear()
        self._main.scroll_home(animate=False)
        self._reader.want(self._logs())
        self._paint()

    def _open(self, rank: int) -> None:
        self._rank = rank
        self._choice = replace(self._choice, cursor=rank)
        self._go("rank")

    def _logs(self) -> Logs | None:
        """Whose output the view needs."""
        if self._seen is None or self._view not in ("rank", "logs"):
            return None
        state = self._seen.state
        if self._view == "rank":
            return Logs(state.attempt, (self._rank,))
        return Logs(state.attempt, chosen(self._page.only, [rank.host for rank in state.ranks]))

    def _say(self, text: str) -> None:
        self._note = text
        self._paint()
        self.set_timer(NOTE_S, self._unsay)

    def _unsay(self) -> None:
        self._note = ""
        self._paint()

    def action_help(self) -> None:
        """All keys, and back."""
        self._go(self._before_help if self._view == "help" else "help")

    def action_next(self) -> None:
        """The view after this one."""
        at = keys.VIEWS.index(self._view) if self._view in keys.VIEWS else -1
        self._go(keys.VIEWS[(at + 1) % len(keys.VIEWS)])

    def action_dark(self) -> None:
        """Dark or light."""
        if self._color:
            self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
            self._restyle()

    def action_metric(self) -> None:
        """The next kind of heat."""
        if self._seen is not None:
            self._choice = replace(self._choice, metric=next_metric(self._seen, self._choice.metric))
            self._paint()

    def action_fold(self) -> None:
        """Ranks or nodes."""
        self._choice = replace(self._choice, nodes=not self._choice.nodes)
        self._paint()

    def _move(self, right: int, down: int) -> None:
        cursor = grid.move(self._main.lines, self._choice.cursor, right, down)
        self._choice = replace(self._choice, cursor=cursor)
        self._paint()
        row = grid.row_of(self._main.lines, cursor)
        top, rows = self._main.scroll_offset.y, self._main.size.height
        if not top <= row < top + rows:
            self._main.scroll_to(y=max(0, row - rows // 2), animate=False)

    def action_open(self) -> None:
        """The rank under the cursor."""
        self._open(self._choice.cursor)

    def action_other(self, by: int) -> None:
        """The rank before or after."""
        ranks = len(self._seen.state.ranks) if self._seen else 1
        self._open((self._rank + by) % ranks)

    def action_unfold(self) -> None:
        """Failures with or without their stacks."""
        self._opened = not self._opened
        self._paint()

    def action_goto(self) -> None:
        """Ask for a rank."""
        most = len(self._seen.state.ranks) - 1 if self._seen else 0

        def check(text: str) -> str | None:
            return None if text.isdecimal() and int(text) <= most else f"a rank is a number from 0 to {most}"

        self.push_screen(Prompt("Rank:", "", check), lambda text: self._open(int(text)) if text else None)

    def action_search(self) -> None:
        """Ask for what is to be marked."""
        title, wanted = "Mark lines that match (nothing: none):", self._page.wanted
        self._ask_pattern(title, wanted.search, lambda found: replace(wanted, search=found))

    def action_grep(self) -> None:
        """Ask for what lines must match."""
        title, wanted = "Only lines that match (nothing: all):", self._page.wanted
        self._ask_pattern(title, wanted.pattern, lambda found: replace(wanted, pattern=found))

    def _ask_pattern(
        self, title: str, old: Pattern | None, wanted: Callable[[Pattern | None], Wanted]
    ) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                self._rewant(wanted(re.compile(text) if text else None))

        self.push_screen(Prompt(title, old.pattern if old else "", why_no_pattern), take)

    def _rewant(self, wanted: Wanted) -> None:
        searched = wanted.search is not self._page.wanted.search
        self._page.want(wanted)
        self._paint()
        if searched and wanted.search is not None:
            self.call_after_refresh(self.action_hit, 0)

    def action_hit(self, by: int) -> None:
        """Go to a match: the next, the one before, or (0) the newest."""
        row = self._page.hit(self._main.scroll_offset.y, by)
        if row is None:
            self._say("nothing matches" if self._page.wanted.search else "/ asks what to search for")
            return
        self._main.scroll_to(y=row, animate=False)
        self._paint()

    def action_only(self) -> None:
        """Ask for ranks or hosts."""
        hosts = [rank.host for rank in self._seen.state.ranks] if self._seen else []

        def take(text: str | None) -> None:
            if text is not None:
                self._page.only = text.strip()
                self._go("logs")

        self.push_screen(
            Prompt(
                "Only ranks 0,4-7 or hosts node[01-04] (nothing: all):",
                self._page.only,
                lambda text: why_no_choice(text, hosts),
            ),
            take,
        )

    def action_level(self) -> None:
        """All lines, warnings and errors, errors."""
        self._rewant(self._page.next_level())

    def action_squeeze(self) -> None:
        """Equal lines as one, or each."""
        self._rewant(replace(self._page.wanted, folded=not self._page.wanted.folded))

    def action_follow(self) -> None:
        """Stay at the end, or stay here."""
        if self._main.at_end:
            self._main.scroll_relative(y=-1, animate=False)
        else:
            self._page.entries = []
            self._main.scroll_end(animate=False)
        self.call_after_refresh(self._paint)

    def action_ask(self, what: str) -> None:
        """Ask the user, then the controller."""
        if self._seen is None or self._seen.over:
            self._say("the run is over" if self._seen else "nothing is known yet")
            return
        asked = asking.ASKS[what]

        def act() -> None:
            self.call_from_thread(self._say, asking.told(asked, self._run))

        def take(answer: bool | None) -> None:
            if answer:
                self.run_worker(act, thread=True, exit_on_error=False)

        self.push_screen(Question(asked.question, asked.yes), take)

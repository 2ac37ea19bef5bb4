"""What a person sees while a sweep runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.results.records import RunResult
from orchestrator.runtimes.launch_plan import rank_name, rank_noun
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

PLAIN_EVERY_S = 10.0


@dataclass
class Pace:
    """How long the rest will take, from how long the runs so far took."""

    total: int
    seconds: list[float] = field(default_factory=list)

    def left(self, number: int) -> str:
        """Time left when run `number` (1-based) begins."""
        if not self.seconds:
            return ""
        left = (self.total - number + 1) * sum(self.seconds) / len(self.seconds)
        return f"about {clock_time(left)} left"


def clock_time(seconds: float) -> str:
    """75 as 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def outcome(number: int, total: int, result: RunResult, skipped: bool) -> str:
    """One line on a run that has ended."""
    head = f"[{number}/{total}] {result.key}"
    if skipped:
        return f"{head}: done before"
    if result.status != "ok":
        return f"{head}: {result.status.upper()} after {result.wall_s:.1f} s: {result.cause}"
    accuracy = "" if result.accuracy is None else f", acc {result.accuracy:.1%}"
    return f"{head}: ok in {result.wall_s:.1f} s, trained {result.train_s or 0:.2f} s{accuracy}"


def where(event: Event) -> tuple[str, str, str] | None:
    """Epoch, loss and throughput as an event tells them, or None. A server has no loss."""
    fields = event.fields
    if event.kind == "step":
        done = f"{fields['epoch']}/{fields['epochs']} step {fields['step']}/{fields['steps']}"
        return done, f"{fields['loss']:.3f}", f"{fields['samples_per_s']:,.0f}"
    if event.kind == "epoch":
        loss = "" if fields["loss"] is None else f"{fields['loss']:.3f}"
        return f"{fields['epoch']}/{fields['epochs']} done", loss, ""
    return None


class PlainDisplay:
    """A line when a run begins, one every 10 s while it trains, a line when it ends."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._pace = console, Pace(total)
        self._spoke, self._per_node = 0.0, 1

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, number: int, total: int, run: RunSpec) -> None:
        self._spoke, self._per_node = time.monotonic(), run.processes_per_node
        left = self._pace.left(number)
        self._line(f"[{number}/{total}] {run.key}: started{', ' + left if left else ''}")

    def events(self, events: Sequence[Event]) -> None:
        if time.monotonic() - self._spoke < PLAIN_EVERY_S:
            return
        told = {event.rank: place for event in events if (place := where(event))}
        if told:
            self._spoke = time.monotonic()
        for rank, (epoch, loss, throughput) in sorted(told.items()):
            name = rank_name(rank, self._per_node)
            speed = f", {throughput} samples/s" if throughput else ""
            told_loss = f", loss {loss}" if loss else ""
            self._line(f"  {name}: epoch {epoch}{told_loss}{speed}")

    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None:
        if not skipped:
            self._pace.seconds.append(result.wall_s)
        self._line(outcome(number, total, result, skipped))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class LiveDisplay(PlainDisplay):
    """The same lines for ended runs; below them the running one, rank by rank."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        self._head, self._number, self._total = "", 0, total
        self._ranks: dict[int, tuple[str, str, str]] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._view)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def begin(self, number: int, total: int, run: RunSpec) -> None:
        self._head, self._number, self._per_node = run.key, number, run.processes_per_node
        self._ranks = dict.fromkeys(range(run.world_size), ("starting", "", ""))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if place := where(event):
                epoch, loss, throughput = place
                self._ranks[event.rank] = (epoch, loss, throughput or self._ranks[event.rank][2])

    def _view(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for title in (rank_noun(self._per_node), "epoch", "loss", "samples/s"):
            table.add_column(title, justify="left" if title == "epoch" else "right", style="dim")
        shown = sorted(self._ranks.items())[:16]
        for rank, (epoch, loss, throughput) in shown:
            table.add_row(str(rank), epoch, loss, throughput)
        if len(self._ranks) > len(shown):
            table.add_row("…", f"and {len(self._ranks) - len(shown)} more", "", "")
        progress = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=self._total, completed=max(0, self._number - 1), width=40)
        progress.add_row(bar, Text(self._pace.left(self._number), style="dim"))
        heading = f"run {self._number} of {self._total}  {self._head}"
        return Group(Text(heading, style="bold", overflow="ellipsis"), progress, table)


def display_on(console: Console, total: int) -> PlainDisplay:
    """The display that fits where the output goes."""
    return LiveDisplay(console, total) if console.is_terminal else PlainDisplay(console, total)

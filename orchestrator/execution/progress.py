"""Progress of a sweep: a live table on a terminal, plain lines elsewhere."""

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
class TimeLeft:
    """Estimates the remaining time from the runs so far."""

    total: int
    seconds: list[float] = field(default_factory=list)

    def estimate(self, number: int) -> str:
        """Time left when run `number` (from 1) starts; empty before any run has ended."""
        if not self.seconds:
            return ""
        left = (self.total - number + 1) * sum(self.seconds) / len(self.seconds)
        return f"about {clock_time(left)} left"


def clock_time(seconds: float) -> str:
    """Minutes and seconds: `1:15` for 75."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def result_line(number: int, total: int, result: RunResult, skipped: bool) -> str:
    """One line for a run that has ended."""
    head = f"[{number}/{total}] {result.key}"
    if skipped:
        return f"{head}: already done"
    if result.status != "ok":
        log = f"; see {result.log}" if result.log else ""
        return f"{head}: {result.status.upper()} after {result.wall_s:.1f} s: {result.cause}{log}"
    accuracy = "" if result.accuracy is None else f", acc {result.accuracy:.1%}"
    return f"{head}: ok in {result.wall_s:.1f} s, trained {result.train_s or 0:.2f} s{accuracy}"


def position(event: Event) -> tuple[str, str, str] | None:
    """Epoch, loss and throughput in an event, or None. A parameter server has no loss."""
    fields = event.fields
    if event.kind == "step":
        done = f"{fields['epoch']}/{fields['epochs']} step {fields['step']}/{fields['steps']}"
        return done, f"{fields['loss']:.3f}", f"{fields['samples_per_s']:,.0f}"
    if event.kind == "epoch":
        loss = "" if fields["loss"] is None else f"{fields['loss']:.3f}"
        return f"{fields['epoch']}/{fields['epochs']} done", loss, ""
    return None


class PlainProgress:
    """One line when a run starts, one every 10 s and rank while it trains, one when it ends."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._time_left = console, TimeLeft(total)
        self._printed_at, self._per_node = 0.0, 1

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def warm_up(self, run: RunSpec) -> None:
        self._printed_at, self._per_node = time.monotonic(), run.processes_per_node
        self._line(f"warm-up run, whose result is dropped: {run.key}")

    def begin(self, number: int, total: int, run: RunSpec) -> None:
        self._printed_at, self._per_node = time.monotonic(), run.processes_per_node
        left = self._time_left.estimate(number)
        self._line(f"[{number}/{total}] {run.key}: started{', ' + left if left else ''}")

    def events(self, events: Sequence[Event]) -> None:
        if time.monotonic() - self._printed_at < PLAIN_EVERY_S:
            return
        positions = {event.rank: found for event in events if (found := position(event))}
        if positions:
            self._printed_at = time.monotonic()
        for rank, (epoch, loss, throughput) in sorted(positions.items()):
            name = rank_name(rank, self._per_node)
            shown_loss = f", loss {loss}" if loss else ""
            speed = f", {throughput} samples/s" if throughput else ""
            self._line(f"  {name}: epoch {epoch}{shown_loss}{speed}")

    def note(self, text: str) -> None:
        self._line(text)

    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None:
        if not skipped:
            self._time_left.seconds.append(result.wall_s)
        self._line(result_line(number, total, result, skipped))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class LiveProgress(PlainProgress):
    """The same lines for ended runs, above a table of the running one with a row per rank."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        self._head, self._number, self._total = "", 0, total
        self._ranks: dict[int, tuple[str, str, str]] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._view)

    def __enter__(self) -> LiveProgress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def warm_up(self, run: RunSpec) -> None:
        super().warm_up(run)
        self._show(f"warm-up run  {run.key}", run)

    def begin(self, number: int, total: int, run: RunSpec) -> None:
        self._number = number
        self._show(f"run {number} of {total}  {run.key}", run)

    def _show(self, head: str, run: RunSpec) -> None:
        self._head, self._per_node = head, run.processes_per_node
        self._ranks = dict.fromkeys(range(run.world_size), ("starting", "", ""))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if found := position(event):
                epoch, loss, throughput = found
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
        progress.add_row(bar, Text(self._time_left.estimate(self._number), style="dim"))
        return Group(Text(self._head, style="bold", overflow="ellipsis"), progress, table)


def progress_on(console: Console, total: int) -> PlainProgress:
    """The live table on a terminal, plain lines elsewhere."""
    return LiveProgress(console, total) if console.is_terminal else PlainProgress(console, total)

"""Progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
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

    def estimate(self, number: int, done: float = 0.0, elapsed_s: float = 0.0) -> str:
        """Time left in run `number` (from 1); empty if nothing is known yet.

        Before any run has ended, the running one shows how long a run takes.

        Args:
            done: share of the run's training that is done, 0 … 1.
            elapsed_s: seconds since the run started.
        """
        of_run = fmean(self.seconds) if self.seconds else elapsed_s / done if done else 0.0
        if not of_run:
            return ""
        # A run that takes longer than others has no time left, rather than less than none.
        running = (1 - done) * of_run if done else max(of_run - elapsed_s, 0.0)
        return f"about {clock_time(running + (self.total - number) * of_run)} left"


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


@dataclass(frozen=True)
class Position:
    """Where a rank is in its training, as text; what an event does not say is empty.

    done: share of its epochs, 0 … 1. accuracy: on the test split, after the last evaluated epoch.
    """

    done: float
    epoch: str
    loss: str = ""
    accuracy: str = ""
    throughput: str = ""


STARTING = Position(0.0, "starting")


def position(event: Event, before: Position = STARTING) -> Position | None:
    """Where the rank of an event is, or None. before: where it was. A parameter server has no loss."""
    fields = event.fields
    if event.kind == "step":
        steps = (fields["epoch"] - 1) * fields["steps"] + fields["step"]
        return Position(
            steps / (fields["epochs"] * fields["steps"]),
            f"{fields['epoch']}/{fields['epochs']} step {fields['step']}/{fields['steps']}",
            f"{fields['loss']:.3f}",
            before.accuracy,
            f"{fields['samples_per_s']:,.0f}",
        )
    if event.kind == "epoch":
        return Position(
            fields["epoch"] / fields["epochs"],
            f"{fields['epoch']}/{fields['epochs']} done",
            "" if fields["loss"] is None else f"{fields['loss']:.3f}",
            f"{fields['accuracy']:.1%}",
            before.throughput,
        )
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
        for rank, found in sorted(positions.items()):
            parts = [
                f"epoch {found.epoch}",
                f"loss {found.loss}" if found.loss else "",
                f"acc {found.accuracy}" if found.accuracy else "",
                f"{found.throughput} samples/s" if found.throughput else "",
            ]
            self._line(f"  {rank_name(rank, self._per_node)}: {', '.join(filter(None, parts))}")

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
        self._ranks: dict[int, Position] = {}
        self._started_at = time.monotonic()
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
        self._ranks = dict.fromkeys(range(run.world_size), STARTING)
        self._started_at = time.monotonic()

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if found := position(event, self._ranks.get(event.rank, STARTING)):
                self._ranks[event.rank] = found

    def _view(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for title in (rank_noun(self._per_node), "epoch", "loss", "test accuracy", "samples/s"):
            table.add_column(title, justify="left" if title == "epoch" else "right", style="dim")
        shown = sorted(self._ranks.items())[:16]
        for rank, at in shown:
            table.add_row(str(rank), at.epoch, at.loss, at.accuracy, at.throughput)
        if len(self._ranks) > len(shown):
            table.add_row("…", f"and {len(self._ranks) - len(shown)} more")
        elapsed_s = time.monotonic() - self._started_at
        done = fmean(at.done for at in self._ranks.values()) if self._ranks else 0.0
        left = self._time_left.estimate(self._number, done, elapsed_s) if self._number else ""
        progress = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=self._total, completed=max(0, self._number - 1) + done, width=40)
        progress.add_row(bar, Text(", ".join(filter(None, [clock_time(elapsed_s), left])), style="dim"))
        return Group(Text(self._head, style="bold", overflow="ellipsis"), progress, table)


def progress_on(console: Console, total: int) -> PlainProgress:
    """The live table on a terminal, plain lines elsewhere."""
    return LiveProgress(console, total) if console.is_terminal else PlainProgress(console, total)

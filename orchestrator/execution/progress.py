"""Progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.execution.position import STARTING, Position, TimeLeft, position, share_done
from orchestrator.results.limits import is_disturbed
from orchestrator.results.records import RunResult
from orchestrator.results.store import imported_code
from orchestrator.results.times import duration
from orchestrator.runtimes.launch_plan import rank_name, rank_noun
from trainer.core.events import Event
from trainer.core.record import one_line
from trainer.spec.run_spec import RunSpec

PLAIN_EVERY_S = 10.0
PLAIN_RANKS = 8  # the most that a plain progress names at once


def run_label(key: str, spec: Mapping[str, Any]) -> str:
    """A run by its key and its users' components: `local_sgd-gloo-n4-s0-1f2e3d4c · LogNormalDirichlet`."""
    return " · ".join([key, *(one_line(name.rpartition(":")[2]) for name in imported_code(spec))])


def result_line(number: int, total: int, result: RunResult, skipped: bool) -> str:
    """One line for a run that has ended."""
    head = f"[{number}/{total}] {run_label(result.key, result.spec)}"
    if skipped:
        return f"{head}: already done"
    if result.status != "ok":
        log = f"; see {result.log}" if result.log else ""
        return f"{head}: {result.status.upper()} after {result.wall_s:.1f} s: {result.cause}{log}"
    accuracy = "" if result.accuracy is None else f", acc {result.accuracy:.1%}"
    simulated = " of simulated time" if result.runtime_info.simulates_time else ""
    took = f"{result.train_s or 0:.2f} s{simulated}"
    did = f"trained {took}{accuracy}" if result.runtime_info.trains else f"{took}, not trained"
    return f"{head}: ok in {result.wall_s:.1f} s, {did}"


class PlainProgress:
    """One line when a run starts, one every 10 s for each of a few ranks, one when it ends."""

    def __init__(self, console: Console, total: int, staged: bool = False) -> None:
        self._console, self._time_left = console, TimeLeft(total, staged=staged)
        self._printed_at, self._per_node = 0.0, 1
        self._disturbed = False  # whether the line about a busy machine is printed

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
        self._time_left.total = total
        left = self._time_left.estimate(number)
        label = run_label(run.key, run.model_dump(mode="json"))
        self._line(f"[{number}/{total}] {label}: started{', ' + left if left else ''}")

    def events(self, events: Sequence[Event]) -> None:
        if time.monotonic() - self._printed_at < PLAIN_EVERY_S:
            return
        positions = {event.rank: found for event in events if (found := position(event))}
        if positions:
            self._printed_at = time.monotonic()
        for rank, found in sorted(positions.items())[:PLAIN_RANKS]:
            parts = [
                f"epoch {found.epoch}",
                f"loss {found.loss}" if found.loss else "",
                f"acc {found.accuracy}" if found.accuracy else "",
                f"{found.throughput} samples/s" if found.throughput else "",
            ]
            self._line(f"  {rank_name(rank, self._per_node)}: {', '.join(filter(None, parts))}")
        if (others := len(positions) - PLAIN_RANKS) > 0:
            self._line(f"  and {others} other {rank_noun(self._per_node)}{'s' if others > 1 else ''}")

    def note(self, text: str) -> None:
        self._line(text)

    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None:
        if not skipped:
            self._time_left.seconds.append(result.wall_s)
        self._line(result_line(number, total, result, skipped))
        if is_disturbed(result) and not self._disturbed:
            self._disturbed = True
            self._line(
                "The machine is busy: in this run, a rank waited for its core during "
                f"{result.without_core:.0%} of its time. Times are not compared if most runs of as many "
                "ranks are like it. Stop other processes."
            )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class LiveProgress(PlainProgress):
    """The same lines for ended runs, above a table of the running one with a row per rank."""

    def __init__(self, console: Console, total: int, staged: bool = False) -> None:
        super().__init__(console, total, staged)
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
        self._number, self._time_left.total = number, total
        self._show(f"run {number} of {total}  {run_label(run.key, run.model_dump(mode='json'))}", run)

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
        done = share_done(self._ranks.values())
        left = self._time_left.estimate(self._number, done, elapsed_s) if self._number else ""
        progress = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=self._total, completed=max(0, self._number - 1) + done, width=40)
        progress.add_row(bar, Text(", ".join(filter(None, [duration(elapsed_s), left])), style="dim"))
        return Group(Text(self._head, style="bold", overflow="ellipsis"), progress, table)


def progress_on(console: Console, total: int, staged: bool = False) -> PlainProgress:
    """The live table on a terminal, plain lines elsewhere. staged: whether seeds are added in stages."""
    return (LiveProgress if console.is_terminal else PlainProgress)(console, total, staged)

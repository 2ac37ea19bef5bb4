"""A section per run: the command that repeats it, curves, phases, certificate, files and cause."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import quote

import yaml

from orchestrator.replay.windows import Windows
from orchestrator.report import formats
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import NO_SERIAL, OTHER_EPOCHS, Row
from orchestrator.report.quantities import Q
from orchestrator.report.render.columns import columns_of_runs
from orchestrator.report.render.summary import STATES
from orchestrator.report.render.tables import AT_FIRST, Cell, Head, Line, table_of
from orchestrator.results.records import EpochPoint, RankResult
from trainer.spec.run_spec import RunSpec

BESIDE = 3  # columns of the table of runs that every run has: run, nodes, seed
MOST_RANKS = 8  # of more, the section shows the fastest, the mean and the slowest
# Fields that do not define the computation, and that a repetition still needs.
_ALSO = ("timeout_s", "restarts", "trace")


@dataclass(frozen=True)
class Run:
    """A run: its line in the table of runs, and its section. Lists are empty where it has no such numbers.

    detail: what its name leaves out. filters: see `filters_of`. cells: its numbers if it is ok; otherwise
    the table has its status and cause. notes: numbers of footnotes. epochs: number, seconds, loss, test
    loss and accuracy in percent, as plain numbers, since the page draws them. phases: names. ranks: name of
    a line and its seconds by phase. files: title and address, relative to the report.
    """

    key: str
    name: str
    status: str
    cause: str
    filters: Mapping[str, str]
    detail: str = ""
    nodes: str = ""
    seed: str = ""
    cells: Sequence[Cell] = ()
    notes: Sequence[int] = ()
    clock: str = ""
    command: str = ""
    epochs: Sequence[list[str]] = ()
    phases: Sequence[str] = ()
    ranks: Sequence[tuple[str, list[str]]] = ()
    certificate: str = ""
    flags: Sequence[str] = ()
    files: Sequence[tuple[str, str]] = ()

    @property
    def ok(self) -> bool:
        return self.status == STATES["ok"]


@dataclass(frozen=True)
class Runs:
    """All runs. heads: those of the cells beside run, nodes and seed. notes: the footnotes."""

    heads: list[Head]
    runs: list[Run]
    notes: list[str]


def runs(comparison: Comparison) -> Runs:
    """The runs in the order of the sweep, with pending ones."""
    rows = comparison.rows
    table = table_of("Runs", columns_of_runs("runs"), rows, lambda row: [row], most=AT_FIRST - BESIDE)
    notes = list(dict.fromkeys(note for row in rows for note in _notes(row)))
    finished = {
        row.key: _run(row, line, notes, comparison) for row, line in zip(rows, table.lines, strict=True)
    }
    found = [finished.get(key) or _pending(key, comparison) for key in comparison.record.keys]
    return Runs(table.heads, found, notes)


def repeat_command(run: RunSpec, runtime: str) -> str:
    """The command that repeats one run: a sweep of it alone, whose file is the command's input."""
    fields = run.canonical() | {
        name: getattr(run, name)
        for name in _ALSO
        if getattr(run, name) != type(run).model_fields[name].default
    }
    sweep = {"name": "again", "blocks": [{"base": {name: _short(value) for name, value in fields.items()}}]}
    out = shlex.quote(f"results/{run.key}")
    return (
        f"python -m orchestrator sweep /dev/stdin --runtime {runtime} --out {out} <<'END'\n"
        f"{yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True, width=100)}END"
    )


def _short(value: Any) -> Any:
    """A component without parameters by its name alone."""
    return value["name"] if isinstance(value, dict) and list(value) == ["name"] else value


def _pending(key: str, comparison: Comparison) -> Run:
    why = comparison.unusable.get(key, "")
    status = "unusable" if why else "pending"
    return Run(key, key, STATES[status], why, {"status": status})


def _run(row: Row, line: Line, notes: Sequence[str], comparison: Comparison) -> Run:
    ranks = row.result.ranks
    phases = list(dict.fromkeys(phase for rank in ranks for phase in rank.seconds))
    return Run(
        row.key,
        row.series,
        STATES[row.status],
        row.cause or "",
        line.filters,
        detail=" · ".join(filter(None, [row.partitioner_label, *row.conditions])),
        nodes=row.shape.short,
        seed=str(row.seed),
        cells=line.cells if row.ok else (),
        notes=[notes.index(note) + 1 for note in _notes(row)],
        clock=row.clock if row.timed else "wall",
        command=repeat_command(row.run, row.result.runtime),
        epochs=[_epoch(point) for point in row.result.epochs if point.rank == row.result.epochs[0].rank],
        phases=phases,
        ranks=_seconds(ranks, phases),
        certificate=_certificate(row),
        flags=row.result.flags,
        files=_files(row, comparison),
    )


def _epoch(point: EpochPoint) -> list[str]:
    """Plain numbers: the page draws them."""
    percent = f"{100 * point.accuracy:.4g}"
    loss = formats.ABSENT if point.loss is None else f"{point.loss:.4g}"
    return [str(point.epoch), f"{point.train_s:.4g}", loss, f"{point.test_loss:.4g}", percent]


def _seconds(ranks: Sequence[RankResult], phases: Sequence[str]) -> list[tuple[str, list[str]]]:
    """A line per rank; of many ranks, the fastest, the mean and the slowest."""
    by_rank = {f"rank {rank.rank}": rank.seconds for rank in ranks}
    if len(ranks) > MOST_RANKS:
        ordered = sorted(ranks, key=lambda rank: rank.train_s)
        mean = {phase: fmean(rank.seconds.get(phase, 0.0) for rank in ranks) for phase in phases}
        first, last = ordered[0], ordered[-1]
        by_rank = {
            f"rank {first.rank}, the fastest": first.seconds,
            f"mean of {len(ranks)} ranks": mean,
            f"rank {last.rank}, the slowest": last.seconds,
        }
    return [
        (name, [formats.significant(seconds.get(phase, 0.0)) for phase in phases])
        for name, seconds in by_rank.items()
    ]


def _certificate(row: Row) -> str:
    """`Verified. Coverage 100.0%, overlap 0.0% in epoch 1; 359–360 samples per rank.`"""
    if row.verified is None or not row.node_samples:
        return ""
    low, high = (formats.whole(limit(row.node_samples)) for limit in (min, max))
    coverage, overlap = formats.percent(Q.coverage.of(row)), formats.percent(Q.overlap.of(row))
    samples = low if low == high else f"{low}–{high}"
    verified = "Verified" if row.verified else "Not verified"
    data = f" Training data {formats.listed(row.data)}." if row.data else ""
    return (
        f"{verified}. Coverage {coverage}, overlap {overlap} in epoch 1; {samples} samples per rank.{data}"
    )


def _files(row: Row, comparison: Comparison) -> list[tuple[str, str]]:
    """What the results directory holds of this run."""
    directory = quote(row.key)
    files = [("Result", f"{directory}/result.json"), ("Events", f"{directory}/events.jsonl")]
    if row.result.log:
        files.insert(0, ("Log", f"{directory}/{quote(row.result.log)}"))
    if isinstance(comparison.windows.get(row.key), Windows):
        files.append(("Timeline", f"{directory}/timeline.json"))
    return files


def _notes(row: Row) -> list[str]:
    return row.result.flags + [why for why in (NO_SERIAL, OTHER_EPOCHS) if row.no_speedup == why]

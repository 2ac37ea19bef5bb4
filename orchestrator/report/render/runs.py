"""The table of runs, and all about each: its command, epochs, phases, certificate, files and cause."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any
from urllib.parse import quote

import yaml

from orchestrator.replay.windows import Windows
from orchestrator.report import formats
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import NO_SERIAL, OTHER_EPOCHS, Row
from orchestrator.report.quantities import Q
from orchestrator.report.render import tree
from orchestrator.report.render.columns import columns_of
from orchestrator.report.render.summary import STATES
from orchestrator.report.render.tables import AT_FIRST, table_of
from orchestrator.results.records import EpochPoint, RankResult
from trainer.spec.run_spec import RunSpec

BESIDE = (tree.Head("Run", number=False), tree.Head("Nodes"), tree.Head("Seed"))  # of every run
EPOCHS = ("Epoch", "Time, s", "Training loss", "Test loss", "Test accuracy, %")
FEW_RUNS = 10  # whose table is open at first
MOST_RANKS = 8  # of more, the fastest, the mean and the slowest are shown
# Fields that do not define the computation, and that a repetition still needs.
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C, if libyaml is there: eight times as fast
_ALSO = ("timeout_s", "restarts", "trace")


def all_runs(comparison: Comparison) -> list[tree.Block]:
    """The table of runs, its notes, and each run, in the order of the sweep."""
    rows, keys = comparison.rows, comparison.record.keys
    runs = [Group((row,)) for row in rows]
    numbers = table_of("", columns_of("runs"), runs, lambda run: run.rows, most=AT_FIRST - len(BESIDE))
    notes = list(dict.fromkeys(note for row in rows for note in _notes(row)))
    lines, sections = {}, {}
    for row, line in zip(rows, numbers.lines, strict=True):
        lines[row.key] = _line(row, line, notes)
        problem = "" if row.ok else STATES[row.status]
        sections[row.key] = _section(row.key, [*_about(row, comparison)], line.filters, problem)
    for key in comparison.pending:
        why = comparison.unusable.get(key, "")
        status = "unusable" if why else "pending"
        cells = [_link(key, key), tree.Cell(""), tree.Cell(""), _cause(STATES[status], why)]
        lines[key] = tree.Line(cells, {"status": status}, "pending")
        sections[key] = _section(key, _cause_of(why), {"status": status}, STATES[status])
    noted = [tree.Head("Notes", number=False, first=False)] if notes else []
    heads = [*BESIDE, *(numbers.heads or [tree.Head("Cause")] * (not noted)), *noted]
    table = tree.Table("All runs of the sweep", heads, [lines[key] for key in keys], label="Runs")
    entries = [tree.Item([note], id=f"note-{number}") for number, note in enumerate(notes, 1)]
    return [
        tree.Fold(f"Table of {formats.count(len(keys), 'run')}", [table], len(keys) <= FEW_RUNS, "table"),
        *([tree.Items(entries, "notes", numbered=True)] if notes else []),
        tree.Heading("Each run", "each-run"),
        *(sections[key] for key in keys),
    ]


def _section(key: str, blocks: Sequence[tree.Block], filters: Mapping[str, str], problem: str) -> tree.Fold:
    return tree.Fold(key, blocks, kind="run", id=key, filters=filters, problem=problem)


def missing_runs(comparison: Comparison) -> Iterator[tree.Item]:
    """The failed and pending runs, with their causes."""
    for row in comparison.failed:
        log: tree.Inline = [" (log: ", tree.Span("code", row.log), ")"] if row.log else []
        yield tree.Item([tree.Span("code", row.key), f" {STATES[row.status]}: {row.cause or ''}", *log])
    for key in comparison.pending:
        why = comparison.unusable.get(key, "")
        yield tree.Item(
            [tree.Span("code", key), f" {STATES['unusable']}: {why}" if why else f" {STATES['pending']}"]
        )


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
        f"{yaml.dump(sweep, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100)}END"
    )


def _short(value: Any) -> Any:
    """A component without parameters by its name alone."""
    return value["name"] if isinstance(value, dict) and list(value) == ["name"] else value


def _line(row: Row, numbers: tree.Line, notes: Sequence[str]) -> tree.Line:
    conditions = " · ".join(filter(None, [row.partitioner_label, *row.conditions]))
    name = _link(row.series, row.key, f"{conditions}\n{row.key}".strip())
    cells = [name, tree.Cell(row.shape.short), tree.Cell(str(row.seed))]
    if not row.ok:
        return tree.Line([*cells, _cause(STATES[row.status], row.cause or "")], numbers.filters, "failed")
    own = [notes.index(note) + 1 for note in _notes(row)]
    links = [tree.Span("link", str(number), f"#note-{number}") for number in own]
    noted = [tree.Cell("", links=links)] if notes else []
    return tree.Line([*cells, *numbers.cells, *noted], numbers.filters)


def _link(text: str, key: str, detail: str = "") -> tree.Cell:
    """A cell with a link to a run."""
    return tree.Cell(text, detail, links=[tree.Span("link", text, f"#{quote(key)}")])


def _cause(status: str, why: str) -> tree.Cell:
    return tree.Cell(f"{status}: {why}" if why else status, kind="cause")


def _cause_of(why: str) -> list[tree.Block]:
    return [tree.Text([why], "cause")] if why else []


def _about(row: Row, comparison: Comparison) -> Iterator[tree.Block]:
    yield from _cause_of(row.cause or "")
    clock = row.clock if row.timed else "wall"
    if epochs := [point for point in row.result.epochs if point.rank == row.result.epochs[0].rank]:
        caption = f"After each epoch, in {clock} time"
        yield _numbers(caption, EPOCHS, [_epoch(point) for point in epochs], "epochs", row)
    if ranks := _seconds(row.result.ranks):
        phases = list(dict.fromkeys(phase for rank in row.result.ranks for phase in rank.seconds))
        lines = [
            [name, *(formats.significant(seconds.get(phase, 0.0)) for phase in phases)]
            for name, seconds in ranks.items()
        ]
        yield _numbers(f"Seconds by phase, in {clock} time", ["Rank", *phases], lines, "phases", row)
    for name, text in (("Certificate", _certificate(row)), *(("Note", flag) for flag in row.result.flags)):
        if text:
            yield tree.Text([tree.Span("strong", name), f" {text}"])
    yield tree.Text(
        [tree.Span("strong", "Spec"), ", without defaults, in the command that repeats the run:"]
    )
    yield tree.Source(repeat_command(row.run, row.result.runtime))
    files = [part for link in _files(row, comparison) for part in (", ", link)]
    yield tree.Text([tree.Span("strong", "Files"), " ", *files[1:]])


def _numbers(
    caption: str, heads: Sequence[str], lines: Sequence[Sequence[str]], kind: str, row: Row
) -> tree.Table:
    written = [tree.Line([*map(tree.Cell, line)]) for line in lines]
    return tree.Table(caption, [*map(tree.Head, heads)], written, kind, f"{caption}, {row.key}")


def _epoch(point: EpochPoint) -> list[str]:
    values = (point.train_s, point.loss, point.test_loss, 100 * point.accuracy)
    return [str(point.epoch), *(formats.ABSENT if value is None else f"{value:.4g}" for value in values)]


def _seconds(ranks: Sequence[RankResult]) -> Mapping[str, Mapping[str, float]]:
    """The seconds of each rank by phase; of many ranks, of the fastest, the mean and the slowest."""
    if len(ranks) <= MOST_RANKS:
        return {f"rank {rank.rank}": rank.seconds for rank in ranks}
    first, *_, last = sorted(ranks, key=lambda rank: rank.train_s)
    phases = dict.fromkeys(phase for rank in ranks for phase in rank.seconds)
    mean = {phase: fmean(rank.seconds.get(phase, 0.0) for rank in ranks) for phase in phases}
    return {
        f"rank {first.rank}, the fastest": first.seconds,
        f"mean of {len(ranks)} ranks": mean,
        f"rank {last.rank}, the slowest": last.seconds,
    }


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


def _files(row: Row, comparison: Comparison) -> list[tree.Span]:
    """What the results directory holds of this run."""
    files = {"Log": row.result.log, "Result": "result.json", "Events": "events.jsonl"}
    if isinstance(comparison.windows.get(row.key), Windows):
        files["Timeline"] = "timeline.json"
    return [
        tree.Span("link", name, f"{quote(row.key)}/{quote(file)}") for name, file in files.items() if file
    ]


def _notes(row: Row) -> list[str]:
    return row.result.flags + [why for why in (NO_SERIAL, OTHER_EPOCHS) if row.no_speedup == why]

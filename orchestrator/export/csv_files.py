"""Format csv: runs with all fields of their specs, epochs and configurations, for data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.export.base import Exported, ResultsExporter, write_text
from orchestrator.export.contents import ExportedRun, ExportedSweep, Line
from orchestrator.results.csv_text import csv_text


class CsvExporter(ResultsExporter):
    """`runs.csv`, `epochs.csv`, `configurations.csv`.

    The columns of runs.csv are params.*, metrics.* and tags.*.
    """

    name = "csv"

    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        yield write_text(out / "runs.csv", _table([*map(_run_line, sweep.runs)], "tags.key"))
        epochs = [line for run in sweep.runs for line in _epoch_lines(run)]
        yield write_text(out / "epochs.csv", _table(epochs, "key", "epoch"))
        yield write_text(out / "configurations.csv", csv_text(sweep.columns, sweep.configurations))

    def advice(self, out: Path) -> str:
        return f"open with: pandas.read_csv({str(out / 'runs.csv')!r})"


def _run_line(run: ExportedRun) -> Line:
    return {
        f"{kind}.{name}": value
        for kind, values in (("tags", run.tags), ("params", run.parameters), ("metrics", run.metrics))
        for name, value in values.items()
    }


def _epoch_lines(run: ExportedRun) -> Iterator[Line]:
    for epoch in run.epochs:
        yield {"key": run.key, "epoch": epoch.number, **epoch.values}


def _table(lines: Sequence[Line], *first: str) -> str:
    """The lines with every column that one of them has. first: columns that the table has in any case."""
    columns = dict.fromkeys([*first, *(name for line in lines for name in line)])
    return csv_text([*columns], lines)

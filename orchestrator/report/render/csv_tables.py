"""The CSV files beside a report, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from orchestrator.report.findings.claims import Claims
from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import Row
from orchestrator.report.render.columns import columns_of_runs, summary_columns
from orchestrator.report.render.epochs import EPOCH_COLUMNS, epochs_of
from orchestrator.report.render.tables import Column, Value
from orchestrator.report.topics import asked_by
from orchestrator.results.csv_text import csv_text

T = TypeVar("T")
Lines = tuple[Sequence[str], Iterator[dict[str, Value]]]

RESULT_COLUMNS = columns_of_runs("results.csv")
# Times are on the wall clock, whichever clock is the report's, until `clock`.
CLOCK = [column.key for column in RESULT_COLUMNS].index("clock")
# The files with their columns: the data dictionary.
DICTIONARY: dict[str, Sequence[Column[Any]]] = {
    "summary.csv": summary_columns(),
    "results.csv": RESULT_COLUMNS,
    "epochs.csv": EPOCH_COLUMNS,
}
ENTRY = ("file", "column", "unit", "meaning", "empty")


def results_csv(comparison: Comparison) -> str:
    """results.csv: one line per run. Failed and unusable ones have a cause, pending ones only a key."""
    return csv_text(*result_lines(comparison))


def summary_csv(comparison: Comparison, claims: Claims | None = None) -> str:
    """summary.csv: one line per configuration with a result, in the order of the sweep.

    claims: the decided comparisons, if they are known already.
    """
    return csv_text(*summary_lines(comparison, claims))


def epochs_csv(comparison: Comparison) -> str:
    """epochs.csv: one line per ok run and epoch, in the order of the sweep, on the wall clock."""
    return csv_text(*epoch_lines(comparison))


def result_lines(comparison: Comparison) -> Lines:
    """The columns and lines of results.csv."""
    return _names(RESULT_COLUMNS), _results(comparison)


def summary_lines(comparison: Comparison, claims: Claims | None = None) -> Lines:
    """The columns and lines of summary.csv. claims: the decided comparisons, if they are known already."""
    columns = summary_columns(speedup_intervals(comparison, claims or asked_by(comparison).decided()))
    return _names(columns), (_line(columns, group) for group in comparison.groups)


def epoch_lines(comparison: Comparison) -> Lines:
    """The columns and lines of epochs.csv."""
    epochs = (epoch for row in comparison.rows for epoch in epochs_of(row.wall))
    return _names(EPOCH_COLUMNS), (_line(EPOCH_COLUMNS, epoch) for epoch in epochs)


def _results(comparison: Comparison) -> Iterator[dict[str, Value]]:
    rows = {row.key: row for row in comparison.rows}
    for key in comparison.record.keys:
        if (row := rows.get(key)) is None:
            why = comparison.unusable.get(key)
            yield {"key": key, "status": "unusable" if why else "pending", "cause": why}
        else:
            yield _result_line(row)


def columns_csv() -> str:
    """columns.csv: the data dictionary of the other files, for readers without the documentation."""
    return csv_text(ENTRY, dictionary())


def dictionary() -> list[dict[str, Value]]:
    """An entry for each column of each file."""
    return [
        dict(zip(ENTRY, (file, column.key, column.unit, column.meaning, column.empty), strict=True))
        for file, columns in DICTIONARY.items()
        for column in columns
    ]


def _result_line(row: Row) -> dict[str, Value]:
    return _line(RESULT_COLUMNS[:CLOCK], row.wall) | _line(RESULT_COLUMNS[CLOCK:], row)


def _line(columns: Sequence[Column[T]], item: T) -> dict[str, Value]:
    return {column.key: column.value(item) for column in columns}


def _names(columns: Sequence[Column[Any]]) -> list[str]:
    return [column.key for column in columns]

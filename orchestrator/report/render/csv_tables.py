"""The CSV files beside a report, for spreadsheets and data frames.

columns.csv, the data dictionary, has their columns in order. Programs read the files: add columns at the
end, and do not rename them. A column whose meaning is empty there is a field of the sweep file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.speedups import speedup_intervals, time_interval
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.render.csv_values import OF_EPOCH, Value, epochs_of, of_group, of_run
from orchestrator.report.statistics.contrasts import MIN_SEEDS as COMPARED_SEEDS
from orchestrator.report.statistics.intervals import MIN_SEEDS
from orchestrator.report.topics import asked_by
from orchestrator.results.csv_text import csv_text
from trainer.spec.run_spec import RunSpec

T = TypeVar("T")
Lines = tuple[Sequence[str], Iterator[dict[str, Value]]]


class Entry(NamedTuple):
    """A column of a CSV file.

    unit: the unit of its numbers; empty for text, counts, and values without a unit. empty: the lines for
    which it has no value, beside those for which nothing is known or measured at all.
    """

    file: str
    column: str
    unit: str
    meaning: str
    empty: str


def _dictionary() -> dict[str, list[Entry]]:
    """The columns of each file."""
    found: dict[str, list[Entry]] = {}
    text = (Path(__file__).parent / "columns.csv").read_text(encoding="utf-8")
    for file, column, unit, meaning, empty in [*csv.reader(text.splitlines())][1:]:
        meaning = meaning or RunSpec.model_fields[column].description or ""
        empty = empty.format(seeds=MIN_SEEDS, compared_seeds=COMPARED_SEEDS)
        found.setdefault(file, []).append(Entry(file, column, unit, meaning, empty))
    return found


DICTIONARY = _dictionary()
SUMMARY, RESULTS, EPOCHS = (tuple(entry.column for entry in entries) for entries in DICTIONARY.values())
OF_RUN = {name: of_run(name) for name in RESULTS}
# Times are on the wall clock, whichever clock is the report's, up to this column.
CLOCK = RESULTS.index("clock")


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


def columns_csv() -> str:
    """columns.csv: the data dictionary of the other files, for readers without the documentation."""
    entries = (entry._asdict() for entries in DICTIONARY.values() for entry in entries)
    return csv_text(Entry._fields, entries)


def result_lines(comparison: Comparison) -> Lines:
    """The columns and lines of results.csv."""
    return RESULTS, _results(comparison)


def summary_lines(comparison: Comparison, claims: Claims | None = None) -> Lines:
    """The columns and lines of summary.csv. claims: the decided comparisons, if they are known already."""
    claims = claims or asked_by(comparison).decided()
    times = partial(time_interval, Q.train_s, claims=claims)
    values = of_group(times, speedup_intervals(comparison, claims))
    return SUMMARY, (_line(SUMMARY, values, group) for group in comparison.groups)


def epoch_lines(comparison: Comparison) -> Lines:
    """The columns and lines of epochs.csv."""
    epochs = (epoch for row in comparison.rows for epoch in epochs_of(row.wall))
    return EPOCHS, (_line(EPOCHS, OF_EPOCH, epoch) for epoch in epochs)


def _results(comparison: Comparison) -> Iterator[dict[str, Value]]:
    rows = {row.key: row for row in comparison.rows}
    for key in comparison.record.keys:
        if (row := rows.get(key)) is None:
            why = comparison.unusable.get(key)
            yield {"key": key, "status": "unusable" if why else "pending", "cause": why}
        else:
            yield _result_line(row)


def _result_line(row: Row) -> dict[str, Value]:
    return _line(RESULTS[:CLOCK], OF_RUN, row.wall) | _line(RESULTS[CLOCK:], OF_RUN, row)


def _line(names: Sequence[str], values: Mapping[str, Callable[[T], Value]], item: T) -> dict[str, Value]:
    return {name: values[name](item) for name in names}

"""The accuracy of each strategy with each partitioner."""

from __future__ import annotations

from typing import Any

import altair as alt

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.grid import Grid, Side
from orchestrator.report.figures.style import series_name
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.statistics.spread import Spread

MIN_COMPARED = 2  # strategies with several partitioners; fewer are compared by other figures
MAX_COLUMNS = 7  # more columns have no room for their names
WORST = 0.3  # loss of accuracy at full colour

Cells = dict[tuple[str, str], Spread]


def partitioners_by_strategy(view: WorkloadView) -> Chart | None:
    """Accuracy of the strategies that were run with several partitioners; None for fewer than two of them.

    A strategy per row; with many partitioners, a partitioner per row.
    """
    cells: Cells = {
        (series_name(group), group.partitioner_label): spread
        for group in view.candidates
        if group.partitioner_label and (spread := group.accuracy)
    }
    compared = [name for name in dict.fromkeys(name for name, _ in cells) if len(_with(cells, name)) > 1]
    partitioners = [
        label for label in view.partitioners if any((name, label) in cells for name in compared)
    ]
    if len(compared) < MIN_COMPARED:
        return None
    by_partitioner = len(partitioners) > max(MAX_COLUMNS, len(compared))
    rows, columns = (partitioners, compared) if by_partitioner else (compared, partitioners)
    row, column = ("partitioner", "series") if by_partitioner else ("series", "partitioner")
    records = [_record(cells, name, label, partitioners[0]) for name in compared for label in partitioners]
    tips = {
        "series": "strategy",
        "partitioner": "partitioner",
        "written": "test accuracy",
        "range": "over seeds",
        "change": f"against {partitioners[0]}",
    }
    return Grid(records, Side(row, rows), Side(column, columns), "loss", WORST, tips).chart(
        alt.TitleParams(
            f"Test accuracy by partitioner, {view.shape.label}",
            subtitle=f"The darker, the lower than with {partitioners[0]}",
        )
    )


def _with(cells: Cells, name: str) -> list[str]:
    return [label for strategy, label in cells if strategy == name]


def _record(cells: Cells, name: str, label: str, reference: str) -> dict[str, Any]:
    spread, best = cells.get((name, label)), cells.get((name, reference))
    loss = best.mean - spread.mean if spread and best else None
    return {
        "series": name,
        "partitioner": label,
        "accuracy": spread.mean if spread else None,
        "written": formats.percent(spread.mean if spread else None),
        "range": spread.range_of_seeds(formats.percent) if spread else "",
        "loss": max(0.0, loss or 0.0),
        "change": formats.points(-loss if loss is not None else None),
    }

"""The accuracy of each strategy with each partitioner."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import altair as alt

from orchestrator.report import formats
from orchestrator.report.figures.bars import HALF_PAGE, extent_of, fold
from orchestrator.report.figures.chart import FULL_WIDTH, Chart, chart_of, in_lines, layered
from orchestrator.report.figures.style import series_name
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.statistics.spread import Spread

MIN_COMPARED = 2  # strategies with several partitioners; fewer are compared by other figures
MAX_COLUMNS = 7  # more columns have no room for their names
WORST = 0.3  # loss of accuracy at full colour
OPACITY = 0.6  # of full colour, so that text over it stays readable
ROW, LINE = 30, 13  # pixels of a row with a name of one line, and of each further line
CHARACTER = 7  # pixels

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
    wide = len(columns) > 4
    width = (FULL_WIDTH if wide else HALF_PAGE - 20) - extent_of([*map(fold, rows)])
    drawn = _drawn(records, (row, rows), (column, columns), width).properties(
        title=alt.TitleParams(
            f"Test accuracy by partitioner, {view.shape.label}",
            subtitle=f"The darker, the lower than with {partitioners[0]}",
        )
    )
    return Chart.of(drawn, wide=wide)


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
        "range": f"{spread.range(formats.percent)}, {formats.count(spread.seeds, 'seed')}"
        if spread
        else "",
        "loss": max(0.0, loss or 0.0),
        "change": formats.points(-loss if loss is not None else None),
    }


def _drawn(
    records: Sequence[dict[str, Any]], row: tuple[str, list[str]], column: tuple[str, list[str]], width: int
) -> alt.LayerChart:
    lines = max(fold(name).count("\n") for name in row[1])
    columns = {name: _folded(name, width // len(column[1]) // CHARACTER) for name in column[1]}
    rows = {name: fold(name).split("\n") for name in row[1]}
    axis: dict[str, Any] = {"title": None, "ticks": False, "domain": False, "labelAngle": 0}
    base = chart_of(records).encode(
        x=alt.X(
            f"{column[0]}:N",
            sort=column[1],
            axis=alt.Axis(orient="top", labelExpr=in_lines(columns), **axis),
        ),
        y=alt.Y(
            f"{row[0]}:N",
            sort=row[1],
            axis=alt.Axis(labelExpr=in_lines(rows), minExtent=extent_of([*map(fold, row[1])]), **axis),
        ),
    )
    tooltip = [
        alt.Tooltip("series:N", title="strategy"),
        alt.Tooltip("partitioner:N"),
        alt.Tooltip("written:N", title="test accuracy"),
        alt.Tooltip("range:N", title="over seeds"),
        alt.Tooltip(
            "change:N", title=f"against {column[1][0] if column[0] == 'partitioner' else row[1][0]}"
        ),
    ]
    shades = base.mark_rect(color=colour("loss"), stroke=colour("paper"), strokeWidth=2).encode(
        opacity=alt.Opacity(
            "loss:Q", scale=alt.Scale(domain=[0, WORST], range=[0, OPACITY], clamp=True), legend=None
        ),
        tooltip=tooltip,
    )
    numbers = base.mark_text().encode(text="written:N", tooltip=tooltip)
    return layered(shades, numbers).properties(width=width, height=alt.Step(ROW + LINE * lines))


def _folded(name: str, characters: int) -> list[str]:
    """Lines of a name, broken at spaces and underscores where it is too long."""
    words = name.replace("_", "_ ") if len(name) > characters else name
    return [line.replace("_ ", "_") for line in wrap(words, max(characters, 8))]

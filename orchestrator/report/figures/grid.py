"""A grid of numbers whose cells are shaded: a name per row, a name per column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from orchestrator.report.figures.bars import HALF_PAGE, extent_of, fold
from orchestrator.report.figures.chart import FULL_WIDTH, Chart, chart_of, in_lines, layered
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.theme import colour

MAX_COLUMNS_IN_HALF = 4  # of a page
OPACITY = 0.6  # of full colour, so that text over it stays readable
ROW, LINE = 30, 13  # pixels of a row with a name of one line, and of each further line
CHARACTER = 7  # pixels
GAP = 10  # pixels between names


@dataclass(frozen=True)
class Side:
    """The rows or the columns. field: a field of the records. names: its values, in order."""

    field: str
    names: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A record per cell.

    records: one per cell, with its text in `written`. shade: the field that shades it, from 0 to `most`,
    which has full colour. tips: titles of the fields that a tooltip shows.
    """

    records: Sequence[Mapping[str, Any]]
    rows: Side
    columns: Side
    shade: str
    most: float
    tips: Mapping[str, str]

    def chart(self, title: alt.TitleParams) -> Chart:
        """The grid with its title; over the whole page if it has many columns."""
        wide = len(self.columns.names) > MAX_COLUMNS_IN_HALF
        names = [*map(fold, self.rows.names)]
        width = (FULL_WIDTH if wide else HALF_PAGE - 20) - extent_of(names)
        height = alt.Step(ROW + LINE * max(name.count("\n") for name in names))
        drawn = layered(self._shades(width), self._numbers(width))
        # On a narrow page the grid scrolls, since narrower columns have no room for their names.
        lines = [line for name in self._columns(width).values() for line in name]
        least = extent_of(names) + len(self.columns.names) * (CHARACTER * max(map(len, lines)) + GAP)
        meta = {"least": least}
        return Chart.of(drawn.properties(title=title, width=width, height=height, usermeta=meta), wide=wide)

    def _columns(self, width: int) -> dict[str, list[str]]:
        """The lines of each column's name."""
        characters = width // len(self.columns.names) // CHARACTER
        return {name: _folded(name, characters) for name in self.columns.names}

    def _shades(self, width: int) -> alt.Chart:
        scale = alt.Scale(domain=[0, self.most], range=[0, OPACITY], clamp=True)
        drawn: alt.Chart = self._cells(width).mark_rect(
            color=colour("loss"), stroke=colour("paper"), strokeWidth=2
        )
        return drawn.encode(opacity=alt.Opacity(f"{self.shade}:Q", scale=scale, legend=None))

    def _numbers(self, width: int) -> alt.Chart:
        drawn: alt.Chart = self._cells(width).mark_text()
        return drawn.encode(text="written:N")

    def _cells(self, width: int) -> alt.Chart:
        columns = self._columns(width)
        rows = {name: fold(name).split("\n") for name in self.rows.names}
        extent = extent_of([*map(fold, self.rows.names)])
        axis: dict[str, Any] = {"title": None, "ticks": False, "domain": False, "labelAngle": 0}
        x_axis = alt.Axis(orient="top", labelExpr=in_lines(columns), **axis)
        y_axis = alt.Axis(labelExpr=in_lines(rows), minExtent=extent, **axis)
        cells: alt.Chart = chart_of(self.records).encode(
            x=alt.X(f"{self.columns.field}:N", sort=list(self.columns.names), axis=x_axis),
            y=alt.Y(f"{self.rows.field}:N", sort=list(self.rows.names), axis=y_axis),
            tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in self.tips.items()],
        )
        return cells


def _folded(name: str, characters: int) -> list[str]:
    """Lines of a name, broken at spaces and underscores where it is too long."""
    words = name.replace("_", "_ ") if len(name) > characters else name
    return [line.replace("_ ", "_") for line in wrap(words, max(characters, 8))]

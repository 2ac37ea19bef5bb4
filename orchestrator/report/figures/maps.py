"""Cells that are shaded by a number, which is written in them: a grid, and maps beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from textwrap import wrap

from orchestrator.report.figures.bars import extent_of, fold
from orchestrator.report.figures.chart import CHARACTER, HALF_PAGE, PAGE, Chart
from orchestrator.report.figures.spec import Record, Spec, channel, data, in_lines, layer
from orchestrator.report.figures.theme import colour

OPACITY = 0.55  # of a numbered cell with the largest number, so that text over it stays readable
MAX_COLUMNS = 3  # more maps in a row are too small to read
WIDTHS = {1: 420, 2: 445, 3: 280}  # pixels of a map, by the number of maps in a row
GAP = 50  # pixels between maps
ROW, MOST_HEIGHT, LEAST_NUMBERED = 22, 400, 13  # pixels of a row, of a map, of a row with numbers
DIGIT, FONT_SIZE = 7, 11  # pixels of a digit, and of its font
MOST_TICKS = 20
MAX_COLUMNS_IN_HALF = 4  # of a grid in half of the page
GRID_ROW, LINE = 30, 13  # pixels of a row with a name of one line, and of each further line
NAMES_GAP = 10  # pixels between names


@dataclass(frozen=True)
class Map:
    """Cells by row and column.

    Attributes:
        records: one per cell, with the fields `row`, `column`, `amount`, which shades it, and `written`. A
            cell without an amount has none to show.
        rows, columns: the values of these fields in order, and their titles.
        most: the amount of full colour.
        token: the colour.
        tips: the fields that a cell shows under the pointer, with their titles.
        palest: opacity of the smallest amount.
        title, notes: above a map that is one of several.
    """

    records: Sequence[Record]
    rows: Sequence[str]
    columns: Sequence[str]
    most: float
    token: str
    tips: Mapping[str, str]
    titles: tuple[str, str] = ("", "")
    palest: float = 0.0
    title: str = ""
    notes: Sequence[str] = ()

    def cells(self, x: Spec, y: Spec, size: Spec, numbered: bool = True) -> Spec:
        """Its cells. x, y: how columns and rows are placed. numbered: whether numbers fit."""
        at: Spec = {"x": channel("column:N", **x), "y": channel("row:N", **y)}
        shades = [self.palest, OPACITY if numbered else 1]
        scale = {"domain": [0, self.most], "range": shades, "clamp": True}
        legend = {"title": None, "orient": "top", "symbolFillColor": colour(self.token)}
        opacity = channel("amount:Q", scale=scale, legend=None if numbered else legend)
        edge = {"stroke": colour("paper"), "strokeWidth": 1 if numbered else 0.3}
        style = {"color": colour(self.token), **edge}
        none = layer("rect", {"color": colour("shade")}, where="datum.amount === null", **at)
        some = layer("rect", style, where="datum.amount !== null", tips=self.tips, opacity=opacity, **at)
        text = layer("text", {"fontSize": FONT_SIZE}, text="written:N", **at)
        return {**data(self.records), "layer": [none, some, *([text] if numbered else [])], **size}


def grid(cells: Map, title: str, subtitle: str) -> Chart:
    """A name per row and per column; over the whole page if there are many columns."""
    wide = len(cells.columns) > MAX_COLUMNS_IN_HALF
    rows = {name: fold(name).split("\n") for name in cells.rows}
    extent = extent_of([*map(fold, cells.rows)])
    width = (PAGE - 240 if wide else HALF_PAGE - 30) - extent
    letters = width // len(cells.columns) // CHARACTER
    columns = {name: _folded(name, letters) for name in cells.columns}
    # On a narrow page the grid scrolls, since narrower columns have no room for their names.
    longest = max(len(line) for lines in columns.values() for line in lines)
    least = extent + len(columns) * (CHARACTER * longest + NAMES_GAP)
    axis = {"title": None, "ticks": False, "domain": False, "labelAngle": 0}
    x = {"axis": {"orient": "top", "labelExpr": in_lines(columns), **axis}, "sort": list(columns)}
    y = {"axis": {"labelExpr": in_lines(rows), "minExtent": extent, **axis}, "sort": list(rows)}
    height = GRID_ROW + LINE * (max(map(len, rows.values())) - 1)
    size = {"width": width, "height": {"step": height}, "usermeta": {"least": least}}
    return Chart.of(cells.cells(x, y, size), title, subtitle, wide=wide)


def _folded(name: str, characters: int) -> list[str]:
    """Lines of a name, broken at spaces and underscores where it is too long."""
    words = name.replace("_", "_ ") if len(name) > characters else name
    return [line.replace("_ ", "_") for line in wrap(words, max(characters, 8))]


def maps(shown: Sequence[Map], across: int, title: str, subtitle: str = "") -> Chart:
    """Maps in rows of at most `across`."""
    across = ceil(len(shown) / ceil(len(shown) / min(across, MAX_COLUMNS)))
    panels = [_panel(each, WIDTHS[across]) for each in shown]
    scales = {"scale": {"opacity": "shared" if len({each.most for each in shown}) == 1 else "independent"}}
    view = {"concat": panels, "columns": across, "spacing": {"row": 24, "column": GAP}, "resolve": scales}
    return Chart.of(view, title, subtitle, wide=across > 1)


def _panel(shown: Map, width: int) -> Spec:
    """A map below its title and notes."""
    height = min(ROW * len(shown.rows), MOST_HEIGHT)
    digits = max(len(str(record["written"])) for record in shown.records)
    fit = len(shown.columns) * (digits * DIGIT + 3) <= width
    numbered = fit and len(shown.rows) * LEAST_NUMBERED <= height
    axis = {"ticks": False, "domain": False, "labelAngle": 0, "labelFontSize": 11}
    y, x = (
        {
            "axis": {"title": title, "values": list(names[:: ceil(len(names) / MOST_TICKS)]), **axis},
            "scale": {"domain": list(names)},  # also those without a cell
        }
        for title, names in zip(shown.titles, (shown.rows, shown.columns), strict=True)
    )
    head = {"text": wrap(shown.title, width // CHARACTER), "subtitle": list(shown.notes)}
    return {
        "title": {**head, "fontWeight": "normal"},
        **shown.cells(x, y, {"width": width, "height": height}, numbered),
    }

"""Lines with their names at the right, or small multiples where these would be too many.

Names replace a legend: a reader finds a line's name without comparing colours. Names that would overlap are
spread vertically. Vega computes their places from the scale, so that they follow a logarithmic axis and the
series that the reader hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from orchestrator.report.figures.axes import Axis
from orchestrator.report.figures.bars import CHARACTER
from orchestrator.report.figures.chart import (
    HALF_PAGE,
    PADDING,
    PAGE,
    Chart,
    chart_of,
    data_of,
    panel_header,
)
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.groups import Group

MOST_TOGETHER = 8  # lines in one plot; more are drawn as small multiples
HEIGHT = 280
AXIS_WIDTH = 85  # pixels of the tick labels and the title on the left
LETTER = 7  # mean width of a letter in pixels, in the widest of the fonts
ROW, GAP = 14, 4  # pixels of a line of text, and between names of several lines
LONGEST = 26  # letters of a name in one line
COLUMNS = 4
PANEL_HEIGHT = 130
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Lines:
    """The lines of a figure.

    records: one per point, ordered along the lines, with the fields `series`, `line` (its identity), `name`
    (the text at its end), `partitioner`, `mean`, `low`, `high`, `written` (the mean as text), and the field
    of the x axis. groups: those drawn. tooltip: what a point shows under the pointer. behind: layers that
    are drawn first, in each panel. remarks: their texts, for which small multiples have no room. band:
    whether the ranges of a line's points are joined. most_together: lines in one plot; it has the width of
    the page if there are more than in others.
    """

    title: str
    records: Sequence[Record]
    groups: Sequence[Group]
    style: Style
    x: Axis
    y: Axis
    tooltip: Sequence[alt.Tooltip]
    behind: Sequence[alt.Chart] = ()
    remarks: Sequence[alt.Chart] = ()
    log_axis: Literal["x", "y"] | None = None
    subtitle: Sequence[str] = ()
    band: bool = True
    most_together: int = MOST_TOGETHER

    @property
    def _number(self) -> int:
        """The number of lines."""
        return len({record["line"] for record in self.records})

    @property
    def _many(self) -> bool:
        """Whether there are too many lines for half of a page."""
        return self._number > MOST_TOGETHER

    @property
    def _together(self) -> bool:
        return self._number <= self.most_together

    def chart(self) -> Chart:
        """All lines in one plot, or a panel per series."""
        drawn = self._one_plot() if self._together else self._panels()
        axis = {"x": self.x, "y": self.y}.get(self.log_axis or "")
        title = alt.TitleParams(self.title, subtitle=list(self.subtitle))
        meta = {"usermeta": {"domains": axis.domains}} if axis and axis.switch else {}
        return Chart.of(
            drawn.properties(title=title, padding=PADDING, **meta),
            wide=self._many,
            log_axis=self.log_axis if meta else None,
        )

    def _one_plot(self) -> alt.TopLevelMixin:
        records = self._prepared()
        names = [line for record in records for line in record["name"].split("\n")]
        width = (PAGE if self._many else HALF_PAGE) - AXIS_WIDTH - 26 - LETTER * max(map(len, names))
        base = alt.Chart()
        behind = [*self.behind, *self.remarks]
        layers = [*behind, *self._lines(base), *self._clipped(base), *self._names(base, records)]
        data = data_of(records)
        height = max(HEIGHT, ROW * (self._number + 4))
        return alt.layer(*layers, data=data).properties(width=round(width), height=height)

    def _panels(self) -> alt.TopLevelMixin:
        """A panel per series: its lines in front of those of all others in grey.

        The serial run has none if it is a single point: its line is behind all panels.
        """
        records = self._prepared()
        points = Counter(record["series"] for record in records)
        single = {
            record["series"] for record in records if record["serial"] and points[record["series"]] == 1
        }
        order = [name for name in self.style.order(self.groups) if name not in single]
        columns = min(COLUMNS, len(order))
        others = chart_of(_apart(records, self.x.field)).mark_line(
            strokeWidth=1, opacity=0.7, color=colour("data"), clip=True, aria=False
        )
        behind = [*self.behind, others.encode(x=self.x.x, y=self.y.y, order="at:Q")]
        base = alt.Chart()
        layers = [*behind, *self._lines(base), *self._clipped(base)]
        width = round((PAGE - AXIS_WIDTH) / columns) - 20
        data = data_of([record for record in records if record["series"] not in single])
        panel = alt.layer(*layers, data=data).properties(width=width, height=PANEL_HEIGHT)
        titles = {name: wrap(name, width // CHARACTER) for name in order}
        facet = alt.Facet("series:N", sort=order, title=None, header=panel_header(titles))
        return panel.facet(facet=facet, columns=columns)

    def _prepared(self) -> list[dict[str, Any]]:
        """The records, with the ends of lines and the points outside the axes marked."""
        order = self.style.order(self.groups)
        last = {record["line"]: at for at, record in enumerate(self.records)}
        many = self._many
        return [
            {
                **record,
                "name": record["name"] if many else folded(record["name"]),
                "order": order.index(record["series"]),
                "last": last[record["line"]] == at,
                "outside": self.y.outside(record["mean"]),
            }
            for at, record in enumerate(self.records)
        ]

    def _lines(self, base: alt.Chart) -> list[alt.Chart]:
        """Bands over the range of seeds, lines, and points."""
        x, y = self.x.x, self.y.y
        look = alt.Color("series:N", scale=self.style.colours(self.groups), legend=None)
        shape = alt.Shape("series:N", scale=self.style.shapes(self.groups), legend=None)
        dash = alt.StrokeDash(
            "partitioner:N", scale=self.style.dash_patterns(self.groups), legend=self._dash_legend()
        )
        low = alt.Y("low:Q", scale=self.y.scale)
        spread = base.encode(x=x, y=low, y2="high:Q", color=look, detail="line:N")
        drawn = base.encode(x=x, y=y, color=look, detail="line:N")
        points = drawn.transform_filter("datum.outside == 0").mark_point(
            filled=True, size=64, opacity=0.95, stroke=colour("paper"), strokeWidth=1
        )
        band = [spread.mark_area(opacity=0.13, clip=True, aria=False)] if self.band else []
        return [
            *band,
            spread.mark_rule(opacity=0.6, clip=True, aria=False),
            drawn.encode(strokeDash=dash).mark_line(strokeWidth=2, clip=True, aria=False),
            points.encode(shape=shape, tooltip=list(self.tooltip)),
        ]

    def _dash_legend(self) -> alt.Legend | None:
        """Which line style is which partitioner, in small multiples; elsewhere names at lines do."""
        labels = {group.partitioner_label for group in self.groups if group.partitioner_label}
        if self._together or len(labels) < 2:
            return None
        return alt.Legend(title=None, orient="top", values=sorted(labels), symbolStrokeColor=colour("ink"))

    def _clipped(self, base: alt.Chart) -> list[alt.Chart]:
        """An arrow at the edge and the value, for each point outside the axis."""
        look = alt.Color("series:N", scale=self.style.colours(self.groups), legend=None)
        layers = []
        for side, shape, edge in ((-1, "triangle-down", "height - 6"), (1, "triangle-up", "6")):
            outside = base.transform_filter(f"datum.outside == {side}").encode(
                x=self.x.x, y=alt.value({"expr": edge}), color=look, tooltip=list(self.tooltip)
            )
            if any(self.y.outside(record["mean"]) == side for record in self.records):
                layers += [
                    outside.mark_point(shape=shape, filled=True, size=90, opacity=1),
                    outside.mark_text(align="right", dx=-9).encode(text="written:N"),
                ]
        return layers

    def _names(self, base: alt.Chart, records: Sequence[Record]) -> list[alt.Chart]:
        """The names of lines at the right, with a leader to the end of each."""
        look = alt.Color("series:N", scale=self.style.colours(self.groups), legend=None)
        lines = 1 + max(record["name"].count("\n") for record in records)
        row = ROW * lines + (GAP if lines > 1 else 0)
        placed = spread_names(base.transform_filter("datum.last"), row)
        ends = placed.encode(color=look, detail="line:N")
        pixel: dict[str, Any] = {"type": "quantitative", "scale": None}
        edge = alt.Y("at", axis=None, **pixel)
        across = (
            ends.transform_filter("!datum.serial")
            .mark_rule(strokeDash=[1, 3], opacity=0.7, aria=False)
            .encode(x=self.x.x, x2=alt.value("width"), y=edge)
        )
        to_name = ends.mark_rule(opacity=0.7, aria=False).encode(
            x=alt.value({"expr": "width + 2"}),
            x2=alt.value({"expr": "width + 14"}),
            y=edge,
            y2=alt.Y2("place"),
        )
        text = placed.mark_text(align="left", baseline="middle", lineBreak="\n", lineHeight=ROW).encode(
            x=alt.value({"expr": "width + 18"}),
            y=alt.Y("place", axis=None, **pixel),
            text="name:N",
            tooltip=list(self.tooltip),
        )
        return [across, to_name, text]


def _apart(records: Sequence[Record], x: str) -> list[dict[str, Any]]:
    """The points of all lines, to draw as one mark: a point without a value ends each line.

    A mark for each line in each panel takes a second to draw.

    Args:
        x: the field of the x axis.
    """
    points: list[dict[str, Any]] = []
    for record in records:
        ends = [record, {**record, "mean": None}] if record["last"] else [record]
        points += [{"series": end["series"], x: end[x], "mean": end["mean"]} for end in ends]
    return [{**point, "at": at} for at, point in enumerate(points)]


def spread_names(ends: alt.Chart, row: int) -> alt.Chart:
    """The ends of lines with `at`, their height in pixels, and `place`, that of their names.

    Names stay as near to their lines as `row` pixels between each two allow. Pushing all names down until
    none overlaps gives one solution, pushing them up another; their mean keeps clusters centred.
    """
    by_height: list[alt.SortField | dict[str, str]] = [alt.SortField("at"), alt.SortField("order")]
    return (
        ends.transform_calculate(at="clamp(scale('y', datum.mean), 0, height)")
        .transform_window(rank="row_number()", sort=by_height)
        .transform_joinaggregate(names="count()")
        .transform_calculate(free=f"datum.at - {row} * datum.rank")
        .transform_window(down="max(free)", sort=[alt.SortField("rank")], frame=[None, 0])
        .transform_window(up="min(free)", sort=[alt.SortField("rank")], frame=[0, None])
        .transform_calculate(centred=f"(datum.down + datum.up) / 2 + {row} * datum.rank")
        .transform_calculate(below=f"max(datum.centred, {row} * (datum.rank - 1))")
        .transform_calculate(place=f"min(datum.below, height - {row} * (datum.names - datum.rank))")
    )


def folded(name: str) -> str:
    """The name in at most two lines."""
    if len(name) <= LONGEST:
        return name
    words = name.split(" ")
    breaks = range(1, len(words))
    at = min(breaks, key=lambda at: abs(len(" ".join(words[:at])) - len(" ".join(words[at:]))), default=1)
    return "\n".join(filter(None, (" ".join(words[:at]), " ".join(words[at:]))))

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
from orchestrator.report.figures.chart import CHARACTER, HALF_PAGE, PADDING, PAGE, Chart
from orchestrator.report.figures.kind import Point
from orchestrator.report.figures.spec import Record, Spec, channel, data, facet, layer
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour

MOST_TOGETHER = 8  # lines in one plot; more are drawn as small multiples
HEIGHT, PANEL_HEIGHT = 280, 130
AXIS_WIDTH = 85  # pixels of the tick labels and the title on the left
ROW, GAP = 14, 4  # pixels of a line of text, and between names of several lines
LONGEST = 26  # letters of a name in one line
COLUMNS = 4


@dataclass(frozen=True)
class Lines:
    """The lines of a figure.

    records: the points of `Subject.point`, in order along each line, with the field of the x axis. tips:
    fields that a point shows under the pointer, with their titles. behind: layers that are drawn first, in
    each panel. remarks: their texts, for which small multiples have no room. log_axis: see Chart. band:
    whether the intervals of a line's points are joined. most_together: lines in one plot; it has the width
    of the page if there are more than in others.
    """

    title: str
    records: Sequence[Point]
    style: Style
    x: Axis
    y: Axis
    tips: Mapping[str, str]
    behind: Sequence[Spec] = ()
    remarks: Sequence[Spec] = ()
    log_axis: Literal["x", "y"] = "y"
    subtitle: Sequence[str] = ()
    band: bool = True
    most_together: int = MOST_TOGETHER

    def chart(self) -> Chart:
        """All lines in one plot, or a panel per series."""
        number = len({_line(record) for record in self.records})
        records = self._prepared(number > MOST_TOGETHER)
        together = number <= self.most_together
        drawn = self._one_plot(records, number) if together else self._panels(records)
        return Chart.of(
            {**drawn, "padding": PADDING},
            self.title,
            list(self.subtitle),
            wide=number > MOST_TOGETHER,
            log_axis=self.log_axis,
            axis={"x": self.x, "y": self.y}[self.log_axis],
        )

    def _prepared(self, many: bool) -> list[Point]:
        """The records in the order of all figures, with names, ends of lines, and points outside the axes.

        Names leave out the first partitioner, which most lines share.
        """
        order = self.style.order(record["series"] for record in self.records)
        records = sorted(
            self.records, key=lambda record: (order.index(record["series"]), record["partitioner"])
        )
        usual = next((record["partitioner"] for record in self.records if record["partitioner"]), "")
        last = {_line(record): at for at, record in enumerate(records)}
        prepared = []
        for at, record in enumerate(records):
            other = record["partitioner"] if record["partitioner"] != usual else ""
            dropped = "dropped" if record["dropped"] else ""
            name = ", ".join(filter(None, [record["series"], other, dropped]))
            prepared.append(
                {
                    **record,
                    "line": _line(record),
                    "name": name if many else folded(name),
                    "order": order.index(record["series"]),
                    "last": last[_line(record)] == at,
                    "outside": self.y.outside(record["mean"]),
                }
            )
        return prepared

    def _one_plot(self, records: Sequence[Point], number: int) -> Spec:
        letters = max(len(line) for record in records for line in record["name"].split("\n"))
        width = (PAGE if number > MOST_TOGETHER else HALF_PAGE) - AXIS_WIDTH - 26 - CHARACTER * letters
        layers = [*self.behind, *self.remarks, *self._lines(records), *self._names(records)]
        height = max(HEIGHT, ROW * (number + 4))
        return {"layer": layers, **data(records), "width": width, "height": height}

    def _panels(self, records: Sequence[Point]) -> Spec:
        """A panel per series: its lines in front of those of all others in grey.

        The serial run has none if it is a single point: its line is behind all panels.
        """
        points = Counter(record["series"] for record in records)
        shown = [record for record in records if not (record["serial"] and points[record["series"]] == 1)]
        order = self.style.order(record["series"] for record in shown)
        columns = min(COLUMNS, len(order))
        width = round((PAGE - AXIS_WIDTH) / columns) - 20
        others = layer(
            "line",
            {"strokeWidth": 1, "opacity": 0.7, "color": colour("data"), "clip": True},
            records=_apart(records, self.x.field),
            x=self.x.channel,
            y=self.y.channel,
            order="at:Q",
        )
        layers = [*self.behind, others, *self._lines(shown, legend=True)]
        return {
            "facet": facet({name: wrap(name, width // CHARACTER) for name in order}),
            "columns": columns,
            **data(shown),
            "spec": {"layer": layers, "width": width, "height": PANEL_HEIGHT},
        }

    def _lines(self, records: Sequence[Point], legend: bool = False) -> list[Spec]:
        """Intervals, lines, and points: hollow where a configuration was dropped, arrows outside the axis.

        legend: whether it says which line style is which partitioner; elsewhere names at lines do.
        """
        x, y, names = self.x.channel, self.y.channel, [record["series"] for record in records]
        color = self.style.looks(names)["color"]
        line: Spec = {"x": x, "color": color, "detail": channel("line:N")}
        bounds: Spec = {**line, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
        dash = self.style.dashes([record["partitioner"] for record in records], legend)
        area = [layer("area", {"opacity": 0.13, "clip": True}, **bounds)] if self.band else []
        found = [
            *area,
            layer("rule", {"opacity": 0.6, "clip": True}, **bounds),
            layer("line", {"strokeWidth": 2, "clip": True}, y=y, strokeDash=dash, **line),
            dots_at(self.style, names, self.tips, x=x, y=y),
        ]
        value = {"align": "right", "dx": -9}
        for side, mark, edge in ((-1, "triangle-down", "height - 6"), (1, "triangle-up", "6")):
            if any(record["outside"] == side for record in records):
                where = f"datum.outside === {side}"
                at: Spec = {"where": where, "x": x, "y": {"value": {"expr": edge}}, "color": color}
                arrow = {"shape": mark, "filled": True, "size": 90}
                found.append(layer("point", arrow, tips=self.tips, **at))
                found.append(layer("text", value, text="written:N", **at))
        return found

    def _names(self, records: Sequence[Point]) -> list[Spec]:
        """The names of lines at the right, with a leader to the end of each."""
        color = self.style.looks(record["series"] for record in records)["color"]
        lines = 1 + max(record["name"].count("\n") for record in records)
        place = {"transform": spread_names(ROW * lines + (GAP if lines > 1 else 0))}
        leader: Spec = {"color": color, "detail": channel("line:N")}
        edge, right = channel("at:Q", scale=None, axis=None), {"value": "width"}
        beside, end, start = ({"value": {"expr": f"width + {pixels}"}} for pixels in (2, 14, 18))
        dotted = {"strokeDash": [1, 3], "opacity": 0.7}
        across = layer("rule", dotted, x=self.x.channel, x2=right, y=edge, **leader)
        to_name = layer("rule", {"opacity": 0.7}, x=beside, x2=end, y=edge, y2={"field": "place"}, **leader)
        style = {"align": "left", "baseline": "middle", "lineBreak": "\n", "lineHeight": ROW}
        text = layer("text", style, x=start, y={**edge, "field": "place"}, text="name:N", tips=self.tips)
        serial = [*place["transform"], {"filter": "!datum.serial"}]
        return [{**across, "transform": serial}, {**to_name, **place}, {**text, **place}]


def dots_at(style: Style, names: Sequence[str], tips: Mapping[str, str], **at: Any) -> Spec:
    """The points on the axes; those of configurations that were dropped are hollow."""
    looks, paper = style.looks(names), {"value": colour("paper")}
    at["fill"] = {**looks["color"], "condition": {"test": "datum.dropped", **paper}}
    at["stroke"] = {**looks["color"], "condition": {"test": "!datum.dropped", **paper}}
    mark = {"size": 64, "strokeWidth": 1.2, "opacity": 1}
    return layer("point", mark, where="datum.outside === 0", tips=tips, shape=looks["shape"], **at)


def _line(record: Record) -> str:
    """The identity of a line."""
    return f"{record['series']}, {record['partitioner']}"


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


def spread_names(row: int) -> list[Spec]:
    """Transforms to the ends of lines with `at`, their height in pixels, and `place`, that of their names.

    Names stay as near to their lines as `row` pixels between each two allow. Pushing all names down until
    none overlaps gives one solution, pushing them up another; their mean keeps clusters centred.
    """

    by_rank = [{"field": "rank"}]
    return [
        {"filter": "datum.last"},
        {"calculate": "clamp(scale('y', datum.mean), 0, height)", "as": "at"},
        {"window": [{"op": "row_number", "as": "rank"}], "sort": [{"field": "at"}, {"field": "order"}]},
        {"joinaggregate": [{"op": "count", "as": "names"}]},
        {"calculate": f"datum.at - {row} * datum.rank", "as": "free"},
        {"window": [{"op": "max", "field": "free", "as": "down"}], "sort": by_rank, "frame": [None, 0]},
        {"window": [{"op": "min", "field": "free", "as": "up"}], "sort": by_rank, "frame": [0, None]},
        {"calculate": f"(datum.down + datum.up) / 2 + {row} * datum.rank", "as": "centred"},
        {"calculate": f"max(datum.centred, {row} * (datum.rank - 1))", "as": "below"},
        {"calculate": f"min(datum.below, height - {row} * (datum.names - datum.rank))", "as": "place"},
    ]


def folded(name: str) -> str:
    """The name in at most two lines."""
    if len(name) <= LONGEST:
        return name
    words = name.split(" ")
    breaks = range(1, len(words))
    at = min(breaks, key=lambda at: abs(len(" ".join(words[:at])) - len(" ".join(words[at:]))), default=1)
    return "\n".join(filter(None, (" ".join(words[:at]), " ".join(words[at:]))))

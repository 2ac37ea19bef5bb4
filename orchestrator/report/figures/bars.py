"""Stacked bars: training time by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import fill

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart, chart_of, in_lines, layered
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.theme import colour
from orchestrator.report.formats import JOIN
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import Spread

# In the order in which bars stack them, which is also that of the legend.
PHASES = ("data", "compute", "communicate", "wait", "cpu_contention", "checkpoint", "other")
BAR = 26  # pixels from one bar to the next
LINE = 12  # pixels of a further line of a bar's name
CHARACTER = 7  # pixels of a character of a name, in most fonts
LONGEST = 32  # characters of a name in one line
FAR_LONGER = 3
HALF_PAGE = 570  # pixels of the plot and the names beside it
ROOM = 1.3  # end of the axis / longest bar, for the text beside it


@dataclass(frozen=True)
class Bar:
    """A stacked bar.

    amounts: the length of each part. text: the text beside the bar. series: its series, which the page can
    hide.
    """

    series: str
    name: str
    amounts: Mapping[str, float]
    text: str

    @property
    def total(self) -> float:
        return sum(self.amounts.values())


def time_by_phase(groups: Sequence[Group], shape: ClusterShape) -> Chart | None:
    """Stacked bars, serial first, then by time; None if no run measured its phases."""
    shown = [(group, phases(group)) for group in groups if group.serial or group.shape == shape]
    shown = [(group, seconds) for group, seconds in shown if sum(seconds.values()) > 0]
    longest = max((sum(seconds.values()) for group, seconds in shown if not group.serial), default=0.0)
    if longest:  # a far longer serial bar would leave no room for the others' phases
        shown = [item for item in shown if sum(item[1].values()) <= FAR_LONGER * longest]
    if all(group.serial for group, _ in shown):  # whose time is that of one phase
        return None
    shown.sort(key=lambda item: (not item[0].serial, sum(item[1].values())))
    names = bar_names([group for group, _ in shown])
    bars = [
        Bar(group.series, name, seconds, _beside(group))
        for (group, seconds), name in zip(shown, names, strict=True)
    ]
    clock = shown[0][0].first.clock
    title = alt.TitleParams(
        f"{clock.capitalize()} time by phase, {shape.label}",
        subtitle="Beside each bar: training time, geometric mean, and the share of communicate and wait",
    )
    axis = alt.Axis(
        title=f"{clock} time, s: mean over ranks and seeds", tickCount=5, grid=True, labelFlush=False
    )
    return Chart.of(stacked_bars(bars, phase_scale(_found(bars)), axis, formats.seconds, title))


def _found(bars: Sequence[Bar]) -> list[str]:
    return [part for bar in bars for part, amount in bar.amounts.items() if amount > 0]


def _beside(group: Group) -> str:
    """`0.486 s, 35%`: the training time, as everywhere in the report, and the share of exchanges."""
    share = None if group.serial else Q.exchange_share.over(group)
    time = Q.train_s.over(group)
    return ", ".join(
        filter(None, [formats.seconds(time.mean) if time else "", f"{share.mean:.0%}" if share else ""])
    )


def phases(group: Group) -> dict[str, float]:
    """Mean seconds per phase over ranks and seeds, without evaluation.

    Phases add up to the geometric mean of their sums, as times average everywhere in the report.
    """
    rows = [row.seconds for row in group.ok_rows if row.seconds]
    names = dict.fromkeys(phase for seconds in rows for phase in seconds if phase != "evaluate")
    means = {phase: fmean(seconds.get(phase, 0.0) for seconds in rows) for phase in names}
    whole = Spread.of((sum(seconds.get(phase, 0.0) for phase in names) for seconds in rows), geometric=True)
    scale = whole.mean / sum(means.values()) if whole and sum(means.values()) else 1.0
    return {phase: scale * seconds for phase, seconds in means.items()}


def phase_scale(found: Sequence[str]) -> alt.Scale:
    """The colours of the phases that occur, in the order of all figures. Others are drawn as `other`."""
    known = [phase for phase in PHASES if phase in found]
    unknown = sorted(set(found) - set(PHASES))
    tokens = [*(colour(phase) for phase in known), *[colour("other")] * len(unknown)]
    return alt.Scale(domain=[*known, *unknown], range=tokens)


def top_legend() -> alt.Legend:
    """A legend in one line above the plot, in the order of the stack."""
    return alt.Legend(title=None, orient="top", symbolType="square", offset=4, columnPadding=14)


def stacked_bars(
    bars: Sequence[Bar],
    scale: alt.Scale,
    axis: alt.Axis,
    write: Callable[[float], str],
    title: alt.TitleParams,
) -> alt.LayerChart:
    """Bars from top to bottom. scale: the parts to draw and their colours, in the order of the stack."""
    parts = list(scale.domain)
    records = [
        {
            "series": bar.series,
            "name": bar.name,
            "part": part,
            "order": at,
            "amount": bar.amounts[part],
            "written": write(bar.amounts[part]),
            "share": bar.amounts[part] / bar.total,
        }
        for bar in bars
        for at, part in enumerate(parts)
        if bar.amounts.get(part, 0.0) > 0
    ]
    texts = [{"series": bar.series, "name": bar.name, "end": bar.total, "text": bar.text} for bar in bars]
    names = [bar.name for bar in bars]
    y = name_axis(names)
    x_scale = alt.Scale(domain=[0, ROOM * max(bar.total for bar in bars)], nice=False)
    drawn = (
        chart_of(records)
        .mark_bar(height={"band": 0.68}, stroke=colour("paper"), strokeWidth=0.6)
        .encode(
            y=y,
            x=alt.X("amount:Q", stack="zero", axis=axis, scale=x_scale),
            color=alt.Color("part:N", scale=scale, legend=top_legend()),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("name:N", title="strategy"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("written:N", title="amount"),
                alt.Tooltip("share:Q", title="share", format=".1%"),
            ],
        )
    )
    beside = (
        chart_of(texts)
        .mark_text(align="left", dx=5, fontSize=11)
        .encode(y=y, x=alt.X("end:Q"), text="text:N")
    )
    return layered(drawn, beside).properties(
        title=title, width=width_beside(names), height=alt.Step(step_of(names))
    )


def name_axis(names: Sequence[str]) -> alt.Y:
    """Names of rows from top to bottom. A line break in a name starts a new line."""
    return alt.Y(
        "name:N",
        sort=list(names),
        title=None,
        axis=alt.Axis(
            labelExpr=in_lines({name: name.split("\n") for name in names}),
            labelLineHeight=13,
            labelPadding=6,
            # The first of two lines stands above the middle of the bar.
            labelBaseline={
                "condition": {"test": "indexof(datum.value, '\\n') >= 0", "value": "bottom"},
                "value": "middle",
            },
            minExtent=extent_of(names),  # a reader's font may be wider than the one that measures
            ticks=False,
        ),
    )


def width_beside(names: Sequence[str]) -> int:
    """Pixels of a plot beside these names, in half of the page."""
    return HALF_PAGE - extent_of(names)


def extent_of(names: Sequence[str]) -> int:
    """Pixels of the longest line of these names."""
    return CHARACTER * max(len(line) for name in names for line in name.split("\n"))


def step_of(names: Sequence[str]) -> int:
    """Pixels from one row to the next, with room for the longest of these names."""
    return BAR + LINE * max(name.count("\n") for name in names)


def bar_names(groups: Sequence[Group]) -> list[str]:
    """Names of bars, with the partitioner if the names would otherwise be equal."""
    short = [group.first.series for group in groups]
    return [
        f"{fold(name)}\n{group.partitioner_label}" if short.count(name) > 1 else fold(name)
        for name, group in zip(short, groups, strict=True)
    ]


def fold(name: str) -> str:
    """A name, wrapped to leave room for the bars."""
    if len(name) <= LONGEST:
        return name
    joined = name.replace(" · ", f" ·{JOIN}")
    return fill(joined, LONGEST, break_long_words=False, break_on_hyphens=False)

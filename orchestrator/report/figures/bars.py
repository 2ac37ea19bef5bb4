"""Stacked bars of parts, with a text beside each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

from orchestrator.report.figures.chart import CHARACTER, HALF_PAGE, Chart
from orchestrator.report.figures.spec import TOP_LEGEND, Spec, channel, in_lines, layer
from orchestrator.report.figures.theme import TOKENS, colour
from orchestrator.report.formats import JOIN
from orchestrator.report.model.groups import Group

# In the order in which bars stack them, which is also that of the legend.
PHASES = ("data", "compute", "communicate", "wait", "cpu_contention", "checkpoint", "other")
BAR = 26  # pixels from one bar to the next
LINE = 12  # pixels of a further line of a bar's name
LONGEST = 32  # characters of a name in one line
ROOM = 1.3  # end of the axis / longest bar, for the text beside it
PALE = 0.4  # opacity of a configuration that was dropped


@dataclass(frozen=True)
class Bar:
    """A stacked bar of a group. amounts: the length of each part. text: the text beside the bar."""

    group: Group
    amounts: Mapping[str, float]
    text: str

    @property
    def total(self) -> float:
        return sum(self.amounts.values())


class Stack(NamedTuple):
    """A stacked bar with a name. series: what a reader can hide, if not empty. shade: its opacity."""

    name: str
    amounts: Mapping[str, float]
    text: str
    series: str = ""
    shade: float = 1

    @property
    def total(self) -> float:
        return sum(self.amounts.values())


def of_groups(bars: Sequence[Bar]) -> list[Stack]:
    """Bars of groups each with a name of its own."""
    names = _bar_names([bar.group for bar in bars])
    return [
        Stack(name, bar.amounts, bar.text, bar.group.series, PALE if bar.group.dropped else 1)
        for bar, name in zip(bars, names, strict=True)
    ]


def stacked_bars(
    bars: Sequence[Stack],
    parts: Spec,
    axis: Mapping[str, Any],
    write: Callable[[float], str],
    title: str,
    subtitle: str = "",
) -> Chart:
    """Bars from top to bottom. parts: the scale of their parts, in the order of the stack."""
    names, records, texts = [bar.name for bar in bars], [], []
    for bar in bars:
        base = {"name": bar.name, "shade": bar.shade} | ({"series": bar.series} if bar.series else {})
        texts.append({**base, "end": bar.total, "text": bar.text})
        records += [
            {
                **base,
                "part": part,
                "order": at,
                "amount": amount,
                "written": write(amount),
                "share": f"{amount / bar.total:.1%}",
            }
            for at, part in enumerate(parts["domain"])
            if (amount := bar.amounts.get(part, 0.0)) > 0
        ]
    y = name_axis(names)
    scale = {"domain": [0, ROOM * max(bar.total for bar in bars)], "nice": False}
    shown = {"tickCount": 5, "grid": True, "labelFlush": False, **axis}
    drawn = layer(
        "bar",
        {"height": {"band": 0.68}, "stroke": colour("paper"), "strokeWidth": 0.6},
        records=records,
        tips={"name": "strategy", "part": "part", "written": "amount", "share": "share"},
        y=y,
        x=channel("amount:Q", stack="zero", axis=shown, scale=scale),
        color=channel("part:N", scale=parts, legend=TOP_LEGEND),
        opacity=channel("shade:Q", scale=None, legend=None),
        order="order:Q",
    )
    style = {"align": "left", "dx": 5, "fontSize": 11}
    beside = layer("text", style, records=texts, y=y, x="end:Q", text="text:N")
    size = {"width": HALF_PAGE - 10 - extent_of(names), "height": {"step": step_of(names)}}
    return Chart.of({"layer": [drawn, beside], **size}, title, subtitle)


def part_scale(found: Sequence[str], known: Sequence[str] = PHASES) -> Spec:
    """The colours of the parts that occur, in the order of all figures. Others are drawn as `other`."""
    parts = [*(part for part in known if part in found), *sorted({*found} - {*known})]
    return {"domain": parts, "range": [colour(part if part in TOKENS else "other") for part in parts]}


def name_axis(names: Sequence[str], labelled: bool = True) -> Spec:
    """Names of rows from top to bottom. A line break in a name starts a new line."""
    axis = {
        "labelExpr": in_lines({name: name.split("\n") for name in names}),
        "labelLineHeight": 13,
        "labelPadding": 6,
        # The first of two lines stands above the middle of the bar.
        "labelBaseline": {
            "condition": {"test": "indexof(datum.value, '\\n') >= 0", "value": "bottom"},
            "value": "middle",
        },
        "minExtent": extent_of(names),  # a reader's font may be wider than the one that measures
        "ticks": False,
    }
    return channel("name:N", sort=list(names), title=None, axis=axis if labelled else None)


def extent_of(names: Sequence[str]) -> int:
    """Pixels of the longest line of these names."""
    return CHARACTER * max(len(line) for name in names for line in name.split("\n"))


def step_of(names: Sequence[str]) -> int:
    """Pixels from one row to the next, with room for the longest of these names."""
    return BAR + LINE * max(name.count("\n") for name in names)


def _bar_names(groups: Sequence[Group]) -> list[str]:
    """Names of bars, with the partitioner if the names would otherwise be equal."""
    series = [group.first.series for group in groups]
    found = []
    for name, group in zip(series, groups, strict=True):
        other = f"\n{group.partitioner_label}" if series.count(name) > 1 else ""
        found.append(f"{fold(name)}{', dropped' if group.dropped else ''}{other}")
    return found


def fold(name: str) -> str:
    """A name, wrapped to leave room for the bars."""
    if len(name) <= LONGEST:
        return name
    joined = name.replace(" · ", f" ·{JOIN}")
    return fill(joined, LONGEST, break_long_words=False, break_on_hyphens=False)

"""Axes of figures: what they span, and whether they are logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any, Literal

from orchestrator.report.figures.lazy import alt

FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
LOG_FROM = 16  # node counts that differ by this factor go on a logarithmic axis
MOST_TICKS = 12
GAP = 1.5  # times the range of all other values: values farther away are clipped
MOST_CLIPPED = 0.25  # of all values; more are no exception
LEAST_RANGE = 0.02  # of an accuracy axis
# Labels of an axis of bytes, as formats.size writes them.
SIZE_AXIS = (
    "datum.value < 1000 ? format(datum.value, 'd') + ' B' : "
    "format(datum.value / pow(1000, floor(log(datum.value * 1.000001) / log(1000))), '.3~r') + ' ' + "
    "['B', 'kB', 'MB', 'GB', 'TB'][floor(log(datum.value * 1.000001) / log(1000))]"
)


@dataclass(frozen=True)
class Axis:
    """An axis of a figure.

    field: the field of the records. low, high: the ends of the axis. ticks: the values of the ticks; chosen
    by Vega if empty. format: the format of the tick labels, in d3's notation. padding: pixels at both ends.
    switch: the domains by which a page replaces this one when the reader changes the type of the axis;
    empty if they cannot.
    """

    field: str
    title: str
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    format: str = ",~r"
    padding: float = 0
    switch: tuple[tuple[Literal["linear", "log"], tuple[float, float]], ...] = ()

    @property
    def scale(self) -> alt.Scale:
        # Vega-Lite warns of `zero` on a logarithmic axis.
        kind: dict[str, Any] = {"type": "log"} if self.log else {"type": "linear", "zero": False}
        return alt.Scale(domain=[self.low, self.high], nice=False, padding=self.padding, **kind)

    @property
    def drawn(self) -> alt.Axis:
        ticks: dict[str, Any] = {"values": list(self.ticks)} if self.ticks else {"tickCount": 5}
        shown: dict[str, Any] = {"format": self.format, "labelOverlap": "greedy", "titlePadding": 10}
        shown |= {"labelSeparation": 4, "labelFlush": False}  # a flushed label hides its neighbour
        return alt.Axis(title=self.title, **shown, **ticks)

    @property
    def x(self) -> alt.X:
        return alt.X(self.field, type="quantitative", scale=self.scale, axis=self.drawn)

    @property
    def y(self) -> alt.Y:
        return alt.Y(self.field, type="quantitative", scale=self.scale, axis=self.drawn)

    @property
    def domains(self) -> dict[str, list[float]]:
        """What the axis spans, by its type, for the page's switch."""
        return {kind: list(domain) for kind, domain in self.switch}

    def outside(self, value: float) -> int:
        """-1 below the axis, 1 above it, 0 on it."""
        return -1 if value < self.low else 1 if value > self.high else 0


def count_axis(counts: Sequence[int], field: str, title: str) -> Axis:
    """An axis of nodes or ranks, with a tick at each count, or at powers of two if these are many."""
    first, last = min(counts), max(counts)
    wide = last >= LOG_FROM * first
    ticks = sorted(set(counts))
    if len(ticks) > MOST_TICKS and wide:
        ticks = [2**power for power in range(last.bit_length()) if 2**power >= first]
    elif len(ticks) > MOST_TICKS:
        ticks = [*range(first, last + 1, ceil((last - first) / 10))]
    low, high = (first, last) if first < last else (first - 0.5, last + 0.5)
    return Axis(field, title, low, high, wide, tuple(ticks), "d", 14)


def amount_axis(values: Sequence[float], field: str, title: str, log: bool = False) -> Axis:
    """An axis from zero; a logarithmic one if the values are far apart. The reader may switch it."""
    positive = [value for value in values if value > 0]
    high = max(values, default=0.0) or 1.0
    linear = (0.0, 1.06 * high)
    if not positive:
        return Axis(field, title, *linear)
    low = min(positive)
    wide = (low / 1.15, high * 1.15)
    log = len(positive) == len(values) and (log or high > FAR_APART * low)
    switch: tuple[tuple[Literal["linear", "log"], tuple[float, float]], ...] = (
        (("linear", linear), ("log", wide)) if len(positive) == len(values) else ()
    )
    domain = wide if log else linear
    return Axis(field, title, *domain, log, round_values(*wide) if log else (), switch=switch)


def share_axis(
    values: Sequence[float], field: str, title: str, ranges: Sequence[tuple[float, float]] = ()
) -> Axis:
    """An axis of accuracies without the few that are far from all others.

    Clipping keeps the differences visible that the figure is about. The alternatives were tried: on a
    logarithmic axis of the error the best lines are as far apart as noise, and a broken axis needs a
    second panel in each small multiple. A clipped value is drawn as an arrow with its number.

    Args:
        ranges: lowest and highest seed of each value. They may widen the axis to twice its span.
    """
    first, last = focus(values)
    span = max(last - first, LEAST_RANGE)
    seeds = [value for pair in ranges for value in pair if first - span / 2 <= value <= last + span / 2]
    low, high = min([first, *seeds]), max([last, *seeds])
    room = 0.06 * max(high - low, LEAST_RANGE)
    # The top keeps a margin at 100%, so that lines there are not cut in half.
    return Axis(field, title, max(0.0, low - room), high + room, format=percent_format(high - low))


def percent_format(span: float) -> str:
    """The format of tick labels on an axis of this span: all labels differ."""
    return ".0%" if span > 0.05 else ".1%"


def focus(values: Sequence[float]) -> tuple[float, float]:
    """The range of the values without a few that are far below or above all others."""
    ordered = sorted(values)
    most = floor(MOST_CLIPPED * len(ordered))
    low, high = 0, len(ordered) - 1
    for at, (one, other) in enumerate(pairwise(ordered)):
        below, above = at + 1, len(ordered) - at - 1
        if below <= most and other - one > GAP * max(ordered[high] - other, LEAST_RANGE):
            low = max(low, at + 1)
        elif above <= most and other - one > GAP * max(one - ordered[low], LEAST_RANGE):
            high = min(high, at)
    return ordered[low], ordered[high]


def round_values(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5, 10, … within the bounds; only powers of ten over more than three of them."""
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    found = [float(f"{step}e{power}") for power in powers for step in steps]
    return tuple(value for value in found if low <= value <= high)

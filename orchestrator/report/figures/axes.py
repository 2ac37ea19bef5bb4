"""Axes of figures: what they span, and whether they are logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

from orchestrator.report import formats
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity

FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
LOG_FROM = 16  # node counts that differ by this factor go on a logarithmic axis
MOST_TICKS = 12
GAP = 1.5  # times the range of all other values: values farther away are clipped
MOST_CLIPPED = 0.25  # of all values; more are no exception
LEAST_RANGE = 0.02  # of an accuracy axis
MOST_ROOM = 1.5  # that bounds of intervals have beyond means, as a factor
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
    by Vega if empty. format: that of the tick labels, in d3's notation or as an expression. padding: pixels
    at both ends. domains: those by which a page replaces this one when the reader changes the type of the
    axis, `linear` or `log`; None if they cannot.
    """

    field: str
    title: str
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    format: str = ",~r"
    padding: float = 0
    domains: Mapping[str, Sequence[float]] | None = None

    @property
    def scale(self) -> dict[str, Any]:
        # Vega-Lite warns of `zero` on a logarithmic axis.
        kind: dict[str, Any] = {"type": "log"} if self.log else {"type": "linear", "zero": False}
        return {"domain": [self.low, self.high], "nice": False, "padding": self.padding, **kind}

    @property
    def channel(self) -> dict[str, Any]:
        """The encoding of its field."""
        # A flushed label hides its neighbour.
        shown = {"labelOverlap": "greedy", "titlePadding": 10, "labelSeparation": 4, "labelFlush": False}
        ticks: dict[str, Any] = {"values": list(self.ticks)} if self.ticks else {"tickCount": 5}
        labels = {"labelExpr": self.format} if "datum" in self.format else {"format": self.format}
        axis = {"title": self.title, **labels, **shown, **ticks}
        return {"field": self.field, "type": "quantitative", "scale": self.scale, "axis": axis}

    def outside(self, value: float) -> int:
        """-1 below the axis, 1 above it, 0 on it."""
        return -1 if value < self.low else 1 if value > self.high else 0


def count_axis(counts: Sequence[int], name: str, title: str) -> Axis:
    """An axis of nodes or ranks, with a tick at each count, or at powers of two if these are many."""
    first, last = min(counts), max(counts)
    wide = last >= LOG_FROM * first
    ticks = sorted(set(counts))
    if len(ticks) > MOST_TICKS and wide:
        ticks = [2**power for power in range(last.bit_length()) if 2**power >= first]
    elif len(ticks) > MOST_TICKS:
        ticks = [*range(first, last + 1, ceil((last - first) / 10))]
    low, high = (first, last) if first < last else (first - 0.5, last + 0.5)
    return Axis(name, title, low, high, wide, tuple(ticks), "d", 14)


def amount_axis(values: Sequence[float], name: str, title: str, log: bool = False) -> Axis:
    """An axis from zero; a logarithmic one if the values are far apart. The reader may switch it."""
    positive = [value for value in values if value > 0]
    high = max(values, default=0.0) or 1.0
    linear = (0.0, 1.06 * high)
    if not positive:
        return Axis(name, title, *linear)
    low = min(positive)
    wide = (low / 1.15, high * 1.15)
    log = len(positive) == len(values) and (log or high > FAR_APART * low)
    domains = {"linear": linear, "log": wide} if len(positive) == len(values) else None
    domain = wide if log else linear
    return Axis(name, title, *domain, log, round_values(*wide) if log else (), domains=domains)


def axis_of(quantity: Quantity, points: Sequence[Mapping[str, Any]], title: str, log: bool = False) -> Axis:
    """The axis of a quantity's `mean`, of points with the bounds `low` and `high`.

    log: whether it is logarithmic even if the values are near each other.
    """
    means = [point["mean"] for point in points]
    if quantity is Q.accuracy:
        return share_axis(means, "mean", title, [(point["low"], point["high"]) for point in points])
    # Far bounds of intervals are clipped.
    lows = [max(point["low"], min(means) / MOST_ROOM) for point in points]
    highs = [min(point["high"], max(means) * MOST_ROOM) for point in points]
    axis = amount_axis([*lows, *means, *highs], "mean", title, log)
    if quantity.write is formats.size:
        return replace(axis, format=SIZE_AXIS)
    return replace(axis, format=".0%") if quantity.write is formats.percent else axis


def share_axis(
    values: Sequence[float], name: str, title: str, ranges: Sequence[tuple[float, float]] = ()
) -> Axis:
    """An axis of accuracies without the few that are far from all others.

    Clipping keeps the differences visible that the figure is about. The alternatives were tried: on a
    logarithmic axis of the error the best lines are as far apart as noise, and a broken axis needs a
    second panel in each small multiple. A clipped value is drawn as an arrow with its number.

    Args:
        ranges: the interval of each of the first values. They may widen the axis to twice its span.
    """
    first, last = focus(values)
    span = max(last - first, LEAST_RANGE)
    bounds = [
        min(max(bound, first - span / 2), last + span / 2)
        for value, pair in zip(values, ranges, strict=False)
        if first <= value <= last
        for bound in pair
    ]
    low, high = min([first, *bounds]), max([last, *bounds])
    room = 0.06 * max(high - low, LEAST_RANGE)
    # The top keeps a margin at 100%, so that lines there are not cut in half.
    return Axis(name, title, max(0.0, low - room), high + room, format=percent_format(high - low))


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

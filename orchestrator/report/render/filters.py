"""What a reader may switch off or select: strategies, and values in which the runs of a sweep differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.render.summary import STATES
from orchestrator.report.render.tables import filters_of

FILTERS = {"nodes": "Nodes", "transport": "Transport", "partitioner": "Partitioner", "status": "Status"}


@dataclass(frozen=True)
class Chip:
    """A strategy over a transport, and its colour and the shape of its points in figures."""

    series: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Filter:
    """A selection of one value. values: each with its label."""

    name: str
    title: str
    values: list[tuple[str, str]]


def chips(groups: Sequence[Group]) -> list[Chip]:
    """One per strategy and transport, in the order of the sweep."""
    style = Style(groups)
    found: dict[str, Chip] = {}
    for group in one_per_split([group for group in groups if group.first.trains]):
        series, look = group.first.series, style.look(group)
        found.setdefault(series, Chip(series, look.colour, look.shape))
    return list(found.values())


def filters(comparison: Comparison) -> list[Filter]:
    """Those with several values."""
    lines = [filters_of([row]) for row in comparison.rows]
    found = []
    for name, title in FILTERS.items():
        values = {line[name]: None for line in lines if name in line}
        if name == "status" and comparison.pending:
            pending = [
                "unusable" if key in comparison.unusable else "pending" for key in comparison.pending
            ]
            values.update(dict.fromkeys(pending))
        if len(values) > 1:
            ordered = sorted(values, key=_size) if name == "nodes" else list(values)
            found.append(Filter(name, title, [(value, STATES.get(value, value)) for value in ordered]))
    return found


def _size(shape: str) -> list[int]:
    """`2 × 4` after `2`, and both before `10`."""
    return [int(part) for part in shape.split(" × ")]

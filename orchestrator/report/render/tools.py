"""What a reader may switch off or select: strategies, and values in which the runs of a sweep differ."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.render.summary import STATES
from orchestrator.report.render.tables import filters_of
from orchestrator.report.render.tree import Chip, Filter

FILTERS = {"nodes": "Nodes", "transport": "Transport", "partitioner": "Partitioner", "status": "Status"}


def chips(groups: Sequence[Group]) -> list[Chip]:
    """One per strategy and transport, in the order of the sweep."""
    style, found = Style(groups), dict[str, Chip]()
    for group in one_per_split([group for group in groups if group.first.trains]):
        look = style.look(group)
        found.setdefault(group.first.series, Chip(group.first.series, look.colour, look.shape))
    return list(found.values())


def filters(comparison: Comparison) -> list[Filter]:
    """Those with several values."""
    lines = [filters_of([row]) for row in comparison.rows]
    lines += [
        {"status": "unusable" if key in comparison.unusable else "pending"} for key in comparison.pending
    ]
    found = []
    for name, title in FILTERS.items():
        values = list(dict.fromkeys(line[name] for line in lines if name in line))
        if len(values) > 1:
            ordered = sorted(values, key=_size) if name == "nodes" else values
            found.append(Filter(name, title, [(value, STATES.get(value, value)) for value in ordered]))
    return found


def _size(shape: str) -> list[int]:
    """`2 × 4` after `2`, and both before `10`."""
    return [int(part) for part in shape.split(" × ")]

"""Style of figures: one colour per strategy, one shape per transport, one line style per partitioner.

A strategy that was run with several numbers of ranks per node has a colour for each. Records of figures
have the fields `series` (`series_name`) and, where lines differ in it, `partitioner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.theme import OTHER_SHAPE, SERIES_COLOURS, TRANSPORT_SHAPES, colour
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split

DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (2, 3), (8, 3, 2, 3), (10, 4), (8, 3, 2, 3, 2, 3))


@dataclass(frozen=True)
class Look:
    """How a group is drawn. token: its colour, a name in theme.TOKENS. dash: lengths of dashes and gaps."""

    token: str
    shape: str
    dash: tuple[int, ...]

    @property
    def colour(self) -> str:
        return colour(self.token)


class Style:
    """The style of each of a report's groups, the same in every figure."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """groups: all of the report, in the order of the sweep."""
        # Most figures show one of several split points: it gets one of the first colours.
        coloured = [group for group in [*one_per_split(groups), *groups] if not group.serial]
        strategies = dict.fromkeys(map(_strategy, coloured))
        partitioners = dict.fromkeys(group.partitioner_label for group in groups if group.partitioner_label)
        self._tokens = {strategy: f"s{at % SERIES_COLOURS}" for at, strategy in enumerate(strategies)}
        self._partitioners = [*partitioners]
        self._order = list(
            dict.fromkeys(map(series_name, sorted(groups, key=lambda group: not group.serial)))
        )

    def look(self, group: Group) -> Look:
        label = group.partitioner_label
        at = self._partitioners.index(label) if label in self._partitioners else 0
        return Look(
            self._tokens.get(_strategy(group), "serial"),
            TRANSPORT_SHAPES.get(group.transport, OTHER_SHAPE),
            DASHES[at % len(DASHES)],
        )

    def order(self, groups: Sequence[Group]) -> list[str]:
        """The series of these groups: serial, then the order of the sweep, as in every figure."""
        names = {series_name(group) for group in groups}
        return [name for name in self._order if name in names]

    def colours(self, groups: Sequence[Group]) -> alt.Scale:
        """The colours of the field `series`."""
        looks = self._looks(groups)
        return alt.Scale(domain=[*looks], range=[look.colour for look in looks.values()])

    def shapes(self, groups: Sequence[Group]) -> alt.Scale:
        """The shapes of the field `series`."""
        looks = self._looks(groups)
        return alt.Scale(domain=[*looks], range=[look.shape for look in looks.values()])

    def dash_patterns(self, groups: Sequence[Group]) -> alt.Scale:
        """The line styles of the field `partitioner`."""
        looks = {group.partitioner_label: self.look(group) for group in groups}
        return alt.Scale(domain=[*looks], range=[list(look.dash) for look in looks.values()])

    def _looks(self, groups: Sequence[Group]) -> dict[str, Look]:
        looks = {series_name(group): self.look(group) for group in groups}
        return {name: looks[name] for name in self.order(groups)}


def _strategy(group: Group) -> tuple[str, int]:
    return group.strategy_label, group.shape.processes_per_node


def short_name(group: Group) -> str:
    """`all_reduce · mpi`: the strategy and the transport."""
    return group.strategy_label if group.serial else f"{group.strategy_label} · {group.transport}"


def series_name(group: Group) -> str:
    """A line without its partitioner: `all_reduce · mpi`, `ddp · gloo · 2 ranks per node`."""
    return " · ".join(filter(None, [short_name(group), group.shape.per_node]))

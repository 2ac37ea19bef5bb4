"""Style of figures: the colour and mark of each strategy, and one line style per partitioner.

A strategy has the same colour and mark in every report. If a report has it with several parameters or
numbers of ranks per node, one of them has that colour, and the others have colours of their own. Over
further transports, the colour stays and the mark differs. Records of figures have the fields `series`
(`Group.series`) and, where lines differ in it, `partitioner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from orchestrator.report.figures.chart import Spec, channel
from orchestrator.report.figures.theme import MARKS, SERIES_COLOURS, colour
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import SERIAL
from orchestrator.report.model.split_points import one_per_split
from trainer.spec.registries import STRATEGIES

DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (2, 3), (8, 3, 2, 3), (10, 4), (8, 3, 2, 3, 2, 3))


@dataclass(frozen=True)
class Look:
    """How a series is drawn. token: its colour, a name in theme.TOKENS."""

    token: str
    shape: str

    @property
    def colour(self) -> str:
        return colour(self.token)


Variant = tuple[str, str, int]  # of a strategy: its name, its label and the ranks per node
ColourAndMark = tuple[int, int]  # their positions in s0, s1, … and in MARKS


class Style:
    """The style of each of a report's series, the same in every figure."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """groups: all of the report, in the order of the sweep."""
        # Most figures show one of several split points: it gets one of the first colours.
        drawn = [group for group in [*one_per_split(groups), *groups] if not group.serial]
        found = _colours_and_marks(drawn)
        self._looks: dict[str, Look] = {}
        for group in sorted(groups, key=lambda group: not group.serial):
            colour_at, mark_at = (0, 0) if group.serial else found[_variant(group), group.transport]
            token = "serial" if group.serial else f"s{colour_at}"
            self._looks.setdefault(group.series, Look(token, MARKS[mark_at]))
        partitioners = dict.fromkeys(group.partitioner_label for group in groups if group.partitioner_label)
        self._dashes = {label: DASHES[at % len(DASHES)] for at, label in enumerate(partitioners)}

    def look(self, group: Group) -> Look:
        return self._looks[group.series]

    def order(self, names: Iterable[str]) -> list[str]:
        """These series: serial, then the order of the sweep, as in every figure."""
        shown = {*names}
        return [name for name in self._looks if name in shown]

    def looks(self, names: Iterable[str]) -> dict[str, Spec]:
        """The channels `color` and `shape` of the field `series`."""
        order = self.order(names)
        ranges = {
            "color": [self._looks[name].colour for name in order],
            "shape": [self._looks[name].shape for name in order],
        }
        return {
            each: channel("series:N", scale={"domain": order, "range": values}, legend=None)
            for each, values in ranges.items()
        }

    def dashes(self, labels: Iterable[str], legend: bool) -> Spec:
        """The channel `strokeDash` of the field `partitioner`. legend: whether to say which is which."""
        looks = {label: list(self._dashes.get(label, DASHES[0])) for label in labels}
        named = sorted(filter(None, looks))
        key = {"title": None, "orient": "top", "values": named, "symbolStrokeColor": colour("ink")}
        scale = {"domain": [*looks], "range": [*looks.values()]}
        return channel("partitioner:N", scale=scale, legend=key if legend and len(named) > 1 else None)


def _variant(group: Group) -> Variant:
    return group.strategy, group.strategy_label, group.shape.processes_per_node


def _colours_and_marks(groups: Sequence[Group]) -> dict[tuple[Variant, str], ColourAndMark]:
    """The colour and mark of each variant of a strategy over each transport."""
    transports: dict[Variant, dict[str, None]] = {}
    for group in groups:
        transports.setdefault(_variant(group), {}).setdefault(group.transport)
    first = _first_variants([*transports])
    own = _of_strategies([*first])
    taken = {*own.values()}
    found: dict[tuple[Variant, str], ColourAndMark] = {}
    for variant, over in transports.items():
        colour_at, mark_at = own[variant[0]]
        if variant != first[variant[0]]:
            unused = sorted(range(SERIES_COLOURS), key=lambda at: any(at == used for used, _ in taken))
            colour_at, mark_at = _free([(at, mark) for mark in _marks(mark_at) for at in unused], taken)
        for number, transport in enumerate(over):
            look = (colour_at, mark_at)
            if number:
                look = _free([(colour_at, mark) for mark in _marks(mark_at)], taken)
            taken.add(look)
            found[variant, transport] = look
    return found


def _first_variants(variants: Sequence[Variant]) -> dict[str, Variant]:
    """The variant of each strategy that has its colour: the one without parameters, else the first."""
    found: dict[str, Variant] = {}
    for name, label, ranks in variants:
        if name not in found or (label == name != found[name][1]):
            found[name] = name, label, ranks
    return found


def _of_strategies(names: Sequence[str]) -> dict[str, ColourAndMark]:
    """The colours and marks of strategies, by their place in the registry. Those of users follow."""
    registered = [name for name in STRATEGIES.entries if name != SERIAL]
    places = [*registered, *(name for name in names if name not in registered)]
    return {
        name: (place % SERIES_COLOURS, place // SERIES_COLOURS % len(MARKS))
        for place, name in enumerate(places)
        if name in names
    }


def _marks(first: int) -> list[int]:
    """All marks, from this one on."""
    return [*range(first, len(MARKS)), *range(first)]


def _free(looks: Sequence[ColourAndMark], taken: AbstractSet[ColourAndMark]) -> ColourAndMark:
    """The first that is not taken; if all are, the first."""
    return next((look for look in looks if look not in taken), looks[0])

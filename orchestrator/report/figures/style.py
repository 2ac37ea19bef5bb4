"""Style of figures: the colour and mark of each strategy, and one line style per partitioner.

A strategy has the same colour and mark in every report. If a report has it with several parameters or
numbers of ranks per node, one of them has that colour, and the others have colours of their own. Over
further transports, the colour stays and the mark differs. Records of figures have the fields `series`
(`Group.series`) and, where lines differ in it, `partitioner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.report.figures.spec import Spec, channel
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


class Style:
    """The style of each of a report's series, the same in every figure."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """groups: all of the report, in the order of the sweep."""
        # Most figures show one of several split points: it gets one of the first colours.
        drawn = [group for group in [*one_per_split(groups), *groups] if not group.serial]
        serial = {group.series: Look("serial", MARKS[0]) for group in groups if group.serial}
        looks = {**serial, **_series_looks(drawn)}
        self._looks = {name: looks[name] for name in [*serial, *(group.series for group in groups)]}
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


def _series_looks(groups: Sequence[Group]) -> dict[str, Look]:
    """The look of each series: its strategy's own, or another colour of a variant, or mark of a transport.

    The variant without parameters has its strategy's own look, or else the first one.
    """
    first: dict[str, Group] = {}
    for group in groups:
        first.setdefault(group.series, group)
    registered = [name for name in STRATEGIES.entries if name != SERIAL]
    places = [*dict.fromkeys([*registered, *(group.strategy for group in groups)])]
    looks = len(MARKS) * SERIES_COLOURS
    own = {name: divmod(at % looks, SERIES_COLOURS) for at, name in enumerate(places)}
    taken = {own[group.strategy] for group in groups}  # the places of a mark and a colour
    found: dict[str, tuple[int, int]] = {}
    colours: dict[tuple[str, int], int] = {}  # of variants
    for group in sorted(first.values(), key=lambda group: group.strategy_label != group.strategy):
        variant = group.strategy_label, group.shape.processes_per_node
        mark_at, colour_at = own[group.strategy]
        marks = [(mark_at + more) % len(MARKS) for more in range(len(MARKS))]
        unused = sorted(range(SERIES_COLOURS), key=lambda at: any(at == used for _, used in taken))
        if variant in colours:
            free = [(mark, colours[variant]) for mark in marks]
        elif any(group.strategy == first[name].strategy for name in found):
            free = [(mark, at) for mark in marks for at in unused]
        else:
            free = []
        look = next((look for look in free if look not in taken), [*free, (marks[0], colour_at)][0])
        colours.setdefault(variant, look[1])
        taken.add(look)
        found[group.series] = look
    return {name: Look(f"s{colour_at}", MARKS[mark_at]) for name, (mark_at, colour_at) in found.items()}

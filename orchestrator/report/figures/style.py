"""Style of figures: one colour per strategy, one shape per transport, one line style per partitioner.

A strategy that was run with several numbers of ranks per node has a colour for each. Records of figures
have the fields `series` (`series_name`) and, where lines differ in it, `partitioner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import altair as alt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from orchestrator.report.figures.theme import OTHER_SHAPE, SERIES_COLOURS, TRANSPORT_SHAPES, colour
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split

WIDTH_IN = 5.2
FULL_WIDTH_IN = 2 * WIDTH_IN + 0.2  # of the page, so that text is as large as in the other figures
LEGEND_ROW_IN = 0.185
LONGEST_IN_TWO = 50  # characters side by side in a legend of two columns
INK = "#24292F"
FAINT = "#8A919A"
SERIAL_COLOUR = "#4A4A4A"

# Contrast of at least 3:1 on white. The order keeps the first ones distinguishable for colour-blind readers
# (measured as CIELAB distance after simulating deuteranopia and protanopia).
STRATEGY_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#1B9E8A",
    "#4B1D8F",
    "#7F2406",
    "#D4548F",
    "#3F9BDC",
    "#6E7F10",
    "#12355B",
    "#8E6C00",
    "#2E7D32",
    "#8064C7",
    "#A3195B",
    "#00808C",
    "#4860FC",
    "#3A0000",
    "#0000B4",
    "#30A86C",
    "#542418",
    "#240024",
)
TRANSPORT_MARKERS = {"mpi": "o", "gloo": "s", "memory": "^", "nccl": "D", "rpc": "P"}
OTHER_MARKER = "X"
Dashes = str | tuple[float, tuple[float, ...]]
PARTITIONER_DASHES: tuple[Dashes, ...] = (
    "solid",
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (7, 2)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
)

PHASE_COLOURS = {
    "data": "#B8C4CE",
    "compute": "#5E7C99",
    "communicate": "#E08A2E",
    "wait": "#F6CF8B",
    "cpu_contention": "#A9A2C4",
    "checkpoint": "#7FA38A",
    "other": "#DDE1E5",
}

MEMORY_COLOURS = {
    "weights": "#34495E",
    "gradient": "#5E7C99",
    "optimizer": "#B8C4CE",
    "activations": "#E08A2E",
}

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,  # names come from files and may contain a dollar sign
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.unicode_minus": True,
    "grid.color": "#E3E6EA",
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # text can be selected, searched and read aloud
    "svg.hashsalt": "shardyard",  # equal data gives equal files
}


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and dashes of a line."""

    colour: str
    marker: str
    dashes: Dashes


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
        self._colours = {
            strategy: STRATEGY_COLOURS[index % len(STRATEGY_COLOURS)]
            for index, strategy in enumerate(strategies)
        }
        self._tokens = {strategy: f"s{at % SERIES_COLOURS}" for at, strategy in enumerate(strategies)}
        self._partitioners = [*partitioners]
        self._order = list(
            dict.fromkeys(map(series_name, sorted(groups, key=lambda group: not group.serial)))
        )
        self._dashes = {
            label: PARTITIONER_DASHES[index % len(PARTITIONER_DASHES)]
            for index, label in enumerate(partitioners)
        }

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

    def series(self, group: Group) -> SeriesStyle:
        return SeriesStyle(
            colour=self._colours.get(_strategy(group), SERIAL_COLOUR),
            marker=TRANSPORT_MARKERS.get(group.transport, OTHER_MARKER),
            dashes=self._dashes.get(group.partitioner_label, "solid"),
        )


def _strategy(group: Group) -> tuple[str, int]:
    return group.strategy_label, group.shape.processes_per_node


class Legend:
    """A legend under a figure: colours and markers, then line styles."""

    def __init__(self) -> None:
        self._entries: dict[str, Line2D] = {}
        self._last: dict[str, Line2D] = {}

    def add(self, name: str, series: SeriesStyle) -> None:
        """Add a line's name, once."""
        handle = Line2D(
            [], [], color=series.colour, linewidth=1.8, marker=series.marker, markeredgecolor="white"
        )
        self._entries.setdefault(name, handle)

    def explain(self, name: str, **drawn: Any) -> None:
        """Add an explanation at the end. drawn: arguments of Line2D."""
        self._last.setdefault(name, Line2D([], [], **{"color": INK, "linewidth": 1.4, **drawn}))

    @property
    def _all(self) -> dict[str, Line2D]:
        return {**self._entries, **self._last}

    @property
    def _columns(self) -> int:
        names = list(self._all)
        half = ceil(len(names) / 2)
        longest = [max(map(len, column), default=0) for column in (names[:half], names[half:])]
        return 2 if len(names) > 2 and sum(longest) <= LONGEST_IN_TWO else 1

    @property
    def height_in(self) -> float:
        return LEGEND_ROW_IN * ceil(len(self._all) / self._columns)

    def draw(self, figure: Figure) -> None:
        figure.legend(
            list(self._all.values()),
            list(self._all),
            loc="outside lower left",
            ncols=self._columns,
            handlelength=3.2,
            columnspacing=1.6,
        )


def short_name(group: Group) -> str:
    """`all_reduce · mpi`: the strategy and the transport."""
    return group.strategy_label if group.serial else f"{group.strategy_label} · {group.transport}"


def series_name(group: Group) -> str:
    """A line without its partitioner: `all_reduce · mpi`, `ddp · gloo · 2 ranks per node`."""
    return " · ".join(filter(None, [short_name(group), group.shape.per_node]))


def set_title(figure: Figure, title: str) -> None:
    """Set a bold title at the left edge."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")

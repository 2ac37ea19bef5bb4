"""The legend of strategies: their colours, a summary, and the file of each algorithm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc

from orchestrator.report.figures.style import Style
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split


@dataclass(frozen=True)
class Entry:
    """A strategy of the report.

    series: its labels and CSS colours, several if it was run with several parameters. summary: one
    sentence. about: the paragraphs of its docstring, with the paper. file: path in the repository.
    """

    name: str
    series: list[tuple[str, str]]
    summary: str
    about: list[str]
    file: str


def legend(groups: Sequence[Group]) -> list[Entry]:
    """One entry per strategy, in the order of the sweep, with one series for all its split points."""
    style = Style(groups)
    entries: dict[str, Entry] = {}
    for group in one_per_split(groups):
        strategy = group.first.run.strategy
        module = sys.modules[type(strategy).__module__]
        entry = entries.setdefault(
            group.strategy,
            Entry(
                name=group.strategy,
                series=[],
                summary=_first_line(module.__doc__).partition(": ")[2] or _first_line(module.__doc__),
                about=_paragraphs(type(strategy).__doc__),
                file=module.__name__.replace(".", "/") + ".py",
            ),
        )
        series = (group.strategy_label, style.look(group).colour)
        if series not in entry.series:
            entry.series.append(series)
    return list(entries.values())


def _first_line(doc: str | None) -> str:
    return cleandoc(doc or "").partition("\n")[0]


def _paragraphs(doc: str | None) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in cleandoc(doc or "").split("\n\n")]

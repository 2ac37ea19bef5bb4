"""The legend of strategies: what each does, and the file in which its algorithm is to be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc

from orchestrator.report.figures.style import Style
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_of_each


@dataclass(frozen=True)
class Entry:
    """A strategy of the report. looks: its labels and colours, several where it was tried with several
    parameters. does: one sentence. about: the rest that its file says of it, in paragraphs, with the paper.
    file: in the repository.
    """

    name: str
    looks: list[tuple[str, str]]
    does: str
    about: list[str]
    file: str


def legend(groups: Sequence[Group]) -> list[Entry]:
    """An entry per strategy, in the order of the sweep; of those cut in different places, one look."""
    style = Style(groups)
    entries: dict[str, Entry] = {}
    for group in one_of_each(groups):
        strategy = group.first.run.strategy
        module = sys.modules[type(strategy).__module__]
        entry = entries.setdefault(
            group.strategy,
            Entry(
                name=group.strategy,
                looks=[],
                does=_first_line(module.__doc__).partition(": ")[2] or _first_line(module.__doc__),
                about=_paragraphs(type(strategy).__doc__),
                file=module.__name__.replace(".", "/") + ".py",
            ),
        )
        look = (group.strategy_label, style.look(group).colour)
        if look not in entry.looks:
            entry.looks.append(look)
    return list(entries.values())


def _first_line(doc: str | None) -> str:
    return cleandoc(doc or "").partition("\n")[0]


def _paragraphs(doc: str | None) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in cleandoc(doc or "").split("\n\n")]

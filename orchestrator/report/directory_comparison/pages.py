"""Differences between results directories as a page and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from orchestrator.report.directory_comparison.differences import Difference, Directories
from orchestrator.report.findings.decide import Compared
from orchestrator.report.formats import ABSENT, count, first_few, listed
from orchestrator.report.render.tables import Column, table_of, words
from orchestrator.report.render.tree import Block, Cell, Item, Items, Page, Section, texts

MOST_NAMED = 8  # configurations that only one directory has


class Change(NamedTuple):
    """One quantity of a configuration in the reference and in another directory, as text.

    values: `0.46 s → 0.51 s`. text: the difference with its interval. effect: `better` or `worse` if that
    is claimed; otherwise empty.
    """

    values: str = ABSENT
    text: str = ABSENT
    effect: str = ""

    @classmethod
    def of(cls, compared: Compared | None) -> Change:
        """The change that was compared. None: a side has no value."""
        if compared is None:
            return cls()
        new, old = (compared.quantity.write(value) for value in compared.values)
        effect = "better" if compared.left_is_better else "worse" if compared.right_is_better else ""
        text = compared.written if compared.contrast else compared.remark.strip(" ()")
        return cls(f"{old} → {new}", text, effect)

    @property
    def cell(self) -> Cell:
        text, _, interval = self.text.partition(" (")
        detail = ": ".join(filter(None, [interval.removesuffix(")"), self.effect]))
        return Cell(text, detail if interval else "", kind=self.effect)


COLUMNS: tuple[Column[Difference], ...] = (
    words("name", "Configuration", lambda each: each.name),
    words("clock", "Clock", lambda each: each.clock),
    words("time", "Time", lambda each: Change.of(each.time).values),
    Column("time_change", "Change", lambda each: Change.of(each.time).cell, number=False),
    words("accuracy", "Accuracy", lambda each: Change.of(each.accuracy).values),
    Column("accuracy_change", "Change", lambda each: Change.of(each.accuracy).cell, number=False),
)


def page_of(found: Directories) -> Page:
    """The comparison as a page."""
    first, *others = found.names
    sections = []
    for number, directory in enumerate(others, 1):
        caption = (
            f"Configurations in both directories: the reference → {directory}, means over seeds. Changes "
            "have 95% intervals, corrected for the number of comparisons."
        )
        of = [each for each in found.differences if each.directory == directory]
        table = table_of(caption, COLUMNS, of)._replace(kind="changes", label=directory)
        sections.append(Section(f"directory-{number}", directory, [*texts(summary(of)), table]))
    if lines := [Item([line]) for line in remarks(found)]:
        blocks: list[Block] = [Items(lines)]
        sections.append(Section("others", "Other differences", blocks))
    return Page("Shardyard comparison", f"{listed(others)} compared with {first}", sections)


def summary(differences: Sequence[Difference]) -> str:
    """What is shown of a directory, as a sentence for each quantity."""
    sentences = []
    for name, compared, worse, better in (
        ("Time", [each.time for each in differences], "slower", "faster"),
        ("Accuracy", [each.accuracy for each in differences], "less accurate", "more accurate"),
    ):
        found = [each for each in compared if each]
        counts = {
            f"shown to be {worse}": sum(each.right_is_better for each in found),
            f"shown to be {better}": sum(each.left_is_better for each in found),
            "equal in every seed": sum(each.verdict == "equal" for each in found),
            "undecided": sum(each.verdict in ("undecided", "too_few_seeds") for each in found),
        }
        if parts := [f"{number} {what}" for what, number in counts.items() if number]:
            sentences.append(f"{name}: of {count(len(found), 'configuration')}, {listed(parts)}.")
    return " ".join(sentences)


def remarks(found: Directories) -> Iterator[str]:
    """Where the directories differ otherwise, a line each."""
    for name, values in found.facts.items():
        facts = [f"{value} ({where})" for where, value in zip(found.names, values, strict=True)]
        yield f"{name} differs: {', '.join(facts)}"
    for directory, names in found.alone.items():
        yield f"{count(len(names), 'configuration')} only in {directory}: {first_few(names, MOST_NAMED)}"

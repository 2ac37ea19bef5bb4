"""Differences between results directories as a page, as Markdown and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.report.directory_comparison.differences import Difference
from orchestrator.report.directory_comparison.matches import Match, Matches
from orchestrator.report.figures.theme import css_variables
from orchestrator.report.findings.decide import Compared
from orchestrator.report.formats import ABSENT, count, first_few, listed
from orchestrator.report.render import html
from orchestrator.report.render.markdown import plain

SOURCES = Path(__file__).parent
MOST_NAMED = 8  # configurations that only one directory has
HEADS = ("Configuration", "Clock", "Time", "Change", "Accuracy", "Change")
RULE = ("---",) * len(HEADS)  # below the heads of a table in Markdown


@dataclass(frozen=True)
class Change:
    """One quantity of a configuration in the reference and in another directory, as text.

    values: `0.46 s → 0.51 s`. text: the difference with its interval. effect: `better` or `worse` if that
    is claimed; otherwise empty.
    """

    values: str = ABSENT
    text: str = ABSENT
    effect: str = ""


@dataclass(frozen=True)
class Line:
    """A configuration in a table. unfinished: where it has no finished run; empty if it has both."""

    name: str
    clock: str
    time: Change
    accuracy: Change
    unfinished: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.clock,
            self.time.values,
            self.time.text,
            self.accuracy.values,
            self.accuracy.text,
        )


def lines_of(differences: Sequence[Difference], directory: str) -> list[Line]:
    """The lines of one directory's table."""
    return [
        Line(
            each.match.name,
            each.match.clock,
            _change(each.time),
            _change(each.accuracy),
            _unfinished(each.match),
        )
        for each in differences
        if each.match.directory == directory
    ]


def _unfinished(match: Match) -> str:
    if not match.other.ok:
        return match.directory
    return "" if match.reference.ok else "the reference"


def _change(compared: Compared | None) -> Change:
    if compared is None:
        return Change()
    new, old = (compared.quantity.write(value) for value in compared.values)
    effect = "better" if compared.left_is_better else "worse" if compared.right_is_better else ""
    text = compared.written if compared.contrast else compared.remark.strip(" ()")
    return Change(f"{old} → {new}", text, effect)


def summary(differences: Sequence[Difference], directory: str) -> str:
    """What is shown of one directory, as a sentence for each quantity."""
    sentences = []
    for name, worse, better in (
        ("time", "slower", "faster"),
        ("accuracy", "less accurate", "more accurate"),
    ):
        found: list[Compared] = [
            each
            for difference in differences
            if difference.match.directory == directory and (each := getattr(difference, name))
        ]
        parts = [
            f"{number} shown to be {what}"
            for what, number in (
                (worse, sum(each.right_is_better for each in found)),
                (better, sum(each.left_is_better for each in found)),
            )
            if number
        ]
        equal = sum(each.verdict == "equal" for each in found)
        parts += [f"{equal} equal in every seed"] if equal else []
        rest = sum(each.verdict in ("undecided", "too_few_seeds") for each in found)
        parts += [f"{rest} undecided"] if rest else []
        if parts:
            sentences.append(
                f"{name.capitalize()}: of {count(len(found), 'configuration')}, {listed(parts)}."
            )
    return " ".join(sentences)


def remarks(matches: Matches) -> Iterator[str]:
    """Where the directories differ otherwise, a line each."""
    for name, values in matches.environments.items():
        facts = [f"{value} ({where})" for where, value in zip(matches.directories, values, strict=True)]
        yield f"{name} differs: {', '.join(facts)}"
    for directory, names in matches.alone.items():
        yield f"{count(len(names), 'configuration')} only in {directory}: {first_few(names, MOST_NAMED)}"


def markdown(matches: Matches, differences: Sequence[Difference]) -> str:
    """The comparison for a pull request."""
    parts = [f"# {plain(_title(matches))}"]
    for directory in matches.directories[1:]:
        rows = [map(plain, line.cells) for line in lines_of(differences, directory)]
        parts += [f"## {plain(directory)}", plain(summary(differences, directory))]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in (HEADS, RULE, *rows)))
    if found := [*remarks(matches)]:
        parts.append("\n".join(f"- {plain(line)}" for line in found))
    return "\n\n".join(parts) + "\n"


def page(matches: Matches, differences: Sequence[Difference]) -> str:
    """The comparison as one self-contained HTML file. Everything that comes from files is escaped."""
    environment = Environment(
        loader=FileSystemLoader(SOURCES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    light, dark = css_variables()
    return environment.get_template("compare.html.j2").render(
        title=_title(matches),
        heads=HEADS,
        tables=[
            (directory, summary(differences, directory), lines_of(differences, directory))
            for directory in matches.directories[1:]
        ],
        remarks=[*remarks(matches)],
        light=Markup(light),
        dark=Markup(dark),
        style=Markup((Path(html.__file__).parent / "report.css").read_text(encoding="utf-8")),
    )


def _title(matches: Matches) -> str:
    first, *others = matches.directories
    return f"{listed(others)} compared with {first}"

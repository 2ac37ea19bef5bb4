"""The content of a page: sections of blocks, which one writer turns into HTML and another into Markdown.

Texts are plain here: only writers escape them, and mark the terms in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from orchestrator.report.plots import Plot
from orchestrator.report.verdict import Evidence


class Span(NamedTuple):
    """A part of a line that is strong, code, a link to an address, or a swatch of a CSS colour."""

    kind: Literal["strong", "code", "link", "swatch"]
    text: str
    address: str = ""


Inline = Sequence[str | Span]


class Cell(NamedTuple):
    """A cell of a table.

    detail: the range over seeds, or another note in small print. value: the value by which a column sorts;
    None if it sorts by its text. kind: a CSS class. links: shown instead of the text.
    """

    text: str
    detail: str = ""
    value: float | None = None
    kind: str = ""
    links: Sequence[Span] = ()


class Head(NamedTuple):
    """The head of a column. first: whether the page shows the column at first. key: that of the column."""

    title: str
    number: bool = True
    first: bool = True
    key: str = ""

    @property
    def kind(self) -> str:
        """The CSS classes of its cells. Most are numbers, which need none."""
        return " ".join(filter(None, ["" if self.number else "text", "" if self.first else "more"]))


class Line(NamedTuple):
    """A line of a table. If it has fewer cells than heads, the last one spans the others.

    filters: the line's values, by name of a filter. kind: a CSS class.
    """

    cells: Sequence[Cell]
    filters: Mapping[str, str] = {}
    kind: str = ""


class Table(NamedTuple):
    """A table. kind: a CSS class; one without may be sorted. label: its name, if not the caption."""

    caption: str
    heads: Sequence[Head]
    lines: Sequence[Line]
    kind: str = ""
    label: str = ""


class Heading(NamedTuple):
    """A heading in a section. kind: a CSS class."""

    text: str
    kind: str = ""


class Text(NamedTuple):
    """A paragraph. kind: a CSS class. marked: whether terms in it are marked."""

    parts: Inline
    kind: str = ""
    marked: bool = False


def texts(*paragraphs: str, kind: str = "", marked: bool = False) -> list[Block]:
    """Those that are not empty."""
    return [Text([text], kind, marked) for text in paragraphs if text]


class Source(NamedTuple):
    """A file or a command, as it is written."""

    text: str


class Fold(NamedTuple):
    """Blocks that open at a click. kind: a CSS class. filters: see Line. problem: stands by the title."""

    title: str
    blocks: Sequence[Block]
    open: bool = False
    kind: str = ""
    id: str = ""
    filters: Mapping[str, str] = {}
    problem: str = ""


class Box(NamedTuple):
    """Blocks that belong together. kind: a CSS class."""

    kind: str
    blocks: Sequence[Block]


class Only(NamedTuple):
    """Blocks that one of the writers shows."""

    writer: Literal["html", "markdown"]
    blocks: Sequence[Block]


class Item(NamedTuple):
    """An entry of a list. more: what it folds, of which Markdown shows the title alone."""

    parts: Inline
    more: Fold | None = None
    id: str = ""


class Items(NamedTuple):
    """A list. kind: a CSS class. numbered: whether its entries are."""

    items: Sequence[Item]
    kind: str = ""
    numbered: bool = False


class Fact(NamedTuple):
    """What is known of a name."""

    name: str
    text: str
    id: str = ""


class Facts(NamedTuple):
    """Names, and what is known of each. kind: a CSS class."""

    facts: Sequence[Fact]
    kind: str = "facts"


class Said(NamedTuple):
    """A finding. anchor: its id; empty below one of its kind. runs: seeds and keys, by configuration."""

    text: str
    anchor: str
    runs: Mapping[str, Sequence[tuple[int, str]]]


class Findings(NamedTuple):
    """Findings by topic."""

    topics: Mapping[str, Sequence[Said]]


class Marks(NamedTuple):
    """What the page rests on. summary: a line on its runs."""

    lines: Sequence[Evidence]
    summary: str


class Drawing(NamedTuple):
    """A figure. sentence: what it shows, or empty. data: its numbers. workload: empty if there is one."""

    plot: Plot
    sentence: str
    data: Sequence[Block]
    workload: str = ""

    @property
    def notes(self) -> str:
        """What a reader must know to read it."""
        return " ".join(filter(None, [self.plot.kind.caption, self.plot.note]))

    @property
    def alt(self) -> str:
        """The text for screen readers."""
        return " ".join(filter(None, [f"{self.plot.heading}.", self.sentence, self.plot.note]))


Block = Table | Heading | Text | Source | Fold | Box | Only | Items | Facts | Findings | Marks | Drawing


class Section(NamedTuple):
    """A section. listed: whether the links at the top have it. first: whether it is above them."""

    id: str
    heading: str
    blocks: Sequence[Block]
    listed: bool = False
    first: bool = False


class Chip(NamedTuple):
    """A strategy over a transport, and its colour and the shape of its points in figures."""

    series: str
    colour: str
    shape: str


class Filter(NamedTuple):
    """A selection of one value. values: each with its label."""

    name: str
    title: str
    values: Sequence[tuple[str, str]]


class Page(NamedTuple):
    """A page. product: what it is. subtitle: what all of it is about."""

    product: str
    title: str
    sections: Sequence[Section]
    subtitle: str = ""
    chips: Sequence[Chip] = ()
    filters: Sequence[Filter] = ()
    disturbed: str = ""
    headlines: Sequence[str] = ()

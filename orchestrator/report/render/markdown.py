"""A page as repositories render it: GitHub-flavoured Markdown, with `<details>` for what folds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.report.formats import count
from orchestrator.report.render import tree
from orchestrator.report.render.summary import HOW_TO_OPEN
from orchestrator.report.render.tables import AT_FIRST

MAX_KEYS = 12  # of a finding's runs; results.csv lists all
NAMED_BY = 2  # columns that say what a line of a table is about
# Characters that are markup, or that end a table cell.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{character: f"\\{character}" for character in "|[`\\$*~"}}
)
_BLOCK_MARKER = re.compile(r"^(\d*)([#+=:.)-])")  # begins a heading, a list, a table or a rule


def render(page: tree.Page) -> str:
    """The file's text. Figures are linked as plots/<name>.svg."""
    parts = [f"# {plain(page.title)}", _paragraph(page.subtitle)]
    for section in page.sections:
        if content := [*_written(section.blocks)]:
            parts += [f"## {plain(section.heading)}", *content]
    return "\n\n".join(filter(None, parts)) + "\n"


def _written(blocks: Sequence[tree.Block]) -> Iterator[str]:
    for block in blocks:
        yield from filter(None, _WRITERS[type(block)](block))


def _heading(block: tree.Heading) -> Iterator[str]:
    yield f"### {plain(block.text)}"


def _text(block: tree.Text) -> Iterator[str]:
    text = _BLOCK_MARKER.sub(r"\1\\\2", _line(block.parts))
    yield f"**{text}**" if block.kind.startswith("headline") else text


def _fold(block: tree.Fold) -> Iterator[str]:
    yield _folded(block.title, _written(block.blocks))


def _box(block: tree.Box) -> Iterator[str]:
    return _written(block.blocks)


def _only(block: tree.Only) -> Iterator[str]:
    return _written(block.blocks if block.writer == "markdown" else ())


def _items(block: tree.Items) -> Iterator[str]:
    yield "\n".join(
        f"- {_line(item.parts)}" + (f" {_code(item.more.title)}" if item.more else "")
        for item in block.items
    )


def _facts(block: tree.Facts) -> Iterator[str]:
    yield "\n".join(f"- {plain(fact.name)}: {plain(fact.text)}" for fact in block.facts)


def _findings(block: tree.Findings) -> Iterator[str]:
    yield "\n".join(_finding(topic, said) for topic, of in block.topics.items() for said in of)


def _finding(topic: str, said: tree.Said) -> str:
    keys = [_code(key) for runs in said.runs.values() for _, key in runs]
    if len(keys) > MAX_KEYS:
        keys = [*keys[:MAX_KEYS], f"and {len(keys) - MAX_KEYS} more"]
    runs = f"  \n  <sub>{', '.join(keys)}</sub>" if keys else ""
    target = f'<a id="{said.anchor}"></a>' if said.anchor else ""
    return f"- {target}**{topic}**: {plain(said.text)}{runs}"


def _marks(block: tree.Marks) -> Iterator[str]:
    yield _paragraph(block.summary)
    yield "\n".join(
        f"- {line.mark if line.ok is not False else '**!**'} **{plain(line.topic)}** {plain(line.text)}"
        + (f" ([more](#{line.anchor}))" if line.anchor else "")
        for line in block.lines
    )


def _drawing(block: tree.Drawing) -> Iterator[str]:
    title, sentence = plain(block.title), plain(block.sentence)
    yield f"**{title}**" + (f" – {sentence}" if sentence else "")
    yield f"![{title}](plots/{block.name}.svg)"
    links = [f"- [{plain(timeline.name)}]({timeline.link})" for timeline in block.timelines]
    if notes := [*filter(None, [_paragraph(block.notes), HOW_TO_OPEN * bool(links), "\n".join(links)])]:
        yield _folded("About this figure", notes)


def _table(block: tree.Table) -> Iterator[str]:
    """The first columns, and folded the others: each table has few enough to be read without scrolling."""
    first = [number for number, head in enumerate(block.heads) if head.first]
    yield _columns(block, first)
    named, others = first[:NAMED_BY], [n for n, head in enumerate(block.heads) if not head.first]
    width = AT_FIRST - len(named)
    if others:
        tables = [
            _columns(block, [*named, *others[at : at + width]]) for at in range(0, len(others), width)
        ]
        yield _folded(count(len(others), "more column"), tables)


def _columns(block: tree.Table, columns: Sequence[int]) -> str:
    heads = [block.heads[number] for number in columns]
    lines = [
        [plain(head.title) for head in heads],
        ["--:" if head.number else "---" for head in heads],
        *([_cell(line.cells[number]) for number in columns] for line in block.lines),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: tree.Cell) -> str:
    detail = cell.detail.removeprefix("(").removesuffix(")")
    return plain(cell.text) + (f" ({plain(detail)})" if detail else "")


_WRITERS: dict[type, Callable[[Any], Iterator[str]]] = {
    tree.Heading: _heading,
    tree.Text: _text,
    tree.Fold: _fold,
    tree.Box: _box,
    tree.Only: _only,
    tree.Items: _items,
    tree.Facts: _facts,
    tree.Findings: _findings,
    tree.Marks: _marks,
    tree.Drawing: _drawing,
    tree.Table: _table,
}


def _folded(title: str, content: Sequence[str] | Iterator[str]) -> str:
    """Content that opens at a click. title: without markup, since HTML stands around it.

    Markdown inside begins after an empty line.
    """
    return "\n\n".join([f"<details>\n<summary>{title}</summary>", *content, "</details>"])


def _line(parts: tree.Inline) -> str:
    """Parts as one line. Swatches have no text."""
    written = ""
    for part in parts:
        if isinstance(part, str):
            written += " ".join(part.split("\n")).translate(_ESCAPES)
        elif part.kind == "code":
            written += _code(part.text)
        elif part.kind == "strong":
            written += f"**{plain(part.text)}**"
        elif part.kind == "link":
            written += f"[{plain(part.text)}]({part.address})"
    return written.strip()


def _code(text: str) -> str:
    """A run key as code, without the backticks that would end it."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


def plain(text: str) -> str:
    """Text from a file as one line, with markup escaped."""
    return " ".join(text.split("\n")).translate(_ESCAPES).strip()


def _paragraph(text: str) -> str:
    """Like `plain`, at the start of a block."""
    return _BLOCK_MARKER.sub(r"\1\\\2", plain(text))

"""A page as repositories render it: GitHub-flavoured Markdown, with `<details>` for what folds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.report.formats import count
from orchestrator.report.render import tree
from orchestrator.report.render.summary import HOW_TO_OPEN
from orchestrator.report.render.tables import AT_FIRST
from orchestrator.report.verdict import Evidence

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
        yield from filter(None, _paragraphs(block))


def _paragraphs(block: tree.Block) -> Iterator[str]:
    match block:
        case tree.Heading():
            yield f"### {plain(block.text)}"
        case tree.Text():
            text = _paragraph(*block.parts)
            yield f"**{text}**" if block.kind.startswith("headline") else text
        case tree.Fold():
            yield _folded(block.title, _written(block.blocks))
        case tree.Box() | tree.Only(writer="markdown"):
            yield from _written(block.blocks)
        case tree.Items():
            folded = [f" {_code(item.more.title)}" if item.more else "" for item in block.items]
            items = zip(block.items, folded, strict=True)
            yield "\n".join(f"- {_line(item.parts)}{more}" for item, more in items)
        case tree.Facts():
            yield "\n".join(f"- {plain(fact.name)}: {plain(fact.text)}" for fact in block.facts)
        case tree.Findings():
            yield "\n".join(_finding(topic, said) for topic, of in block.topics.items() for said in of)
        case tree.Marks():
            yield _paragraph(block.summary)
            yield "\n".join(map(_mark, block.lines))
        case tree.Drawing():
            yield from _drawing(block)
        case tree.Table():
            yield from _table(block)
        case tree.Only():
            pass  # which the page shows
        case _:
            raise TypeError(f"report.md has no form for {block}")


def _finding(topic: str, said: tree.Said) -> str:
    keys = [_code(key) for runs in said.runs.values() for _, key in runs]
    if len(keys) > MAX_KEYS:
        keys = [*keys[:MAX_KEYS], f"and {len(keys) - MAX_KEYS} more"]
    runs = f"  \n  <sub>{', '.join(keys)}</sub>" if keys else ""
    target = f'<a id="{said.anchor}"></a>' if said.anchor else ""
    return f"- {target}**{topic}**: {plain(said.text)}{runs}"


def _mark(line: Evidence) -> str:
    mark = "**!**" if line.ok is False else line.mark
    more = f" ([more](#{line.anchor}))" if line.anchor else ""
    return f"- {mark} **{plain(line.topic)}** {plain(line.text)}{more}"


def _drawing(block: tree.Drawing) -> Iterator[str]:
    plot, title = block.plot, plain(block.plot.heading)
    yield f"**{title}**" + (f" – {plain(block.sentence)}" if block.sentence else "")
    yield f"![{title}](plots/{plot.name}.svg)"
    links = [f"- [{plain(timeline.name)}]({timeline.link})" for timeline in plot.timelines]
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
    detail = cell.detail if cell.detail.startswith("(") else f"({cell.detail})"
    return plain(cell.text) + (f" {plain(detail)}" if cell.detail else "")


def _folded(title: str, content: Iterable[str]) -> str:
    """Content that opens at a click. title: without markup, since HTML stands around it.

    Markdown inside begins after an empty line.
    """
    return "\n\n".join([f"<details>\n<summary>{title}</summary>", *content, "</details>"])


def _line(parts: tree.Inline) -> str:
    """Parts as one line, with markup in texts escaped. Swatches have no text."""
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
    return _line([text])


def _paragraph(*parts: str | tree.Span) -> str:
    """A line at the start of a block."""
    return _BLOCK_MARKER.sub(r"\1\\\2", _line(parts))

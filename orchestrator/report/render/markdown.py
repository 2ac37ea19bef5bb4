"""report.md: the report as repositories render it, in the order of the page.

It is GitHub-flavoured Markdown, with `<details>` for what the page folds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import ABSENT, count
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.render.chapters import FirstOfKind
from orchestrator.report.render.legend import Entry
from orchestrator.report.render.page import Page
from orchestrator.report.render.questions import Figure, Part, Question
from orchestrator.report.render.summary import HOW_TO_OPEN, STATES
from orchestrator.report.render.tables import AT_FIRST, Cell, Head, Table
from orchestrator.report.render.workloads import WorkloadNames
from orchestrator.report.verdict import Evidence, Option, Verdict

MAX_KEYS = 12  # of a finding's runs; results.csv lists all
OTHER_TABLES = {
    "memory": "Model and memory, of the rank that holds most",
    "certificates": "Certificates of the samples that nodes trained on",
    "containers": "Containers, counted by the kernel",
}
NAMED_BY = 2  # columns that say what a line of a table is about
# Characters that are markup, or that end a table cell.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{character: f"\\{character}" for character in "|[`\\$*~"}}
)
_BLOCK_MARKER = re.compile(r"^(\d*)([#+=:.)-])")  # begins a heading, a list, a table or a rule


def render(page: Page, comparison: Comparison) -> str:
    """The file's text. Figures are linked as plots/<name>.svg."""
    anchors = FirstOfKind()
    parts_of_report = [
        f"# {plain(page.record.name)}",
        _paragraph(page.record.description),
        _paragraph(" ".join(filter(None, [page.summary, page.seeds]))),
        _paragraph(page.disturbance),
        *_verdicts(page.verdicts, page.names),
        *_evidence(page.evidence),
        *(text for question in page.questions for text in _question(question, anchors)),
        *(["## Cautions", *_findings(page.cautions, anchors)] if page.cautions else []),
        *_predicted(page),
        *_published(page),
        *_results(page),
        *_strategies(page.legend),
        *_missing(comparison),
    ]
    return "\n\n".join(filter(None, parts_of_report)) + "\n"


def _verdicts(found: Sequence[Verdict], names: WorkloadNames) -> Iterator[str]:
    yield "## Verdict"
    if not found:
        yield "Nothing to compare: no strategy finished training."
    if names.shared:
        yield f"{_paragraph(names.shared)}, and:"
    for verdict in found:
        if len(found) > 1:
            yield f"### {plain(names.own[verdict.workload])}"
        yield f"**{_paragraph(verdict.headline)}**"
        yield _paragraph(verdict.certainty)
        if verdict.options:
            table = _options(verdict.options)
            yield table if len(found) == 1 else _folded("Options", [table])


def _options(options: Sequence[Option]) -> str:
    chances = any(option.chance != ABSENT for option in options)
    last = "Chance" if chances else "Sent per rank"
    titles = ("Option", "Accuracy", "Accuracy − serial", "Time", "Speedup", last)
    heads = [Head(title, number=title != "Option", first=True) for title in titles]
    lines = [
        [
            plain(f"{option.name}, {option.shape}"),
            plain(option.accuracy),
            plain(option.difference),
            plain(option.time),
            plain(option.speedup),
            plain(option.chance if chances else option.sent),
        ]
        for option in options
    ]
    return _lines_of_table(heads, lines)


def _evidence(found: Sequence[Evidence]) -> Iterator[str]:
    if found:
        yield "## What it rests on"
        yield "\n".join(
            f"- {line.mark if line.ok is not False else '**!**'} **{plain(line.topic)}** {plain(line.text)}"
            + (f" ([more](#{line.anchor}))" if line.anchor else "")
            for line in found
        )


def _question(question: Question, anchors: FirstOfKind) -> Iterator[str]:
    yield f"## {question.heading}"
    for workload, figures in question.figures:
        if len(question.figures) > 1:
            yield f"### {plain(workload)}"
        for figure in figures:
            yield from _figure(figure)
    if question.findings:
        folded = list(_findings(question.findings, anchors))
        yield _folded(count(question.finding_count, "finding"), folded)


def _figure(figure: Figure) -> Iterator[str]:
    title, sentence = plain(figure.title), plain(figure.sentence)
    yield f"**{title}**" + (f" – {sentence}" if sentence else "")
    yield f"![{title}](plots/{figure.name}.svg)"
    notes = [*filter(None, [_paragraph(figure.notes)])]
    if figure.timelines:
        notes += [HOW_TO_OPEN, "\n".join(map(_timeline, figure.timelines))]
    if notes:
        yield _folded("About this figure", notes)


def _timeline(timeline: Timeline) -> str:
    return f"- [{plain(timeline.name)}]({timeline.link})"


def _findings(found: Sequence[Part], anchors: FirstOfKind) -> Iterator[str]:
    """A list for each workload."""
    for part in found:
        if part.workload:
            yield f"### {plain(part.workload)}"
        yield "\n".join(
            _finding(finding, anchors(finding)) for findings in part.topics.values() for finding in findings
        )


def _finding(finding: Finding, anchor: str) -> str:
    keys = [_code(row.key) for row in finding.rows]
    if len(keys) > MAX_KEYS:
        keys = [*keys[:MAX_KEYS], f"and {len(keys) - MAX_KEYS} more"]
    runs = f"  \n  <sub>{', '.join(keys)}</sub>" if keys else ""
    target = f'<a id="{anchor}"></a>' if anchor else ""
    return f"- {target}**{finding.topic}**: {plain(finding.text)}{runs}"


def _predicted(page: Page) -> Iterator[str]:
    if page.predicted:
        yield "## Predictions"
        yield _paragraph(page.predicted_for)
        yield from _table(page.predicted)


def _published(page: Page) -> Iterator[str]:
    if page.published:
        yield "## Published and measured"
        yield from _table(page.published)
    elif page.record.lab:
        yield "## The published experiment"
    if page.record.lab:
        facts = [("Source", page.record.lab.source), *page.differences]
        yield "\n".join(f"- {plain(name)}: {plain(fact)}" for name, fact in facts)


def _results(page: Page) -> Iterator[str]:
    if page.chapters:
        yield "## Results"
        yield "One line per configuration: the mean over seeds, with the range over seeds in parentheses."
    for chapter in page.chapters:
        yield f"### {plain(chapter.heading)}"
        yield from filter(None, [_paragraph(chapter.conditions)])
        yield from _table(chapter.results)
        for name, table in chapter.others.items():
            yield _folded(OTHER_TABLES[name], _table(table))
    if page.fault_costs:
        yield "## What faults cost"
        yield from _table(page.fault_costs)
    if page.times:
        yield f"{_paragraph(page.times)}."


def _strategies(entries: Sequence[Entry]) -> Iterator[str]:
    if entries:
        yield "## Strategies"
        yield "\n".join(
            f"- {_code(entry.name)}: {plain(entry.summary)} {_code(entry.file)}" for entry in entries
        )


def _missing(comparison: Comparison) -> Iterator[str]:
    lines = [
        f"- {_code(row.key)} {STATES[row.status]}: {plain(row.cause or '')}"
        + (f" (log: {_code(row.log)})" if row.log else "")
        for row in comparison.failed
    ]
    for key in comparison.pending:
        why = comparison.unusable.get(key, "")
        state = f"{STATES['unusable']}: {plain(why)}" if why else STATES["pending"]
        lines.append(f"- {_code(key)} {state}")
    if lines:
        yield "## Failed and pending runs"
        yield "\n".join(lines)


def _table(table: Table) -> Iterator[str]:
    """The first columns, and folded the others: each table has few enough to be read without scrolling."""
    first = [number for number, head in enumerate(table.heads) if head.first]
    yield _columns_of_table(table, first)
    named, others = first[:NAMED_BY], [n for n, head in enumerate(table.heads) if not head.first]
    width = AT_FIRST - len(named)
    tables = [
        _columns_of_table(table, [*named, *others[start : start + width]])
        for start in range(0, len(others), width)
    ]
    if tables:
        yield _folded(count(len(others), "more column"), tables)


def _columns_of_table(table: Table, columns: Sequence[int]) -> str:
    lines = [[_cell(line.cells[number]) for number in columns] for line in table.lines]
    return _lines_of_table([table.heads[number] for number in columns], lines)


def _lines_of_table(heads: Sequence[Head], lines: Sequence[Sequence[str]]) -> str:
    """A table of escaped cells."""
    rule = ["--:" if head.number else "---" for head in heads]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[head.title for head in heads], rule, *lines])


def _cell(cell: Cell) -> str:
    return plain(cell.text) + (f" ({plain(cell.detail)})" if cell.detail else "")


def _folded(title: str, content: Sequence[str] | Iterator[str]) -> str:
    """Content that opens at a click. title: without markup, since HTML stands around it.

    Markdown inside begins after an empty line.
    """
    return "\n\n".join([f"<details>\n<summary>{title}</summary>", *content, "</details>"])


def _code(text: str) -> str:
    """A run key as code, without the backticks that would end it."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


def plain(text: str) -> str:
    """Text from a file as one line, with markup escaped."""
    return " ".join(text.split("\n")).translate(_ESCAPES).strip()


def _paragraph(text: str) -> str:
    """Like `plain`, at the start of a block."""
    return _BLOCK_MARKER.sub(r"\1\\\2", plain(text))

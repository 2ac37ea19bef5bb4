"""Mistakes in report.md: its order, tables and links as a renderer reads them, and text that becomes
markup."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orchestrator.report.findings.base import QUESTIONS
from orchestrator.report.render.chapters import chapters_of
from orchestrator.report.render.markdown import plain
from orchestrator.report.render.tables import AT_FIRST
from orchestrator.report.topics import asked_by
from tests.unit.orchestrator.report.test_report_golden import golden
from tests.unit.report_support import FAST, SERIAL, a_comparison, a_run, text_of, write_page

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
EVIL = (
    "# one\n- two <script>x</script> ![three](http://four) [five](six) | seven `eight` *nine* $ten$ "
    "~~eleven~~ &amp;"
)


def headings(text: str, level: str = "h2") -> list[str]:
    tokens = pairwise(RENDERER.parse(text))
    return [after.content for token, after in tokens if (token.type, token.tag) == ("heading_open", level)]


def tables(tokens: list[Token]) -> list[list[int]]:
    """The number of cells in each line of each table."""
    found: list[list[int]] = []
    for token in tokens:
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append(0)
        elif token.type in ("th_open", "td_open"):
            found[-1][-1] += 1
    return found


@pytest.mark.slow
def test_sections_are_in_the_order_of_the_page() -> None:
    found = headings(golden().markdown)
    asked = [heading for heading in QUESTIONS.values() if heading in found]
    after = ["Predictions", "Published and measured", "Results", "What faults cost", "Strategies"]
    assert len(asked) > 5
    assert found == ["Verdict", "What it rests on", *asked, "Cautions", *after, "Failed and pending runs"]


def test_every_table_is_parsed_and_narrow_and_no_column_is_lost() -> None:
    text = golden().markdown
    tokens = RENDERER.parse(text)
    found = tables(tokens)
    heads = re.findall(r"(?m)^\| (.+) \|\n\| [-:| ]+\|$", text)
    assert len(found) == len(heads)
    for lines in found:
        assert (len(lines) > 1, len({*lines})) == (True, 1)
        assert 1 < lines[0] <= AT_FIRST
    assert not [
        token for token in tokens if token.type == "inline" and re.search(r"(?m)^\|", token.content)
    ]
    comparison = golden().comparison
    for chapter in chapters_of(comparison, asked_by(comparison).decided()):
        section = text[text.rindex(f"\n### {plain(chapter.heading)}\n") :]
        section = section[: re.search(r"\n##+ ", section[1:]).start()]  # type: ignore[union-attr]
        shown = {
            title
            for line in re.findall(r"(?m)^\| (.+) \|\n\| [-:| ]+\|$", section)
            for title in line.split(" | ")
        }
        parts = [chapter.results, chapter.partitioned, chapter.certified, chapter.contained]
        assert {head.title for table in parts if table for head in table.heads} == shown


def test_figures_and_links_have_targets_and_what_is_folded_is_markdown() -> None:
    text, plots = golden().markdown, golden().plots
    assert sorted(re.findall(r"\]\(plots/(.+?)\.svg\)", text)) == sorted(plot.name for plot in plots)
    assert len(re.findall(r"(?m)^\*\*.+\n\n!\[", text)) == len(plots)
    targets = re.findall(r'<a id="([^"]+)"></a>', text)
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(targets)
    assert len(targets) == len({*targets}) > 5
    blocks = [token.content for token in RENDERER.parse(text) if token.type == "html_block"]
    assert text.count("<details>") == text.count("</details>") == blocks.count("</details>\n") > 5
    for block in blocks:
        assert re.fullmatch(r"<details>\n<summary>[^<*|`]+</summary>\n|</details>\n", block)


@pytest.mark.slow
def test_text_from_files_is_no_markup(tmp_path: Path) -> None:
    failed = a_run("ddp", nodes=2, status="failed", cause=EVIL)
    paths = write_page(tmp_path, SERIAL, FAST, failed, name=EVIL, description=EVIL, pending=["a-`key`"])
    harmless = failed.model_copy(update={"cause": "a b"})
    plain_paths = write_page(tmp_path / "other", SERIAL, FAST, harmless, pending=["a-key"])
    text, expected = paths.markdown.read_text(), plain_paths.markdown.read_text()
    assert headings(text) == headings(expected)
    assert len(headings(text, "h1")) == 1
    page, known = RENDERER.render(text), RENDERER.render(expected)
    for markup in ("<script", "<img", "<a ", "<em", "<li", "<s>", "<code", "<td", "<b>"):
        assert page.count(markup) == known.count(markup), markup
    assert page.count("&amp;amp;") == 4  # as it was written
    assert "- `a-key` pending" in text
    assert re.search(r"\$", re.sub(r"\\\$", "", text)) is None  # a formula, to some renderers


def test_text_from_files_begins_no_block() -> None:
    for start in ("#", "-", "+", "1.", "2)", "===", ":"):
        comparison = a_comparison(SERIAL, description=f"{start} text")
        tokens = RENDERER.parse(text_of(comparison, [], []))
        (at,) = [
            at
            for at, token in enumerate(tokens)
            if token.type == "inline" and token.content.endswith("text")
        ]
        assert tokens[at - 1].type == "paragraph_open"
        assert "".join(child.content for child in tokens[at].children or []) == f"{start} text"

"""report.md, as a renderer of GitHub-flavoured Markdown reads it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orchestrator.report.findings.base import QUESTIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.plots import Plot, draw
from orchestrator.report.render.chapters import chapters_of
from orchestrator.report.render.tables import AT_FIRST
from orchestrator.report.topics import asked_by, find
from tests.unit.orchestrator.report.test_report_golden import golden_comparison
from tests.unit.report_support import FAST, SERIAL, a_run, text_of, unrendered_figures, write_page

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
EVIL = (
    "# one\n- two <script>x</script> ![three](http://four) [five](six) | seven `eight` *nine* $ten$ "
    "~~eleven~~"
)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return golden_comparison()


@pytest.fixture(scope="module")
def plots(comparison: Comparison) -> list[Plot]:
    with unrendered_figures():
        return draw(comparison)


@pytest.fixture(scope="module")
def text(comparison: Comparison, plots: list[Plot]) -> str:
    return text_of(comparison, find(comparison), plots)


def headings(text: str, level: str = "h2") -> list[str]:
    tokens = RENDERER.parse(text)
    return [
        after.content
        for token, after in pairwise(tokens)
        if token.type == "heading_open" and token.tag == level
    ]


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
def test_sections_are_in_the_order_of_the_page(text: str) -> None:
    found = headings(text)
    asked = [heading for heading in QUESTIONS.values() if heading in found]
    assert len(asked) > 5
    assert found[: len(asked) + 3] == ["Verdict", "What it rests on", *asked, "Cautions"]
    assert found[len(asked) + 3 :] == [
        "Predictions",
        "Published and measured",
        "Results",
        "What faults cost",
        "Strategies",
        "Failed and pending runs",
    ]


def test_every_table_is_parsed_and_narrow(text: str) -> None:
    tokens = RENDERER.parse(text)
    found = tables(tokens)
    assert len(found) == len(re.findall(r"(?m)^\| [-:| ]+\|$", text))
    for lines in found:
        assert len(lines) > 1
        assert len(set(lines)) == 1
        assert 1 < lines[0] <= AT_FIRST
    outside = [token.content for token in tokens if token.type == "inline"]
    assert not [content for content in outside if re.search(r"(?m)^\|", content)]


def test_columns_beyond_the_first_are_folded_and_none_is_lost(comparison: Comparison, text: str) -> None:
    shown = re.findall(r"(?m)^\| (.+) \|\n\| [-:| ]+\|$", text)
    titles = {title for line in shown for title in line.split(" | ")}
    for chapter in chapters_of(comparison, asked_by(comparison).decided()):
        for table in filter(
            None, [chapter.results, chapter.partitioned, chapter.certified, chapter.contained]
        ):
            assert {head.title for head in table.heads} <= titles


def test_every_figure_is_linked_once_below_its_title(text: str, plots: list[Plot]) -> None:
    assert sorted(re.findall(r"\]\(plots/(.+?)\.svg\)", text)) == sorted(plot.name for plot in plots)
    above = re.findall(r"(?m)^\*\*.+\n\n!\[", text)
    assert len(above) == len(plots)


def test_what_is_folded_is_rendered_as_markdown(text: str) -> None:
    blocks = [token.content for token in RENDERER.parse(text) if token.type == "html_block"]
    assert text.count("<details>") == text.count("</details>") == blocks.count("</details>\n") > 5
    for block in blocks:
        assert re.fullmatch(r"<details>\n<summary>[^<*|`]+</summary>\n|</details>\n", block)


def test_links_inside_the_report_have_a_target(text: str) -> None:
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    targets = re.findall(r'<a id="([^"]+)"></a>', text)
    assert links
    assert links <= set(targets)
    assert len(targets) == len(set(targets))


@pytest.mark.slow
def test_text_from_files_is_no_markup(tmp_path: Path) -> None:
    failed = a_run("ddp", nodes=2, status="failed", cause=EVIL)
    paths = write_page(tmp_path, SERIAL, FAST, failed, name=EVIL, description=EVIL)
    harmless = write_page(tmp_path / "other", SERIAL, FAST, failed.model_copy(update={"cause": "a b"}))
    text, expected = paths.markdown.read_text(), harmless.markdown.read_text()
    assert headings(text) == headings(expected)
    assert len(headings(text, "h1")) == 1
    page, plain = RENDERER.render(text), RENDERER.render(expected)
    for markup in ("<script", "<img", "<a ", "<em", "<li", "<s>", "<code", "<td"):
        assert page.count(markup) == plain.count(markup), markup
    assert re.search(r"\$", re.sub(r"\\\$", "", text)) is None  # a formula, to some renderers


@pytest.mark.parametrize("start", ["#", "-", "+", "1.", "2)", "===", ":"])
def test_text_from_files_begins_no_block(start: str, tmp_path: Path) -> None:
    paths = write_page(tmp_path, SERIAL, description=f"{start} text")
    tokens = RENDERER.parse(paths.markdown.read_text())
    (description,) = [
        token for token in tokens if token.type == "inline" and token.content.endswith("text")
    ]
    assert tokens[tokens.index(description) - 1].type == "paragraph_open"
    assert "".join(child.content for child in description.children or []) == f"{start} text"

"""Mistakes of the page's tables: sorting, columns that are folded, filters, fragments that keep a view."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.reader import TIMEOUT_MS, Reader

expect.set_options(timeout=TIMEOUT_MS)

FIRST_COLUMNS = 6
# The values of a column, top to bottom: a number, the text if the column has no numbers, or null.
VALUES = """(table, column) => [...table.tBodies[0].rows].map(row => {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1 || cell.textContent === "–") return null;
    return cell.dataset.value ? Number(cell.dataset.value) : cell.textContent;
})"""
LINES = "table => [...table.tBodies[0].rows].map(row => row.textContent)"


@pytest.mark.parametrize("table", ["#results table[data-sortable]", "#runs table[data-sortable]"])
def test_sorting(table: str, reader: Reader, small_report: Path) -> None:
    check_sorting(reader.open(small_report).locator(table).first)


def test_lines_without_a_value_stay_last(reader: Reader, hostile_report: Path) -> None:
    runs = reader.open(hostile_report).locator("#runs details.table > .wide > table")
    assert runs.locator("td.cause").count() > 1
    assert check_sorting(runs) > 0


def check_sorting(table: Locator) -> int:
    """Sort by every column that has numbers, both ways. Returns how many of them lack a value somewhere."""
    fold = table.locator("xpath=../preceding-sibling::*[1][contains(@class, 'all-columns')]")
    if fold.count():
        fold.click()
    written = table.evaluate(LINES)
    heads = table.locator("thead th")
    checked = incomplete = 0
    for column in range(heads.count()):
        values = table.evaluate(VALUES, column)
        known = [value for value in values if value is not None]
        if len(set(known)) < 2 or not all(isinstance(value, int | float) for value in known):
            continue
        checked += 1
        incomplete += len(known) < len(values)
        missing = [None] * (len(values) - len(known))
        head = heads.nth(column)
        for direction, order in (("ascending", sorted(known)), ("descending", sorted(known, reverse=True))):
            head.locator("button.sort").click()
            expect(head).to_have_attribute("aria-sort", direction)
            assert table.evaluate(VALUES, column) == order + missing
            assert table.locator("th[aria-sort]").count() == 1
        head.locator("button.sort").click()
        expect(table.locator("th[aria-sort]")).to_have_count(0)
        assert table.evaluate(LINES) == written
    assert checked > 0
    return incomplete


def test_columns_are_folded(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    button = page.locator("#results button.all-columns").first
    heads = page.locator("#results table[data-sortable]").first.locator("thead th")
    shown = heads.locator("visible=true")
    assert shown.count() == FIRST_COLUMNS < heads.count()
    for count, expanded in ((FIRST_COLUMNS, "false"), (heads.count(), "true"), (FIRST_COLUMNS, "false")):
        expect(shown).to_have_count(count)
        expect(button).to_have_attribute("aria-expanded", expanded)
        button.click()


def test_filter_and_the_url_that_keeps_it(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    assert shown(page, "nodes") == {"1", "2", "3"}
    page.locator("select[data-filter=nodes]").select_option("2")
    assert shown(page, "nodes") == {"2"}
    assert fragment(page) == {"nodes": ["2"]}
    page.reload()
    assert shown(page, "nodes") == {"2"}
    sent = reader.open(small_report, "#" + page.url.partition("#")[2])
    assert shown(sent, "nodes") == {"2"}
    assert sent.locator("select[data-filter=nodes]").input_value() == "2"
    sent.locator("#tools .reset").click()
    assert shown(sent, "nodes") == {"1", "2", "3"}
    assert fragment(sent) == {}


def test_chip_and_the_url_that_keeps_it(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    series = shown(page, "series")
    chip = page.locator("#tools button[data-series]").last
    name = chip.get_attribute("data-series")
    assert name in series
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "false")
    assert shown(page, "series") == series - {name}
    assert fragment(page) == {"hide": [name]}
    page.reload()
    expect(chip).to_have_attribute("aria-pressed", "false")
    assert shown(page, "series") == series - {name}
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    assert shown(page, "series") == series
    assert fragment(page) == {}


def test_fragments_that_are_no_view_change_nothing(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    everything = shown(page, "series")
    for given in ("hide=absent&nodes=99&other=1", "%", "<img src=x onerror=alert(1)>", "=&&="):
        page.evaluate("given => { location.hash = given }", given)
        page.reload()
        assert shown(page, "series") == everything


def test_link_to_a_run_opens_its_section(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    link = page.locator("#runs details.table tbody a").first
    link.click()
    key = (link.get_attribute("href") or "").removeprefix("#")
    run = page.locator(f"details.run[id='{key}']")
    expect(run).to_have_attribute("open", "")
    expect(run).to_be_in_viewport()
    for part in ("pre", "table.epochs", "table.phases"):
        expect(run.locator(part).first).to_be_visible()
    assert run.locator("table.phases tbody tr").count() > 0
    assert "python -m orchestrator sweep" in (run.locator("pre").text_content() or "")
    expect(run.get_by_text("Certificate", exact=True)).to_be_visible()


def shown(page: Page, field: str) -> set[str]:
    """The different values of a field in the lines of tables and the sections of runs that are shown."""
    return set(
        page.eval_on_selector_all(
            f"tr[data-{field}], details.run[data-{field}]",
            "(found, field) => found.filter(each => !each.hidden).map(each => each.dataset[field])",
            field,
        )
    )


def fragment(page: Page) -> dict[str, list[str]]:
    return parse_qs(page.url.partition("#")[2])

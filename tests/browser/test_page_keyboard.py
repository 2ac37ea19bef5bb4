"""Mistakes of the page that its readers without a mouse meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.reader import TIMEOUT_MS, Reader, unfold

expect.set_options(timeout=TIMEOUT_MS)

FOCUSED = """kinds => {
    const at = document.activeElement;
    return kinds.filter(kind => at.matches(kind));
}"""


@pytest.fixture
def page(reader: Reader, small_report: Path) -> Page:
    return reader.open(small_report)


def test_tab_reaches_everything_that_can_be_used(page: Page) -> None:
    wanted = {"#tools button[data-series]", "#tools select", "th button.sort", "a.term", "summary", "nav a"}
    wanted |= {".wide[tabindex]", "button.all-columns"}
    focusable = page.locator("a, button, select, summary, [tabindex]").count()
    for _ in range(focusable):
        page.keyboard.press("Tab")
        wanted -= set(page.evaluate(FOCUSED, list(wanted)))
        if not wanted:
            break
    assert wanted == set()


@pytest.mark.parametrize("width", [1280, 400])
def test_what_scrolls_can_be_focused(width: int, reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report, width=width)
    unfold(page)
    unreachable = page.eval_on_selector_all(
        "body *",
        """found => found.filter(each => {
            const overflow = getComputedStyle(each).overflowX;
            const scrolls = ["auto", "scroll"].includes(overflow) && each.scrollWidth > each.clientWidth;
            if (!scrolls) return false;
            return each.tabIndex < 0 && !each.querySelector("a, button, select, [tabindex='0']");
        }).map(each => each.outerHTML.slice(0, 150))""",
    )
    assert unreachable == []


@pytest.mark.parametrize("selector", ["main a.term", "th button.sort.term"])
def test_terms_are_explained_at_the_focus_and_under_the_pointer(selector: str, page: Page) -> None:
    term = page.locator(f"{selector}:visible").first
    definition = page.locator(f"[id='{term.get_attribute('aria-describedby')}']").text_content()
    assert definition
    tooltip = page.locator("#tooltip")
    term.focus()
    expect(tooltip).to_be_visible()
    expect(tooltip).to_have_text(definition)
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden()
    term.hover()
    expect(tooltip).to_be_visible()
    page.mouse.move(0, 0)
    expect(tooltip).to_be_hidden()


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_chips_and_heads_of_columns_are_buttons(key: str, page: Page) -> None:
    chip = page.locator("#tools button[data-series]").first
    for pressed in ("false", "true"):
        chip.press(key)
        expect(chip).to_have_attribute("aria-pressed", pressed)
    head = page.locator("#results thead th:visible").last
    for direction in ("ascending", "descending"):
        head.locator("button.sort").press(key)
        expect(head).to_have_attribute("aria-sort", direction)

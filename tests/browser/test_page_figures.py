"""Mistakes of interactive figures: when they replace the static ones, tooltips, scales and series."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.reader import TIMEOUT_MS, Reader

expect.set_options(timeout=TIMEOUT_MS)

# Vega's SVG renderer binds items of its scene to elements.
SERIES = """figure => [...new Set([...figure.querySelectorAll(".drawing path, .drawing text")]
    .map(each => each.__data__?.datum?.series).filter(Boolean))].sort()"""
TICKS = """figure => [...figure.querySelectorAll(".drawing .role-axis-label text")]
    .map(each => [each.textContent, each.getAttribute("transform")])"""


@pytest.fixture
def page(reader: Reader, small_report: Path) -> Page:
    return reader.open(small_report)


def drawn(figure: Locator) -> Locator:
    """The figure, once it is interactive."""
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".drawing > div svg.marks")).to_be_visible()
    return figure


def specs(page: Page) -> dict[str, dict[str, Any]]:
    packed = page.locator("script#figures").text_content() or ""
    return json.loads(gzip.decompress(base64.b64decode(packed)))["figures"]


def figure_with(page: Page, **fields: Any) -> Locator:
    """The first figure of which the page's data say this, and whose series can be hidden."""
    for name, figure in specs(page).items():
        params = [param["name"] for param in figure["spec"].get("params", ())]
        if "hidden" in params and all(figure.get(key) == value for key, value in fields.items()):
            return page.locator(f"figure[data-figure='{name}']")
    raise AssertionError("no such figure")


def figures(page: Page) -> list[Locator]:
    """The figures that can become interactive, top to bottom."""
    all_names = "all => all.map(each => each.dataset.figure)"
    names, known = page.locator("figure[data-figure]").evaluate_all(all_names), specs(page)
    return [page.locator(f"figure[data-figure='{name}']") for name in names if name in known]


def test_figures_become_interactive_near_the_window(page: Page) -> None:
    last = figures(page)[-1]
    assert last.locator(".drawing > svg").count() == 1
    assert last.locator(".drawing > div").count() == 0
    drawn(last)
    assert last.locator(".drawing > svg").count() == 0


def test_interactive_figures_keep_label_and_size(reader: Reader, golden_report: Path) -> None:
    page = reader.open(golden_report)
    for figure in figures(page):
        static = figure.locator(".drawing > [role=img]")
        label, before = static.get_attribute("aria-label"), static.bounding_box()
        assert label
        image = drawn(figure).locator(".drawing [role=img]")
        expect(image).to_have_count(1)
        expect(image).to_have_attribute("aria-label", label)
        after = figure.locator(".drawing svg.marks").bounding_box()
        assert before
        assert after
        assert after["height"] == pytest.approx(before["height"], rel=0.5)
        assert figure.locator(".drawing path").count() > 0


def test_tooltip_shows_the_value_under_the_pointer(page: Page) -> None:
    figure = drawn(figure_with(page, log="y"))
    marks = figure.locator(".drawing .mark-symbol path")
    assert marks.count() > 0
    mark = marks.first
    mark.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    expect(tooltip).to_be_visible()
    # The table below the figure has the same values.
    values = tooltip.locator("td.value").all_text_contents()
    assert len(values) > 1
    lines = figure.locator("figcaption table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert any(set(values) <= set(line) for line in lines)


def test_the_scale_can_be_switched(page: Page) -> None:
    figure = drawn(figure_with(page, log="y"))
    button = figure.locator("button.scale")
    before = figure.evaluate(TICKS)
    state = button.get_attribute("aria-pressed") or ""
    other = {"true": "false", "false": "true"}[state]
    for pressed, sign in ((other, "!"), (state, "=")):
        button.click()
        expect(button).to_have_attribute("aria-pressed", pressed)
        page.wait_for_function(
            f"([figure, before]) => JSON.stringify(({TICKS})(figure)) {sign}== before",
            arg=[figure.element_handle(), page.evaluate("JSON.stringify", before)],
        )
        assert len(figure.evaluate(TICKS)) > 2


def test_chips_hide_series_in_figures_also_in_those_that_become_interactive_later(
    page: Page, reader: Reader, small_report: Path
) -> None:
    figure = drawn(figure_with(page))
    before = figure.evaluate(SERIES)
    chip = page.locator("#tools button[data-series]").last
    name = chip.get_attribute("data-series") or ""
    left = [each for each in before if each != name and not each.startswith(f"{name} · ")]
    assert 0 < len(left) < len(before)
    chip.click()
    wait_for_series(figure, left)
    sent = reader.open(small_report, "#" + page.url.partition("#")[2])
    wait_for_series(drawn(figure_with(sent)), left)
    chip.click()
    wait_for_series(figure, before)


def test_dark_figures_have_light_text(reader: Reader, small_report: Path) -> None:
    for scheme, least, most in (("light", 0, 381), ("dark", 382, 765)):
        page = reader.open(small_report, color_scheme=scheme)
        label = drawn(figure_with(page)).locator(".role-axis-label text").first
        fill = label.evaluate("each => getComputedStyle(each).fill")
        assert least <= sum(map(int, re.findall(r"\d+", fill)[:3])) <= most


def wait_for_series(figure: Locator, series: list[str]) -> None:
    figure.page.wait_for_function(
        f"([figure, series]) => JSON.stringify(({SERIES})(figure)) === JSON.stringify(series)",
        arg=[figure.element_handle(), series],
    )


def test_panels_stand_below_each_other_on_a_narrow_page(reader: Reader, golden_report: Path) -> None:
    pages = [reader.open(golden_report, width=width) for width in (1280, 768)]
    for kind in ("strategies", "timelines", "stragglers", "labels"):
        heights = []
        for page in pages:
            figure = page.locator(f"figure[data-figure^='{kind}']").first
            figure.scroll_into_view_if_needed()
            expect(figure.locator("svg.marks")).to_be_visible()
            drawing = figure.locator(".drawing")
            assert drawing.evaluate("box => box.scrollWidth <= box.clientWidth")
            heights.append(drawing.evaluate("box => box.clientHeight"))
        assert heights[1] >= heights[0]

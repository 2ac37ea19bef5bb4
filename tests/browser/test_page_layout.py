"""Mistakes of the page: what overflows, what needs scripts, what axe-core objects to, markup from files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import EVIL
from tests.browser.reader import Reader, unfold
from tests.support.nightly import nightly

PAPER = 688  # pixels between the margins of A4
OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = element => ["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX);
    const clipped = element => {
        for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
            if (scrolls(at)) return true;
        return false;
    };
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.body.querySelectorAll("*")]
        .filter(each => each.getBoundingClientRect().right > width + 1 && !clipped(each))
        .map(each => each.outerHTML.slice(0, 150));
}"""

both_reports = pytest.mark.parametrize("name", ["golden_report", "small_report"])


# Not of the golden report, which has the figures of 21 workloads.
def test_size(small_report: Path) -> None:
    assert small_report.stat().st_size < 3e6


@both_reports
def test_nothing_overflows_the_window(name: str, reader: Reader, request: pytest.FixtureRequest) -> None:
    page = reader.open(request.getfixturevalue(name))
    for width in (1280, 768, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(OVERFLOWING) == []


def test_verdict_and_evidence_are_on_the_first_screen(reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report)
    for part in ("#verdict", "#evidence"):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["height"] > 0
        assert box["y"] + box["height"] <= 800


@both_reports
def test_the_page_is_complete_without_scripts(
    name: str, reader: Reader, request: pytest.FixtureRequest
) -> None:
    page = reader.open(request.getfixturevalue(name), scripts=False)
    assert page.locator("#verdict .headline").first.is_visible()
    page.locator("#evidence summary").click()
    assert page.locator("#evidence li").first.is_visible()
    figures, tables = page.locator("figure[data-figure]"), page.locator("table[data-sortable]")
    assert figures.count() > 0
    assert visible(page, "figure[data-figure] .drawing > svg") == figures.count()
    assert tables.count() > 0
    for folded in page.locator("details.table").all():
        if folded.get_attribute("open") is None:
            folded.locator("> summary").click()
    assert visible(page, "table[data-sortable]") == tables.count()
    heads = "table[data-sortable] thead th"
    assert visible(page, heads) == page.locator(heads).count()
    assert page.locator("#tools:visible").count() == 0
    assert page.locator("button:visible").count() == 0


@both_reports
def test_print(name: str, reader: Reader, request: pytest.FixtureRequest) -> None:
    page = reader.open(request.getfixturevalue(name), width=PAPER)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(OVERFLOWING) == []
    assert page.locator("#tools").is_hidden()
    assert page.locator("button.scale:visible, button.all-columns:visible").count() == 0
    assert visible(page, "#glossary dt") == page.locator("#glossary dt").count() > 0
    numbers = page.eval_on_selector_all(
        "a.term, button.term", "terms => terms.map(each => getComputedStyle(each, '::after').content)"
    )
    assert numbers
    assert all(number.strip('"').isdigit() for number in numbers)
    assert page.pdf(format="A4", prefer_css_page_size=True).startswith(b"%PDF")


def test_colours_follow_the_system(reader: Reader, small_report: Path) -> None:
    paper, ink = colours(reader.open(small_report, color_scheme="light"))
    assert paper > ink
    paper, ink = colours(reader.open(small_report, color_scheme="dark"))
    assert paper < ink


def colours(page: Page) -> list[int]:
    """How bright the background and the text are: the sums of their channels."""
    style = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    return [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in page.evaluate(style)]


def visible(page: Page, selector: str) -> int:
    """How many of the elements that match are visible."""
    return page.eval_on_selector_all(selector, "all => all.filter(each => each.checkVisibility()).length")


@pytest.mark.parametrize(
    ("name", "unfolded", "scheme", "width"),
    [
        ("small_report", "", "light", 1280),
        ("small_report", "details", "dark", 400),
        # Axe takes as long on this page as on the small one four times.
        *nightly(("golden_report", "details:not(.run, figcaption details)", "dark", 400)),
    ],
)
def test_axe(
    name: str, unfolded: str, scheme: str, width: int, reader: Reader, request: pytest.FixtureRequest
) -> None:
    page = reader.open(request.getfixturevalue(name), width=width, color_scheme=scheme)
    unfold(page, unfolded)
    found = Axe().run(page, context={"exclude": [["[role=img] > *"]]})  # a figure is one image with a label
    assert found.violations_count == 0, found.generate_report()


def test_markup_from_files_is_text(reader: Reader, hostile_report: Path, small_report: Path) -> None:
    page = reader.open(hostile_report)
    assert page.locator("h1").text_content() == EVIL
    assert page.title().startswith(EVIL)
    page.eval_on_selector_all("details", "found => found.forEach(each => { each.open = true })")
    assert page.locator("#runs .cause").first.is_visible()
    assert page.locator("img, iframe, object, embed").count() == 0
    assert scripts(page) == scripts(reader.open(small_report))
    handlers = page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap(each => [...each.attributes])
            .map(each => each.name).filter(name => name.startsWith("on"))"""
    )
    assert handlers == []
    sent = reader.open(hostile_report, "#hide=</script><img src=x onerror=alert(1)>")
    assert sent.locator("#verdict").is_visible()
    assert sent.locator("img").count() == 0


def scripts(page: Page) -> list[tuple[str, str]]:
    """The scripts of the file, without those that draw figures."""
    return page.eval_on_selector_all(
        "script", "found => found.map(each => [each.id, each.type]).filter(([id, type]) => id || type)"
    )

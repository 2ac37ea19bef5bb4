"""axe-core finds nothing to object to in the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.reader import Reader

# A figure is one image with a label.
PARTS = {"exclude": [["[role=img] > *"]]}


@pytest.mark.parametrize(("unfolded", "scheme", "width"), [("", "light", 1280), ("details", "dark", 400)])
def test_axe(unfolded: str, scheme: str, width: int, reader: Reader, small_report: Path) -> None:
    page = reader.open(small_report, width=width, color_scheme=scheme)
    unfold(page, unfolded)
    check(page)


# Once, since axe takes as long on this page as on the small one four times.
def test_axe_on_every_table_and_figure(reader: Reader, golden_report: Path) -> None:
    page = reader.open(golden_report, width=400, color_scheme="dark")
    unfold(page, "details:not(.run, figcaption details)")
    check(page)


def unfold(page: Page, selector: str) -> None:
    """Open what is folded, and wait for the figures that are drawn when they come into view."""
    if selector:
        page.eval_on_selector_all(selector, "found => found.forEach(each => { each.open = true })")
    page.wait_for_function("!document.querySelector('.coming')")


def check(page: Page) -> None:
    found = Axe().run(page, context=PARTS)
    assert found.violations_count == 0, found.generate_report()

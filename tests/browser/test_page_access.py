"""axe-core finds nothing to object to in the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.reader import Reader


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("unfolded", [False, True], ids=["folded", "unfolded"])
@pytest.mark.parametrize("report", ["golden_report", "small_report"])
def test_axe(
    report: str, unfolded: bool, scheme: str, width: int, reader: Reader, request: pytest.FixtureRequest
) -> None:
    page = reader.open(request.getfixturevalue(report), width=width, color_scheme=scheme)
    if unfolded:
        unfold(page)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def unfold(page: Page) -> None:
    """Open all that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")

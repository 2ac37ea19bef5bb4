"""The page fits windows of three widths and paper, and stands without scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.reader import Reader

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("width", [1280, 768, 400])
@pytest.mark.parametrize("report", ["golden_report", "small_report"])
def test_nothing_overflows_the_window(
    report: str, width: int, reader: Reader, request: pytest.FixtureRequest
) -> None:
    page = reader.open(request.getfixturevalue(report), width=width)
    assert page.evaluate(OVERFLOW) == 0


@pytest.mark.parametrize("report", ["golden_report", "small_report"])
def test_size(report: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(report).stat().st_size < 3e6

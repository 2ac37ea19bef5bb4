"""Markup in names, causes and settings is text on the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.browser.conftest import EVIL
from tests.browser.reader import Reader


def test_markup_from_files_is_text(reader: Reader, hostile_report: Path, small_report: Path) -> None:
    page = reader.open(hostile_report)
    assert page.locator("h1").text_content() == EVIL
    assert page.title().startswith(EVIL)
    page.eval_on_selector_all("details", "found => found.forEach(each => { each.open = true })")
    assert page.locator("#runs .cause").first.is_visible()
    assert page.locator("img, iframe, object, embed").count() == 0
    assert scripts(page) == scripts(reader.open(small_report))
    assert handlers(page) == []


def test_markup_in_the_fragment_is_ignored(reader: Reader, hostile_report: Path) -> None:
    for fragment in ("#hide=</script><img src=x onerror=alert(1)>", "#at=<img src=x onerror=alert(1)>"):
        page = reader.open(hostile_report, fragment)
        assert page.locator("#verdict").is_visible()
        assert page.locator("img").count() == 0


def scripts(page: Page) -> list[tuple[str, str]]:
    """The scripts of the file, without those that draw figures."""
    return page.eval_on_selector_all(
        "script", "found => found.map(each => [each.id, each.type]).filter(([id, type]) => id || type)"
    )


def handlers(page: Page) -> list[str]:
    return page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap(each => [...each.attributes])
            .map(each => each.name).filter(name => name.startsWith("on"))"""
    )

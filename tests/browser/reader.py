"""A reader of reports: opens them in a browser, and records what a page must not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

TIMEOUT_MS = 45_000  # of each wait, for a machine that other tests keep busy


class Reader:
    """Opens reports. complaints: errors in the console, dialogs, and requests other than for the report."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def open(
        self,
        report: Path,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        scripts: bool = True,
        **options: Any,
    ) -> Page:
        """Open a report in a window of its own, without network.

        Args:
            fragment: of the URL, with its #.
            options: as of playwright's `new_context`.
        """
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=scripts, **options
        )
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)

        def decide(route: Route) -> None:
            url = route.request.url
            if url.partition("#")[0] == report.as_uri():
                route.continue_()
            else:
                self.complaints.append(f"request for {url}")
                route.abort()

        context.route("**/*", decide)
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        page.goto(report.as_uri() + fragment)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console: {message.text}")


def unfold(page: Page, selector: str = "details") -> None:
    """Open what is folded, and wait for the figures that are drawn when they come into view."""
    if selector:
        page.eval_on_selector_all(selector, "found => found.forEach(each => { each.open = true })")
    page.wait_for_function("!document.querySelector('.coming')")

"""`make screenshot`: the first screen of a report, for the README.

python -m tests.browser.screenshot DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from orchestrator.commands import doctor
from tests.support.command_line import PROJECT

FILE = PROJECT / "docs" / "report.png"
SCREEN = {"width": 1280, "height": 800}


def main(directory: str) -> None:
    path = doctor.chromium()
    if path is None:
        raise SystemExit(f"no screenshot: {doctor.browser().detail}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport=SCREEN)
        page.goto((Path(directory) / "report.html").resolve().as_uri())
        page.screenshot(path=FILE)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Mistakes of the page that follows a sweep, in a browser, while the sweep runs."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from orchestrator.results.store import SweepPaths
from orchestrator.watch.server import serve
from tests.browser.reader import TIMEOUT_MS
from tests.support.command_line import Running, orchestrator, start, start_sweep
from tests.support.runs import write_sweep
from tests.unit.watch_support import SweepInProgress, serial

expect.set_options(timeout=TIMEOUT_MS)

BASE = {
    "dataset": {"name": "synthetic", "samples": 2400, "test_samples": 64},
    "model": {"name": "mlp", "hidden": [16]},
    "epochs": 6,
}
OVER_GLOO = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2}
BLOCKS = [{"base": each, "axes": {"seed": [0, 1]}} for each in ({"strategy": "serial"}, OVER_GLOO)]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
Visit = Callable[..., Page]


@pytest.fixture
def complaints() -> list[str]:
    """What pages have complained about."""
    return []


@pytest.fixture
def visit(browser: Browser, complaints: list[str]) -> Iterator[Visit]:
    """`visit(address, width=400)` opens the page in a window of its own."""
    contexts = []

    def visit(address: str, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()


def address_of(process: Running) -> str:
    """The address that the command prints first."""
    assert process.stdout
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", line):
            return found[0]
    raise AssertionError("no address")


def run(page: Page, state: str) -> Locator:
    return page.locator(f"#runs tr[data-state='{state}']")


def check(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_sweep_from_its_first_run_to_its_end(
    visit: Visit, complaints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    file, out = write_sweep(tmp_path / "watched.yml", BASE, *BLOCKS), tmp_path / "out"
    with start_sweep(file, out, "--watch") as process:
        try:
            address = address_of(process)
            page, phone = visit(address), visit(address, 400, "dark")
            expect(page.locator("#runs tbody tr")).to_have_count(4)
            last = page.locator("#runs tbody tr").last
            expect(last).to_have_attribute("data-state", "waiting")
            expect(run(page, "running")).to_have_count(1)
            key = str(run(page, "running").get_attribute("data-key"))
            with open(SweepPaths(out).run(key).log("node-0"), "a") as log:
                log.write(f"{EVIL}\x1b[31m\n")
            page.locator(f"#runs tr[data-key='{key}'] button").click()
            expect(page.locator("#log")).to_contain_text(f"{EVIL}\\x1b[31m")
            expect(page.locator("#run")).to_have_attribute("data-key", key)
            expect(page.locator(".curve circle").first).to_be_attached()
            check(page)
            expect(phone.locator("#run")).to_be_visible()
            check(phone)
            expect(last).to_have_attribute("data-state", "ok")
            expect(page.locator("#state")).to_have_attribute("data-state", "ended")
            expect(page.locator("#lost")).to_be_visible()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    expect(run(page, "ok")).to_have_count(4)
    assert page.locator("a[data-served]").count() == 0  # they would lead to a server that has ended
    assert page.locator("img, #log *").count() == 0
    check(page)
    assert complaints == []
    finished(visit, complaints, out)


def finished(visit: Visit, complaints: list[str], out: Path) -> None:
    """`watch` shows a finished sweep, and a page says so when it is interrupted or killed."""
    for number, code in ((signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with start(orchestrator("watch", out), PYTHONUNBUFFERED="1") as process:
            try:
                page = visit(address_of(process))
                expect(page.locator("#state")).to_have_attribute("data-state", "ended")
                expect(page.locator("#lost")).to_be_hidden()
                for row in page.locator("#runs tbody tr").all():
                    row.locator("button").click()
                    expect(page.locator("#run")).to_have_attribute(
                        "data-key", str(row.get_attribute("data-key"))
                    )
                    expect(page.locator("[data-curve=accuracy] circle")).to_have_count(6)
                    expect(page.locator("#log")).to_contain_text("trained")
                page.evaluate("document.querySelector('#logs button').dataset.old = 'yes'")
                page.locator("#logs button").first.press("Enter")
                expect(page.locator("#logs [data-old]")).to_have_count(0)
                expect(page.locator("#logs button").first).to_be_focused()
                with page.expect_popup() as opened:
                    page.locator("#report a").click()
                expect(opened.value.locator("#verdict")).to_be_visible()
                assert complaints == []
                process.send_signal(number)
                assert process.wait(timeout=20) == code
            finally:
                process.kill()
        expect(page.locator("#lost")).to_be_visible()
        complaints.clear()  # about the connection that was lost


def test_what_is_damaged_is_listed(visit: Visit, complaints: list[str], tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(2), keys=[EVIL, *(run.key for run in serial(2))], order=[])
    sweep.begin()
    sweep.end(sweep.runs[0])
    sweep.paths.run(sweep.runs[0].key).result.write_text("{")
    with serve(sweep.paths, 0, lambda: False) as address:
        page = visit(address)
        expect(page.locator("#damage")).to_be_visible()
        lines = page.locator("#damage li")
        expect(lines).to_have_count(2)
        expect(lines.first).to_contain_text(EVIL)
        expect(lines.last).to_contain_text(f"{sweep.runs[0].key}/result.json")
        assert page.locator("#damage img").count() == 0
        check(page)
        assert complaints == []

"""Mistakes of the page that follows a sweep, in a browser, while the sweep runs."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from orchestrator.watch.server import serve
from tests.browser.reader import TIMEOUT_MS
from tests.support.command_line import Running, orchestrator, start, start_sweep
from tests.support.runs import write_sweep
from tests.unit.watch_support import SweepInProgress, serial

expect.set_options(timeout=TIMEOUT_MS)

BASE = {
    "dataset": {"name": "synthetic", "samples": 6000, "test_samples": 64},
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
            expect(page.locator("#now")).to_contain_text("accuracy")
            for each in (page, phone):
                expect(each.locator("#log")).to_contain_text("epoch 1/6")
                expect(each.locator("#report")).to_be_hidden()
                check(each)
            for each in (page, phone):
                expect(each.locator("#progress")).to_have_attribute("data-state", "ended")
                expect(each.frame_locator("#report").locator("#verdict")).to_be_visible()
                expect(each.locator("#lost")).to_be_visible()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    expect(page.locator("#progress")).to_contain_text("4 of 4 runs")
    expect(page.locator("#alone")).to_be_hidden()  # it would lead to a server that has ended
    assert complaints == []
    finished(visit, complaints, out)


def finished(visit: Visit, complaints: list[str], out: Path) -> None:
    """`watch` shows a finished sweep, and a page says so when it is interrupted or killed."""
    for number, code in ((signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with start(orchestrator("watch", out), PYTHONUNBUFFERED="1") as process:
            try:
                page = visit(address_of(process))
                expect(page.locator("#progress")).to_have_attribute("data-state", "ended")
                expect(page.locator("#lost")).to_be_hidden()
                with page.expect_popup() as opened:
                    page.locator("#alone").click()
                expect(opened.value.locator("#verdict")).to_be_visible()
                assert complaints == []
                process.send_signal(number)
                assert process.wait(timeout=20) == code
            finally:
                process.kill()
        expect(page.locator("#lost")).to_be_visible()
        page.close()
        complaints.clear()  # about the connection that was lost


def test_a_report_that_is_newer_is_shown_at_the_same_place(
    visit: Visit, complaints: list[str], tmp_path: Path, small_report: Path
) -> None:
    sweep = SweepInProgress(tmp_path, serial(2))
    sweep.begin()
    text = small_report.read_text()
    sweep.write(sweep.paths.html, text)
    with serve(sweep.paths, 0, lambda: True) as address:
        page = visit(address)
        report = page.frame_locator("#report")
        expect(report.locator("#verdict")).to_be_visible()
        frame = page.frames[-1]
        frame.evaluate("location.hash = '#runs'")
        place = frame.evaluate("scrollY")
        assert place > 0
        sweep.write(sweep.paths.html, text.replace("<h1>", '<h1 class="newer">'))
        expect(report.locator(".newer")).to_be_attached()
        assert frame.evaluate("location.hash") == "#runs"
        assert frame.evaluate("scrollY") == pytest.approx(place, abs=50)
        sweep.write(sweep.paths.html, "<p>one that does not know how to load itself again")
        expect(report.locator(".newer")).not_to_be_attached()
        sweep.write(sweep.paths.html, "<p id='last'>and another")
        expect(report.locator("#last")).to_be_visible()
        assert complaints == []
        # It can read nothing else here.
        for forbidden in ("parent.document.body", "fetch('now')", "localStorage.length"):
            assert frame.evaluate(f"(async () => {forbidden})().then(() => false, () => true)")


def test_what_others_write_is_text_and_damage_is_named_until_it_is_repaired(
    visit: Visit, complaints: list[str], tmp_path: Path
) -> None:
    sweep = SweepInProgress(tmp_path, serial(2), name=EVIL)
    sweep.begin()
    sweep.start(sweep.runs[0]).log("node-0").write_text(f"{EVIL}\x1b[31m\n")
    with serve(sweep.paths, 0, lambda: True) as address:
        page = visit(address)
        expect(page.locator("#name")).to_have_text(EVIL)
        expect(page.locator("#log")).to_have_text(f"{EVIL}\\x1b[31m")
        assert page.locator("img, #name *, #log *").count() == 0
        assert complaints == []
        sweep.write(sweep.paths.record, "{")
        expect(page.locator("#lost")).to_contain_text("sweep.json")
        check(page)
        sweep.begin()
        expect(page.locator("#lost")).to_be_hidden()

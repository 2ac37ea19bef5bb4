"""The report of a large sweep: seconds to write it, its size, and seconds until a browser has loaded it."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from orchestrator.commands import doctor
from orchestrator.results.store import SweepPaths
from tests.bench.large_sweep import write_large_sweep
from tests.bench.measuring import spread

REPEATS = 3
WRITTEN_IN_S, LOADED_IN_S, PAGE_MB = 10, 2, 3  # targets


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = write_large_sweep(Path(directory))
        stored_mb = sum(file.stat().st_size for file in paths.directory.rglob("*.json")) / 1e6
        runs = len(list(paths.directory.glob("*/result.json")))
        print(f"report of {runs} runs with {stored_mb:.0f} MB of results")
        wall_s, cpu_s = zip(*(written_s(paths.directory) for _ in range(REPEATS)), strict=True)
        print(f"s to write, median (min to max) of {REPEATS}: {spread(wall_s)}, target {WRITTEN_IN_S}")
        print(f"CPU s to write: {spread(cpu_s)}")
        if path := doctor.chromium():
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=path)
                loaded = [loaded_s(browser, paths) for _ in range(REPEATS)]
                browser.close()
            print(f"s to load the page: {spread(loaded)}, target {LOADED_IN_S}")
        else:
            print(f"how long the page takes to load was not measured: {doctor.browser().detail}")
        print(f"page: {paths.html.stat().st_size / 1e6:.2f} MB, target {PAGE_MB}")
        print(f"report.md: {paths.markdown.stat().st_size / 1e6:.2f} MB", flush=True)


def written_s(directory: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the command that writes the report."""
    command = [sys.executable, "-m", "orchestrator", "report", str(directory)]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded_s(browser: Browser, paths: SweepPaths) -> float:
    """Seconds until the page's `load` event, in a window of its own."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page, started = context.new_page(), time.perf_counter()
        page.goto(paths.html.resolve().as_uri())
        return time.perf_counter() - started

"""The report of a large sweep: seconds to write it, its size, and seconds until a browser has loaded it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from orchestrator.report.figures.vega import packed, scripts, svg_of
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.model.timelines import with_timelines
from orchestrator.report.plots import draw
from orchestrator.report.render import html, markdown
from orchestrator.report.render.csv_tables import epochs_csv, results_csv, summary_csv
from orchestrator.report.render.page import page_of
from orchestrator.report.renderer import Drawings
from orchestrator.report.topics import asked_by, find
from orchestrator.results.store import SweepPaths
from tests.bench.large_sweep import write_large_sweep

REPEATS = 3
WRITTEN_IN_S, LOADED_IN_S, PAGE_MB = 10, 2, 3  # targets
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A page that says how long the report took to load inside it.
FRAME = """<!doctype html><p id="s"></p><script>
const frame = document.createElement("iframe"), begun = performance.now();
frame.onload = () => { document.getElementById("s").textContent = (performance.now() - begun) / 1000; };
frame.width = 1280; frame.height = 800; frame.src = "report.html"; document.body.append(frame);
</script>"""

T = TypeVar("T")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = write_large_sweep(Path(directory))
        stored_mb = sum(file.stat().st_size for file in paths.directory.rglob("*.json")) / 1e6
        runs = len(list(paths.directory.glob("*/result.json")))
        print(f"report of {runs} runs with {stored_mb:.0f} MB of results, {REPEATS} times")
        print(f"{'':24} " + " ".join(f"{f'no. {number + 1}':>7}" for number in range(REPEATS)) + "  target")
        wall_s, cpu_s = zip(*(written_s(paths.directory) for _ in range(REPEATS)), strict=True)
        line("s to write", wall_s, WRITTEN_IN_S)
        line("CPU s to write", cpu_s)
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            print("  no Chromium: how long the page takes to load was not measured")
        else:
            line("s to load the page", [loaded_s(browser, paths) for _ in range(REPEATS)], LOADED_IN_S)
        print(f"{'page, MB':24} {paths.html.stat().st_size / 1e6:7.2f}{'':17} < {PAGE_MB}")
        print(f"{'report.md, MB':24} {paths.markdown.stat().st_size / 1e6:7.2f}")
        parts(paths)


def line(name: str, values: Sequence[float], target: float | None = None) -> None:
    """Print the measurements of a quantity."""
    below = f"  < {target}" if target else ""
    print(f"{name:24} " + " ".join(f"{value:7.2f}" for value in values) + below, flush=True)


def written_s(directory: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the command that writes the report."""
    command = [sys.executable, "-m", "orchestrator", "report", str(directory)]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded_s(browser: str, paths: SweepPaths) -> float:
    """Seconds until the page's `load` event."""
    frame = paths.directory / "frame.html"
    frame.write_text(FRAME)
    root = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium has no sandbox for root
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", *root, f"--user-data-dir={profile}", "--dump-dom"]
        done = subprocess.run(
            [browser, *options, frame.as_uri()], check=True, capture_output=True, text=True, timeout=60
        )
    found = re.search(r'<p id="s">([\d.]+)</p>', done.stdout)
    if found is None:
        sys.exit(f"{browser} did not load the page: {done.stderr[-2000:]}")
    return float(found[1])


def parts(paths: SweepPaths) -> None:
    """Print where the time goes, once, in this process, which has imported everything.

    The command that writes the report does SVG and Vega in a process of their own.
    """
    print("CPU s of its parts, without imports")
    read = timed("read and compare", lambda: read_comparison(paths))
    comparison = timed("timelines", lambda: with_timelines(paths, read))
    claims = timed("claims", lambda: asked_by(comparison).decided())
    findings = timed("findings", lambda: find(comparison, claims))
    plots = timed("figures", lambda: draw(comparison))
    page = timed("verdicts, tables", lambda: page_of(comparison, findings, claims, plots))
    timed("CSV files", lambda: [write(comparison) for write in (summary_csv, results_csv, epochs_csv)])
    timed("report.md", lambda: markdown.render(page, comparison))
    svgs = timed("SVG", lambda: [svg_of(plot.spec) for plot in plots])
    drawings = Drawings(svgs, timed("Vega", lambda: packed(scripts())))
    timed("report.html", lambda: html.render(page, comparison, plots, drawings))


def timed(name: str, work: Callable[[], T]) -> T:
    """The result of the work, whose CPU time is printed."""
    started = time.process_time()
    result = work()
    print(f"  {name:22} {time.process_time() - started:7.2f}", flush=True)
    return result

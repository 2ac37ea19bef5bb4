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
from pathlib import Path

from orchestrator.results.store import SweepPaths
from tests.bench.large_sweep import write_large_sweep
from tests.bench.measuring import spread

REPEATS = 3
WRITTEN_IN_S, LOADED_IN_S, PAGE_MB = 10, 2, 3  # targets
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A page that says how long the report took to load inside it.
FRAME = """<!doctype html><p id="s"></p><script>
const frame = document.createElement("iframe"), begun = performance.now();
frame.onload = () => { document.getElementById("s").textContent = (performance.now() - begun) / 1000; };
frame.width = 1280; frame.height = 800; frame.src = "report.html"; document.body.append(frame);
</script>"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = write_large_sweep(Path(directory))
        stored_mb = sum(file.stat().st_size for file in paths.directory.rglob("*.json")) / 1e6
        runs = len(list(paths.directory.glob("*/result.json")))
        print(f"report of {runs} runs with {stored_mb:.0f} MB of results")
        wall_s, cpu_s = zip(*(written_s(paths.directory) for _ in range(REPEATS)), strict=True)
        print(f"s to write, median (min to max) of {REPEATS}: {spread(wall_s)}, target {WRITTEN_IN_S}")
        print(f"CPU s to write: {spread(cpu_s)}")
        if browser := next(filter(None, map(shutil.which, BROWSERS)), None):
            loaded = [loaded_s(browser, paths) for _ in range(REPEATS)]
            print(f"s to load the page: {spread(loaded)}, target {LOADED_IN_S}")
        else:
            print("no Chromium: how long the page takes to load was not measured")
        print(f"page: {paths.html.stat().st_size / 1e6:.2f} MB, target {PAGE_MB}")
        print(f"report.md: {paths.markdown.stat().st_size / 1e6:.2f} MB", flush=True)


def written_s(directory: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the command that writes the report."""
    command = [sys.executable, "-m", "orchestrator", "report", str(directory)]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded_s(browser: str, paths: SweepPaths) -> float:
    """Seconds until the page's `load` event."""
    frame = paths.directory / "frame.html"
    frame.write_text(FRAME)
    root = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium has no sandbox for root
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", *root, f"--user-data-dir={profile}", "--dump-dom", frame.as_uri()]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found = re.search(r'<p id="s">([\d.]+)</p>', done.stdout)
    if found is None:
        sys.exit(f"{browser} did not load the page: {done.stderr[-2000:]}")
    return float(found[1])

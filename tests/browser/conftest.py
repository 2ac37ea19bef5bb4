"""Reports and the browser in which tests open them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, sync_playwright

from orchestrator.commands import doctor
from orchestrator.report.plots import draw
from orchestrator.report.render import html
from orchestrator.report.render.page import page_of
from orchestrator.report.renderer import Renderer
from orchestrator.report.topics import concluded
from tests.browser.reader import Reader
from tests.support import runs
from tests.support.command_line import run_ok
from tests.support.runs import SMALL
from tests.unit.orchestrator.report.test_report_golden import golden_comparison
from tests.unit.report_support import a_run, repeated, write_sweep

EVIL = "</script></style></svg><img src=x onerror=alert(1)><script>alert(2)</script>\"'"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium. Reports ask for it too: without a browser they are not written."""
    path = doctor.chromium()
    if path is None:
        pytest.skip(doctor.browser().detail)
    return path


# Of this package only: while playwright runs, other tests of the process cannot start an event loop.
@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium)
        yield launched
        launched.close()


@pytest.fixture
def reader(browser: Browser) -> Iterator[Reader]:
    """`reader.open(report)` gives a page. The test fails if a page complains or sends requests."""
    made = Reader(browser)
    yield made
    made.close()
    assert made.complaints == []


@pytest.fixture(scope="session")
def golden_report(chromium: str, shared_folder: Path) -> Path:
    """The page with every kind of finding, every column of every table, and one figure of each kind."""

    def write(folder: Path) -> Path:
        comparison = golden_comparison()
        claims, findings = concluded(comparison)
        plots = [*{plot.kind.name: plot for plot in reversed(draw(comparison, claims))}.values()]
        with Renderer() as renderer:
            drawings = renderer.draw([plot.spec for plot in plots]).result()
        file = folder / "report.html"
        page = page_of(comparison, findings, claims, plots)
        file.write_text(html.render(page, plots, drawings))
        return file

    return written_once(shared_folder / "golden-report", write)


@pytest.fixture(scope="session")
def small_report(chromium: str, shared_folder: Path) -> Path:
    """The page of a sweep that has been run."""

    def write(folder: Path) -> Path:
        serial = {"base": {"strategy": "serial"}, "axes": {"seed": [0, 1]}}
        axes = {"strategy": ["all_reduce", "one_shot"], "nodes": [2, 3], "seed": [0, 1]}
        others = {"base": {"transport": "gloo"}, "axes": axes}
        base = {name: SMALL[name] for name in ("dataset", "model", "epochs")}
        file = runs.write_sweep(folder / "small.yml", base, serial, others)
        # Other load changes no time of virtual nodes, and so no figure.
        run_ok("sweep", file, "--runtime", "virtual", "--out", folder / "out")
        return folder / "out" / "report.html"

    return written_once(shared_folder / "small-report", write)


@pytest.fixture(scope="session")
def hostile_report(chromium: str, shared_folder: Path) -> Path:
    """A page with markup in every string that comes from a file."""

    def write(folder: Path) -> Path:
        split = {"name": "pipeline", "split_points": ["flatten"]}
        shown = [
            *repeated("serial", [8, 8.1]),
            *repeated("all_reduce", [5, 5.1], nodes=4, cores=2, flags=[EVIL]),
            *repeated("one_shot", [3, 3.1], nodes=4, own=[0.5, 0.6, 0.7, 0.8]),
            a_run(split, nodes=2),
            a_run("ddp", nodes=4, status="failed", cause=EVIL),
        ]
        return write_sweep(
            folder,
            *shown,
            pending=[EVIL],
            name=EVIL,
            description=EVIL,
            source=f"name: {EVIL}\n",
            overrides=[EVIL],
            environment={EVIL: EVIL},
        ).html

    return written_once(shared_folder / "hostile-report", write)


def written_once(folder: Path, write: Callable[[Path], Path]) -> Path:
    """The file that `write` writes into the folder, once for all workers."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with FileLock(folder / "lock"):
        if not done.exists():
            done.write_text(str(write(folder)))
    return Path(done.read_text())

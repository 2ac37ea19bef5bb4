"""Mistakes around `watch`: what it refuses, what a sweep without a page loads, how often reports come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.watch import growing_report
from orchestrator.watch.growing_report import FIRST_S, SHARE, GrowingReport
from tests.unit.conftest import FakeTime


def test_what_cannot_be_watched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, message in (
        (["sweep", "quickstart", "--port", "8000"], "--port 8000: needs --watch"),
        (["watch", str(tmp_path)], "no sweep.json"),
    ):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, InputError)
        assert message in str(done.exception)
    assert [*tmp_path.iterdir()] == []
    for port in ("-1", "65536", "x"):
        assert CliRunner().invoke(app, ["watch", "--port", port]).exit_code == 2


def test_a_sweep_without_a_page_loads_no_server() -> None:
    server = {"starlette", "uvicorn", "anyio", "asyncio", "altair"}
    modules = "orchestrator.cli, orchestrator.commands.watch, orchestrator.execution.sweep_runner"
    code = f"import sys, {modules}; print('loaded:', *sorted({server} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "loaded:"


def test_the_report_is_written_once_that_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    time, began = FakeTime(), list[float]()

    def write(paths: SweepPaths) -> None:
        began.append(time())
        time.pass_(2.0)
        if len(began) == 1:
            raise OSError("the disk is full")  # the report at the end says why

    monkeypatch.setattr(growing_report.time, "monotonic", time)
    monkeypatch.setattr(growing_report, "write_report", write)
    start, growing = time(), GrowingReport(SweepPaths(Path("absent")))
    for _ in range(250):
        time.pass_(1)
        growing.after_run()
    # The first is expected to take longer than the others do.
    expected = [start + FIRST_S / SHARE]
    while expected[-1] + 2 + 2 / SHARE <= time():
        expected.append(expected[-1] + 2 + 2 / SHARE)
    assert began == expected

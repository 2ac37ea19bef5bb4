"""`sweep --watch` and `watch`: what they refuse, what they load, and when the report is written."""

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


def test_a_port_needs_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["sweep", "quickstart", "--port", "8000"])
    assert isinstance(done.exception, InputError)
    assert "--port 8000: needs --watch" in str(done.exception)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_ports_have_a_range(port: str) -> None:
    assert CliRunner().invoke(app, ["watch", "--port", port]).exit_code == 2


def test_watch_needs_a_results_directory(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert isinstance(done.exception, InputError)
    assert "no sweep.json" in str(done.exception)


def test_a_sweep_without_a_page_loads_no_server() -> None:
    server = {"starlette", "uvicorn", "anyio", "asyncio", "altair"}
    modules = "orchestrator.cli, orchestrator.commands.watch, orchestrator.execution.sweep_runner"
    code = f"import sys, {modules}; print('loaded:', *sorted({server} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "loaded:"


class Written:
    """Stands in for `write_report`: takes a time, and counts."""

    def __init__(self, time: FakeTime) -> None:
        self.count, self.takes_s, self.error = 0, 2.0, False
        self._time = time

    def __call__(self, paths: SweepPaths) -> list[str]:
        self.count += 1
        self._time.pass_(self.takes_s)
        if self.error:
            raise OSError("the disk is full")
        return []


def test_the_report_is_written_once_that_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime()
    written = Written(time)
    monkeypatch.setattr(growing_report.time, "monotonic", time)
    monkeypatch.setattr(growing_report, "write_report", written)
    growing = GrowingReport(SweepPaths(Path("absent")))
    time.pass_(FIRST_S / SHARE - 1)
    growing.after_run()
    assert written.count == 0
    time.pass_(2)
    written.error = True  # the report at the end says why
    growing.after_run()
    assert written.count == 1
    for _ in range(39):  # it took 2 s, which is 5 % of 40 s
        time.pass_(1)
        growing.after_run()
    assert written.count == 1
    time.pass_(1)
    growing.after_run()
    assert written.count == 2

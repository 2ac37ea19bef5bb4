"""The option --strict of the commands `sweep` and `report`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.commands import sweep as sweep_command
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.sweeps.load import load_sweep
from tests.unit.report_support import a_run, unrendered_figures, write_page

EQUAL = [
    a_run(batch_per="run"),
    a_run("all_reduce", nodes=2, batch_per="run"),
    a_run("ddp", nodes=2, batch_per="run"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "options", "code", "lines"),
    [
        ([a_run(), a_run("ddp", nodes=2)], [], 0, 0),
        ([a_run(), a_run("ddp", nodes=2)], ["--strict"], 1, 1),
        ([a_run(), a_run("ddp", nodes=2, samples=400)], ["--strict"], 1, 2),
        (EQUAL, ["--strict"], 0, 0),
    ],
)
def test_strict_report_fails_after_it_is_written(
    tmp_path: Path, runs: list[RunResult], options: list[str], code: int, lines: int
) -> None:
    paths = write_page(tmp_path, *runs)
    paths.html.unlink()
    with unrendered_figures():
        done = CliRunner().invoke(cli.app, ["report", str(tmp_path), *options])
    assert done.exit_code == code, done.output
    assert paths.html.exists()
    assert sum(line.startswith("unequal conditions: ") for line in done.output.splitlines()) == lines


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_strict_sweep_fails_if_conditions_are_unequal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strict: bool, code: int
) -> None:
    monkeypatch.setattr(LocalRuntime, "clean", lambda self: 0)
    runner = "orchestrator.execution.sweep_runner.SweepRunner"
    monkeypatch.setattr(f"{runner}.prepare", lambda self, loaded: None)
    monkeypatch.setattr(f"{runner}.results", lambda self, loaded: iter(()))
    monkeypatch.setattr(sweep_command, "publish_report", lambda paths, console: ["one", "other"])
    selected, file = sweep_command.select_runtime("local"), io.StringIO()
    loaded = load_sweep(Path(__file__).parents[3] / "sweeps" / "smoke.yml")
    found = sweep_command.run_sweep(
        loaded,
        SweepPaths(tmp_path),
        selected,
        tmp_path,
        sweep_command.text_console(file),
        sweep_command.HowToRun(warm_up_run=False, strict=strict),
    )
    assert found == code
    assert ("unequal conditions: one\nunequal conditions: other\n" in file.getvalue()) is strict

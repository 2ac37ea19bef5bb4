"""The runner: what it asks once, and what it asks for every run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import runner as module
from orchestrator.result import RunResult
from orchestrator.runner import Runner
from orchestrator.runtimes.base import RunHandle, RunState, Runtime
from orchestrator.store import RunPaths, SweepPaths
from orchestrator.sweep import load_sweep
from orchestrator.topology import LaunchPlan
from trainer.events import Event
from trainer.spec import RunSpec


class Nothing(Runtime):
    """A runtime whose runs end at once without a word."""

    def unavailable(self) -> str | None:
        return None

    def summary(self) -> str:
        return "nothing"

    def lacks(self, plan: LaunchPlan) -> str | None:
        return None

    def describe(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> dict[str, Any]:
        return {}

    def start(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> RunHandle:
        return NothingRuns()

    def clean(self) -> int:
        return 0


class NothingRuns(RunHandle):
    def wait(self, timeout_s: float) -> RunState:
        return RunState({}, running=0)

    def new_events(self) -> list[Event]:
        return []

    def collect(self, paths: RunPaths) -> None:
        paths.events.touch()

    def stop(self) -> None: ...


class Silent:
    def begin(self, number: int, total: int, run: RunSpec) -> None: ...
    def events(self, events: Sequence[Event]) -> None: ...
    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


def test_the_environment_is_asked_for_once_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def environment() -> dict[str, Any]:
        asked.append({"number": len(asked)})
        return asked[-1]

    monkeypatch.setattr(module, "environment", environment)
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: placebo}, axes: {nodes: [1, 2, 3]}}]")
    sweep = load_sweep(file)
    runner = Runner(Nothing(), "nothing", SweepPaths(tmp_path / "out"), tmp_path, Silent())
    runner.prepare(sweep)
    results = list(runner.results(sweep))
    assert len(asked) == 1
    assert [result.environment for result in results] == [{"number": 0}] * 3
    # Another sweep may be another checkout.
    list(Runner(Nothing(), "nothing", SweepPaths(tmp_path / "more"), tmp_path, Silent()).results(sweep))
    assert len(asked) == 2

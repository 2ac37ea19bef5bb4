"""The sweep runner: the environment is read once per sweep, and unused checkpoints are removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from orchestrator.errors import InputError, StorageError
from orchestrator.execution import sweep_runner as module
from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, read_result
from orchestrator.runtimes.base import Cluster, Run, RunState, Runtime
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.sweeps.load import Sweep, load_sweep
from tests.unit.conftest import run_result
from trainer.core.events import Event
from trainer.data.base import DataError, Dataset
from trainer.data.datasets.synthetic import Synthetic
from trainer.spec.run_spec import RunSpec


class FakeRuntime(Runtime):
    """A runtime whose runs end at once without events."""

    info: ClassVar = LocalRuntime.info

    def unavailable_reason(self) -> str | None:
        return None

    def node_kind(self) -> str:
        return "nothing"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        return None

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        return LaunchPlan(spec, paths, data_dir)

    def create(self, plan: LaunchPlan) -> Cluster:
        return FakeCluster()

    def clean(self) -> int:
        return 0


class FakeCluster(Cluster):
    def run(self, plan: LaunchPlan) -> Run:
        return FakeRun()

    def delete(self) -> None: ...


class FakeRun(Run):
    def wait(self, timeout_s: float) -> RunState:
        return RunState({}, running=0)

    def new_events(self) -> list[Event]:
        return []

    def suspended(self) -> dict[Any, int]:
        return {}

    def collect(self, paths: RunPaths) -> None:
        paths.events.touch()

    def stop(self) -> None: ...


def runner_in(paths: SweepPaths, data_dir: Path) -> SweepRunner:
    return SweepRunner(Clusters(FakeRuntime()), "nothing", paths, data_dir, SilentDisplay())


class SilentDisplay:
    def warm_up(self, run: RunSpec) -> None: ...
    def begin(self, number: int, total: int, run: RunSpec) -> None: ...
    def events(self, events: Sequence[Event]) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


def test_environment_is_read_once_per_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, Any]] = []

    def environment() -> dict[str, Any]:
        environments.append({"number": len(environments)})
        return environments[-1]

    monkeypatch.setattr(module, "environment", environment)
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: fault_injection}, axes: {nodes: [1, 2, 3]}}]")
    sweep = load_sweep(file)
    runner = runner_in(SweepPaths(tmp_path / "out"), tmp_path)
    runner.prepare(sweep)
    results = list(runner.results(sweep))
    assert len(environments) == 1
    assert [result.environment for result in results] == [{"number": 0}] * 3
    assert {result.runtime_info for result in results} == {FakeRuntime.info}
    # The sources may change between sweeps.
    list(runner_in(SweepPaths(tmp_path / "more"), tmp_path).results(sweep))
    assert len(environments) == 2


@pytest.mark.parametrize(
    ("cause", "expected"),
    [(OSError(errno.ENOSPC, "No space"), StorageError), (OSError(errno.EACCES, "No"), InputError)],
)
def test_data_without_room_is_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError, expected: type[Exception]
) -> None:
    def prepare(dataset: Dataset, data_dir: Path) -> NoReturn:
        raise DataError("not there") from cause

    monkeypatch.setattr(Synthetic, "prepare", prepare)
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: serial, dataset: synthetic}}]")
    runner = runner_in(SweepPaths(tmp_path / "o"), tmp_path)
    with pytest.raises(expected):
        runner.prepare(load_sweep(file))
    assert not runner.paths.directory.exists()


def fills_the_disk(paths: RunPaths) -> NoReturn:
    paths.live.mkdir()
    (paths.live / "rank-0.jsonl").touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths.events))


def removes_the_results(paths: RunPaths) -> None:
    shutil.rmtree(paths.directory.parent)
    paths.events.parent.mkdir(parents=True)
    paths.events.touch()


def test_run_ends_when_its_results_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not at its end: its nodes would compute for nothing."""
    monkeypatch.setattr(FakeRun, "wait", lambda *_: RunState({}, running=1))
    paths, run = SweepPaths(tmp_path / "out"), RunSpec.model_validate({"strategy": "fault_injection"})

    def remove(*_: object) -> list[Event]:
        shutil.rmtree(paths.run(run.key).directory)
        return []

    monkeypatch.setattr(FakeRun, "new_events", remove)
    monkeypatch.setattr(FakeRun, "collect", lambda *_: None)
    with pytest.raises(FileNotFoundError):
        runner_in(paths, tmp_path).run(run)


@pytest.mark.parametrize(
    ("collect", "trouble"), [(fills_the_disk, "the disk is full"), (removes_the_results, "it was removed")]
)
def test_sweep_stops_when_results_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collect: Callable[[RunPaths], None], trouble: str
) -> None:
    """The run has a row, and what it was writing is removed."""
    monkeypatch.setattr(FakeRun, "collect", lambda handle, paths: collect(paths))
    file = tmp_path / "s.yml"
    file.write_text("name: s\nblocks: [{base: {strategy: fault_injection}, axes: {seed: [0, 1]}}]")
    sweep, paths = load_sweep(file), SweepPaths(tmp_path / "out")
    runner = runner_in(paths, tmp_path)
    runner.prepare(sweep)
    with pytest.raises(StorageError, match=trouble):
        list(runner.results(sweep))
    first, second = (paths.run(run.key) for run in sweep.runs)
    row = read_result(first.result)
    assert row is not None
    assert row.status == "failed"
    assert trouble in str(row.cause)
    assert not first.live.exists()
    assert not second.directory.exists()


@pytest.mark.parametrize("damage", [b"{", b"NaN"])
def test_run_with_an_unusable_result_is_repeated_and_the_file_kept(tmp_path: Path, damage: bytes) -> None:
    runner, sweep, _ = finished_with_checkpoints(tmp_path, runs=2)
    first, second = (runner.paths.run(run.key) for run in sweep.runs)
    first.result.write_bytes(damage)
    before = second.result.read_bytes()
    runner.prepare(sweep)
    results = {result.key: result for result in runner.results(sweep)}
    assert [results[run.key].status for run in sweep.runs] == ["failed", "ok"]
    assert read_result(first.result) == results[sweep.runs[0].key]
    assert first.unusable_result.read_bytes() == damage
    assert second.result.read_bytes() == before
    list(runner.results(sweep))
    assert first.unusable_result.read_bytes() == damage


def test_another_sweep_in_the_directory_is_refused_before_its_record_is_replaced(tmp_path: Path) -> None:
    runner, sweep, _ = finished_with_checkpoints(tmp_path, runs=2)
    runner.prepare(sweep)
    before = runner.paths.record.read_bytes()
    with pytest.raises(InputError, match="1 of 2 finished runs"):
        runner.prepare(replace(sweep, runs=sweep.runs[:1]))
    assert runner.paths.record.read_bytes() == before


# Order, and the run before the first


class RecordingRuntime(FakeRuntime):
    """A runtime that records which runs it starts, with which files."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[LaunchPlan] = []

    def create(self, plan: LaunchPlan) -> Cluster:
        self.started.append(plan)
        return super().create(plan)


@dataclass
class Repeated:
    """A sweep of two configurations over some seeds."""

    directory: Path
    runtime: RecordingRuntime = field(default_factory=RecordingRuntime)

    def command(self, repeat: int) -> list[RunResult]:
        """Run the sweep as a command does."""
        file = self.directory / "s.yml"
        base = "{strategy: serial, epochs: 9}"
        blocks = "[{}, {base: {strategy: fault_injection, nodes: 2}}]"
        file.write_text(f"name: s\nbase: {base}\nblocks: {blocks}")
        sweep = load_sweep(file, repeat=repeat)
        runner = SweepRunner(Clusters(self.runtime), "nothing", self.paths, self.directory, SilentDisplay())
        runner.prepare(sweep)
        runner.warm_up(sweep)
        return list(runner.results(sweep))

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths(self.directory / "out")

    @property
    def started(self) -> list[str]:
        """Directories of the runs that were started, in order; empties the record."""
        plans, self.runtime.started = self.runtime.started, []
        return [plan.paths.directory.name for plan in plans]


@pytest.fixture
def repeated(tmp_path: Path) -> Repeated:
    return Repeated(tmp_path)


def finish(paths: RunPaths) -> None:
    """Mark a run as ok, as if it had trained."""
    result = read_result(paths.result)
    assert result
    paths.result.write_text(result.model_copy(update={"status": "ok", "cause": None}).model_dump_json())


def test_runs_are_executed_seed_by_seed_and_have_their_position(repeated: Repeated) -> None:
    results = repeated.command(repeat=6)
    assert [result.run.seed for result in results] == [seed for seed in range(6) for _ in range(2)]
    assert [result.order for result in results] == [*range(12)]
    strategies = [result.spec["strategy"]["name"] for result in results]
    assert len({tuple(strategies[at : at + 2]) for at in range(0, 12, 2)}) == 2  # both orders
    assert repeated.started[1:] == [result.key for result in results]
    stored = [read_result(repeated.paths.run(result.key).result) for result in results]
    assert stored == results


def test_order_counts_the_runs_that_a_command_executes(repeated: Repeated) -> None:
    first = repeated.command(repeat=2)
    for result in first:
        finish(repeated.paths.run(result.key))
    again = repeated.command(repeat=4)
    assert [result.key for result in again[:4]] == [result.key for result in first]
    assert [result.order for result in again] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [result.started_at for result in again[:4]] == [result.started_at for result in first]


def test_run_before_the_first_is_short_and_leaves_nothing(repeated: Repeated) -> None:
    results = repeated.command(repeat=2)
    plan = repeated.runtime.started[0]
    assert (plan.spec.name_of("strategy"), plan.spec.epochs) == ("serial", 1)
    assert not plan.paths.directory.exists()
    assert len(repeated.runtime.started) == 1 + len(results)


@pytest.mark.parametrize("what", ["one seed", "finished"])
def test_no_run_before_the_first(repeated: Repeated, what: str) -> None:
    """A sweep that claims nothing, or that has nothing left to execute, needs none."""
    if what == "finished":
        for result in repeated.command(repeat=2):
            finish(repeated.paths.run(result.key))
        repeated.started  # noqa: B018
    results = repeated.command(repeat=2 if what == "finished" else 1)
    assert repeated.started == ([] if what == "finished" else [result.key for result in results])


@pytest.mark.parametrize("error", [InputError("no engine"), OSError(errno.ENOSPC, "full")])
def test_failed_run_before_the_first_is_ignored(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create = RecordingRuntime.create

    def fail_once(runtime: RecordingRuntime, plan: LaunchPlan) -> Cluster:
        cluster = create(runtime, plan)
        if len(runtime.started) == 1:
            raise error
        return cluster

    monkeypatch.setattr(RecordingRuntime, "create", fail_once)
    assert len(repeated.command(repeat=2)) == 4
    assert not repeated.paths.warm_up_run.exists()


def test_interrupted_run_before_the_first_leaves_nothing(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        assert repeated.paths.warm_up_run.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeRun, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        repeated.command(repeat=2)
    assert {path.name for path in repeated.paths.directory.iterdir()} == {"sweep.json"}


def test_rest_of_a_killed_run_before_the_first_is_removed(repeated: Repeated) -> None:
    repeated.paths.warm_up_run.mkdir(parents=True)
    (repeated.paths.warm_up_run / "spec.json").touch()
    repeated.command(repeat=1)
    assert not repeated.paths.warm_up_run.exists()


# Checkpoints


def finished_with_checkpoints(tmp_path: Path, runs: int) -> tuple[SweepRunner, Sweep, list[Path]]:
    """A sweep that was killed after all runs finished and before it removed their checkpoints."""
    file = tmp_path / "s.yml"
    blocks = [{"base": {"strategy": "fault_injection"}, "axes": {"nodes": [*range(1, runs + 1)]}}]
    file.write_text(json.dumps({"name": "s", "blocks": blocks}))
    sweep, paths = load_sweep(file), SweepPaths(tmp_path / "out")
    left = []
    for run in sweep.runs:
        run_paths = paths.run(run.key)
        left.append(run_paths.checkpoints)
        (run_paths.checkpoints / "local" / "epoch-00001-step-0000000").mkdir(parents=True)
        run_paths.result.write_text(
            run_result(key=run.key, spec=run.model_dump(mode="json")).model_dump_json()
        )
    return runner_in(paths, tmp_path), sweep, left


def test_checkpoints_of_finished_runs_are_removed(tmp_path: Path) -> None:
    runner, sweep, left = finished_with_checkpoints(tmp_path, runs=2)
    assert [result.status for result in runner.results(sweep)] == ["ok", "ok"]
    assert [path for path in left if path.exists()] == []


def test_checkpoints_that_cannot_be_removed_are_named_after_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **_: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    runner, sweep, left = finished_with_checkpoints(tmp_path, runs=2)
    monkeypatch.setattr(shutil, "rmtree", refused)
    results = runner.results(sweep)
    assert [next(results).status, next(results).status] == ["ok", "ok"]
    with pytest.raises(InputError) as raised:
        next(results)
    for path in left:
        assert f"{path}: cannot be removed ({path}: Permission denied)" in str(raised.value)

"""Mistakes in the execution of a sweep: what is repeated, the warm-up run, full disks, what is left."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from orchestrator.errors import InputError, StorageError
from orchestrator.execution import sweep_runner as module
from orchestrator.execution.clusters import Clusters
from orchestrator.execution.run_result import Execution, Place
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, read_record, read_result
from orchestrator.runtimes.base import Cluster, Run, RunState
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.sweeps.equal_cpus import EqualShare
from orchestrator.sweeps.load import Sweep, load_sweep
from tests.support.runs import RecordingDisplay
from tests.unit.conftest import FakeTime, event, run_result
from trainer.core.events import Event
from trainer.data.base import DataError
from trainer.data.datasets.synthetic import Synthetic
from trainer.spec.run_spec import RunSpec


class FakeCluster(Cluster):
    """A cluster whose runs end at once without events. errors: of its next deletions."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan, self.usable, self.deleted = plan, True, 0
        self.errors: list[BaseException] = []

    def run(self, plan: LaunchPlan) -> Run:
        return FakeRun(plan.paths)

    def ready(self) -> bool:
        return self.usable

    def delete(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.deleted += 1


class FakeRuntime(LocalRuntime):
    def __init__(self) -> None:
        super().__init__(cold=True, shared_network=True)
        self.created: list[FakeCluster] = []

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        return LaunchPlan(spec, paths, data_dir)

    def create(self, plan: LaunchPlan) -> FakeCluster:
        self.created.append(FakeCluster(plan))
        return self.created[-1]


class FakeRun(Run):
    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths

    def wait(self, timeout_s: float) -> RunState:
        return RunState({}, running=0)

    def new_events(self) -> list[Event]:
        return []

    def suspended(self) -> dict[Any, int]:
        return {}

    def collect(self) -> list[Event]:
        return []

    def stop(self) -> None: ...


RUN = RunSpec.model_validate({"strategy": "fault_injection", "timeout_s": 8})
EVENTS = [event("ready")]
RUNNING, ENDED = RunState({}, running=1), RunState({}, running=0)
BLOCKS = "[{base: {strategy: serial}}, {base: {strategy: fault_injection, nodes: 2}}]"


class Commands:
    """A sweep of two configurations over some seeds, and commands that run it. paths: of its results."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.paths, self.runtime = directory, SweepPaths(directory / "out"), FakeRuntime()
        self.patch = monkeypatch.setattr

    def sweep(self, repeat: int, blocks: str = BLOCKS) -> Sweep:
        file = self.directory / "s.yml"
        file.write_text(f"name: s\nbase: {{epochs: 9}}\nblocks: {blocks}")
        return load_sweep(file, repeat=repeat)

    def runner(self) -> SweepRunner:
        return SweepRunner(
            Clusters(self.runtime), "nothing", self.paths, self.directory, RecordingDisplay()
        )

    def run(self, sweep: Sweep) -> list[RunResult]:
        runner = self.runner()
        runner.prepare(sweep)
        runner.warm_up(sweep)
        return list(runner.results(sweep))

    @property
    def started(self) -> list[str]:
        """The keys of the runs that were started since the last call; `warm-up` for the one before."""
        plans = [cluster.plan for cluster in self.runtime.created]
        self.runtime.created.clear()
        warm_up = RunPaths(self.paths.warm_up_run)
        return ["warm-up" if plan.paths == warm_up else plan.spec.key for plan in plans]

    def finish(self, sweep: Sweep) -> None:
        """Write what a sweep leaves that is killed after its runs and before it removes checkpoints."""
        for run in sweep.runs:
            paths = self.paths.run(run.key)
            (paths.checkpoints / "local" / "epoch-00001-step-0000000").mkdir(parents=True)
            result = run_result(key=run.key, spec=run.model_dump(mode="json"))
            paths.result.write_text(result.model_dump_json())


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    read = count()  # the sources may change between commands; git is slow
    monkeypatch.setattr(module, "environment", lambda: {"number": next(read)})
    return Commands(tmp_path, monkeypatch)


def test_a_command_executes_what_is_not_done_seed_by_seed_and_counts_it(commands: Commands) -> None:
    """Checkpoints of finished runs are removed, too."""
    done = commands.sweep(repeat=2)
    commands.finish(done)
    before = {run.key: commands.paths.run(run.key).result.read_bytes() for run in done.runs}
    assert [result.status for result in commands.run(done)] == ["ok"] * 4
    assert commands.started == []
    sweep = replace(commands.sweep(repeat=6), equal_cpus=EqualShare(cpus=0.4, cores=2, nodes=4))
    results = commands.run(sweep)
    assert [result.run.seed for result in results] == [seed for seed in range(6) for _ in range(2)]
    strategies = [result.run.name_of("strategy") for result in results]
    assert len({tuple(strategies[at : at + 2]) for at in range(0, 12, 2)}) == 2  # both orders
    new = results[4:]
    assert commands.started == ["warm-up", *(result.key for result in new)]
    assert [(result.order, result.environment) for result in new] == [
        (at, {"number": 1}) for at in range(8)
    ]
    paths = [commands.paths.run(result.key) for result in results]
    assert [read_result(each.result) for each in paths] == results
    assert {key: commands.paths.run(key).result.read_bytes() for key in before} == before
    assert not any(each.checkpoints.exists() for each in paths)
    record = read_record(commands.paths)
    assert (record.keys, record.order) == ([run.key for run in sweep.runs], [run.key for run in results])
    assert (record.source, record.overrides) == (sweep.source, ["--repeat 6"])
    assert (record.equal_cpus, record.environment) == (sweep.equal_cpus, {"number": 1})


@pytest.mark.parametrize("damage", [b"{", b"NaN"])
def test_an_unusable_result_is_kept_and_its_run_repeated(commands: Commands, damage: bytes) -> None:
    sweep = commands.sweep(repeat=1)
    commands.finish(sweep)
    paths, other = (commands.paths.run(run.key) for run in sweep.runs)
    paths.result.write_bytes(damage)
    for _ in range(2):
        assert {result.status for result in commands.run(sweep)} == {"failed", "ok"}
        found = [read_result(each.result) for each in (paths, other)]
        assert [each.status for each in found if each] == ["failed", "ok"]
        assert paths.unusable_result.read_bytes() == damage


def test_another_sweep_is_refused_before_the_record_is_replaced(commands: Commands) -> None:
    sweep, runner = commands.sweep(repeat=1), commands.runner()
    commands.finish(sweep)
    runner.prepare(sweep)
    before = commands.paths.record.read_bytes()
    with pytest.raises(InputError, match="1 of 2 finished runs"):
        runner.prepare(replace(sweep, runs=sweep.runs[:1]))
    assert commands.paths.record.read_bytes() == before


def test_data_without_room_is_no_bad_input(commands: Commands) -> None:
    sweep = commands.sweep(1, "[{base: {strategy: serial, dataset: synthetic}}]")
    for code, expected in ((errno.ENOSPC, StorageError), (errno.EACCES, InputError)):
        error = DataError("not there")
        error.__cause__ = OSError(code, "No")
        commands.patch(Synthetic, "prepare", Mock(side_effect=error))
        with pytest.raises(expected):
            commands.runner().prepare(sweep)
        assert not commands.paths.directory.exists()


def test_a_sweep_of_one_seed_needs_no_run_before_the_first(commands: Commands) -> None:
    commands.paths.warm_up_run.mkdir(parents=True)  # by a command that was killed
    (commands.paths.warm_up_run / "spec.json").touch()
    results = commands.run(commands.sweep(repeat=1))
    assert commands.started == [result.key for result in results]
    assert not commands.paths.warm_up_run.exists()


@pytest.mark.parametrize("error", [InputError("no"), OSError(28, "full"), KeyboardInterrupt()], ids=repr)
def test_a_run_before_the_first_that_fails_leaves_nothing(commands: Commands, error: BaseException) -> None:
    def fail(*_: object) -> NoReturn:
        assert commands.paths.warm_up_run.exists()
        raise error

    commands.patch(FakeRun, "wait", fail)
    sweep, runner = commands.sweep(repeat=2), commands.runner()
    runner.prepare(sweep)
    interrupted = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        runner.warm_up(sweep)
    assert {path.name for path in commands.paths.directory.iterdir()} == {"sweep.json"}


@pytest.mark.parametrize("trouble", ["the disk is full", "it was removed"])
def test_a_sweep_stops_when_results_cannot_be_written(commands: Commands, trouble: str) -> None:
    """The run has a row, and what it was writing is removed. It ends at once if its results are removed."""

    def collect(run: FakeRun) -> list[Event]:
        run.paths.live.mkdir(parents=True)
        (run.paths.live / "rank-0.jsonl").touch()
        if trouble == "the disk is full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.paths.events))
        return []

    commands.patch(FakeRun, "collect", collect)
    if trouble == "it was removed":
        commands.patch(FakeRun, "wait", lambda *_: RUNNING)
        out = commands.paths.directory
        remove = lambda *_: (shutil.rmtree(out) if out.exists() else pytest.fail("it goes on")) or []  # noqa: E731
        commands.patch(FakeRun, "new_events", remove)
    sweep, runner = commands.sweep(2, "[{base: {strategy: fault_injection}}]"), commands.runner()
    runner.prepare(sweep)
    with pytest.raises(StorageError, match=f"{sweep.runs[0].key}: {trouble}. Repair"):
        list(runner.results(sweep))
    first, second = (commands.paths.run(run.key) for run in sweep.runs)
    row = read_result(first.result)
    assert row is not None
    assert (row.status, trouble in str(row.cause)) == ("failed", True)
    assert not first.live.exists()
    assert not second.directory.exists()


def test_checkpoints_that_cannot_be_removed_are_named_after_all_runs(commands: Commands) -> None:
    def refused(path: Path, **_: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    sweep = commands.sweep(repeat=1)
    commands.finish(sweep)
    commands.patch(shutil, "rmtree", refused)
    results = commands.runner().results(sweep)
    assert [next(results).status, next(results).status] == ["ok", "ok"]
    with pytest.raises(InputError) as raised:
        next(results)
    for run in sweep.runs:
        path = commands.paths.run(run.key).checkpoints
        assert f"{path}: cannot be removed ({path}: Permission denied)" in str(raised.value)


def test_a_run_ends_by_itself_by_an_error_or_by_its_time_limit(commands: Commands) -> None:
    def wait(*_: object) -> RunState:
        clock.pass_(0.5)
        return next(left, states[-1])

    commands.patch(FakeRun, "wait", wait)
    for states, ended_s, cause in (
        ([RUNNING], 8.5, "stopped after 8 s"),
        ([replace(RUNNING, waiting=True)] * 30 + [RUNNING], 15 + 8.5, "stopped after 8 s"),
        ([RUNNING, replace(RUNNING, error="it is stuck")], 1.0, "it is stuck"),
        ([replace(RUNNING, exits={"node 0": 1})], 3.0, "did not start"),  # the others have 2 s to report
        ([RUNNING, ENDED], 1.0, "did not start"),
    ):
        clock, left = FakeTime(0.0), iter(states)
        commands.patch(module.time, "monotonic", clock)
        assert cause in str(commands.runner().run(RUN).cause)
        assert clock.now == ended_s


def test_a_run_that_loses_its_warm_nodes_is_repeated_once(commands: Commands) -> None:
    def wait(*_: object) -> RunState:
        clock.pass_(1.0)
        return states.pop(0)

    clock, states = FakeTime(), [replace(RUNNING, error="node 1 was lost", nodes_lost=True)] * 3 + [ENDED]
    commands.patch(module.time, "time", clock)
    commands.patch(FakeRun, "wait", wait)
    assert commands.runner().run(RUN).cause == "node 1 was lost"
    result = commands.runner().run(RUN)
    reason = "node 1 was lost during the run, which was then repeated"
    assert (result.nodes_replaced, result.started_at, result.wall_s) == (reason, 102.0, 2.0)
    assert len(commands.started) == 4


def test_only_new_nodes_that_runs_share_are_announced(commands: Commands) -> None:
    notes: list[str] = []
    commands.patch(RecordingDisplay, "note", lambda _, text: notes.append(text))
    for size, shared in ((2, True), (2, False), (0, True)):
        cluster = ClusterPlan(size, shared)
        commands.patch(FakeRuntime, "plan", lambda _, *of, cluster=cluster: LaunchPlan(*of[:3], cluster))
        runner = commands.runner()
        for _ in range(2):
            runner.run(RUN)
    assert notes == [f"  starting {commands.runtime.node_kind()}, which later runs share"]


def test_a_result_is_built_from_all_that_the_run_has_left(commands: Commands) -> None:
    def collect(run: FakeRun) -> list[Event]:
        launcher = "b" * 9 + "e" * module.LOG_BYTES
        for name, text in {"node-1": "x", "node-0": "y", "empty": "", "launcher": launcher}.items():
            run.paths.log(name).write_text(text)
        run.paths.usage.write_text("{")
        return EVENTS

    built = Mock(side_effect=module.build_result)
    commands.patch(module, "build_result", built)
    commands.patch(module.time, "time", FakeTime(50.0))
    commands.patch(FakeCluster, "engine_start_s", 0.25)
    commands.patch(FakeCluster, "engine_stop_s", 0.5)
    commands.patch(FakeRun, "collect", collect)
    commands.patch(FakeRun, "replaced", "it was gone")
    commands.patch(FakeRun, "requeues", ("preempted",))
    commands.patch(FakeRun, "wait", lambda *_: replace(ENDED, exits={"node 0": 3}, error="it broke"))
    commands.runner().run(RUN, order=7)
    spec, left, place = built.call_args.args
    runtime = commands.runtime
    assert place == Place("nothing", runtime.info, runtime.node_kind(), runtime.cores(), {"number": 0})
    assert (spec, left.logs) == (RUN, ["launcher.log", "node-0.log", "node-1.log"])
    ended = {"started_at": 50.0, "ended_at": 50.0, "exits": {"node 0": 3}, "runtime_error": "it broke"}
    nodes = {
        "nodes_replaced": "it was gone",
        "requeues": ("preempted",),
        "engine_s": (0.25, 0.5),
        "order": 7,
    }
    files = {"weights_kept": False, "launcher_log": "e" * module.LOG_BYTES, "invalid": left.invalid}
    read: dict[str, Any] = {"events": EVENTS, "suspended": {}, "usage": [], "logs": left.logs}
    assert left == Execution(**ended, **nodes, **files, **read)
    assert "usage" in str(left.invalid)

"""SweepRunner: for each run, plan, start, watch, stop, collect, and write the result."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import InputError, StorageError, data_error, output_error, storage_trouble
from orchestrator.execution.clusters import Clusters, warm_groups
from orchestrator.execution.order import execution_order, warm_up_run
from orchestrator.execution.run_result import Execution, Place, build_result
from orchestrator.results.environment import environment
from orchestrator.results.records import RunResult
from orchestrator.results.store import (
    RunPaths,
    SweepPaths,
    SweepRecord,
    UnusableFile,
    check_no_link,
    check_same_sweep,
    imported_code,
    make_private,
    read_result,
    read_usage,
    untraced_ranks,
    write_atomic,
)
from orchestrator.runtimes.base import Run, RunState, Runtime
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.stages import Stages
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event
from trainer.core.regular_files import RefusedFile, open_below
from trainer.data.base import DataError
from trainer.spec.run_spec import RunSpec

TICK_S = 0.25
# Time that the other processes have to write their own exit reports after one has failed.
GRACE_S = 2.0
LOG_BYTES = 2**16  # of the launcher's log, which ends with what mpirun says about lost ranks
ATTEMPTS = 2  # of a run that has lost its warm nodes


class Progress(Protocol):
    """Shows what a sweep is doing."""

    def warm_up(self, run: RunSpec) -> None: ...
    def begin(self, number: int, total: int, run: RunSpec) -> None: ...
    def events(self, events: Sequence[Event]) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


@dataclass(frozen=True)
class SweepRunner:
    """Executes a sweep's runs one at a time, so that they do not slow each other down."""

    clusters: Clusters
    runtime_name: str
    paths: SweepPaths
    data_dir: Path
    progress: Progress

    @property
    def runtime(self) -> Runtime:
        return self.clusters.runtime

    @cached_property
    def _environment(self) -> dict[str, Any]:
        """Read once: it is constant during a sweep, and git is slow."""
        return {**environment(), **self.runtime.environment()}

    def prepare(self, sweep: Sweep) -> None:
        """Check every run and download the datasets before anything starts.

        Raises InputError, or StorageError if there is no room for a dataset.
        """
        code: dict[str, Any] = {}
        for run in sweep.runs:
            code |= imported_code(run.model_dump(mode="json"))
        check_same_sweep(self.paths, sweep.spec.name, {run.key for run in sweep.runs}, code)
        for each in self.paths.directory.glob("*"):
            if each.is_dir():
                check_no_link(each)
        for left in (self.paths.warm_up_run, self.paths.warm):  # by a sweep that was killed
            _remove(left)
        self.runtime.check(sweep.runs, self.data_dir)
        self.clusters.expect(sweep.runs)
        for dataset in {run.dataset.model_dump_json(): run.dataset for run in sweep.runs}.values():
            try:
                dataset.prepare(self.data_dir)
            except DataError as error:
                raise data_error(self.data_dir, error) from error
        if sweep.imports and sweep.imports.code:
            try:
                make_private(self.paths.code.parent)
                sweep.imports.copy_to(self.paths.code, sweep.runs)
            except OSError as error:
                raise output_error(self.paths.directory, error) from error
        self.record(sweep)

    def record(self, sweep: Sweep, stages: Stages | None = None) -> None:
        """Write which runs the results directory has. stages: if seeds are added until it is decided."""
        record = SweepRecord(
            name=sweep.spec.name,
            description=sweep.spec.description,
            source=sweep.source,
            overrides=sweep.overrides,
            keys=[run.key for run in sweep.runs],
            order=[run.key for run in in_order(sweep, self.runtime)],
            environment=self._environment,
            lab=sweep.spec.lab,
            blocks=sweep.blocks,
            equal_cpus=sweep.equal_cpus,
            tolerance=sweep.tolerance,
            questions=sweep.spec.questions,
            stages=stages,
        )
        write_atomic(self.paths.record, record.model_dump_json(indent=2))

    def warm_up(self, sweep: Sweep) -> None:
        """Execute a short run and drop its result, because the first run on a machine has cold caches.

        Only if the sweep repeats its runs, and if it has any left to execute. A failure is ignored: the
        first run reports its cause.
        """
        run = warm_up_run(sweep.runs)
        if run is None or all(self.is_done(each) for each in sweep.runs):
            return
        self.progress.warm_up(run)
        try:
            with suppress(OSError, InputError):
                self._execute(run, RunPaths(self.paths.warm_up_run))
        finally:
            _remove(self.paths.warm_up_run)

    def results(
        self, sweep: Sweep, earlier: int = 0, may_start: Callable[[RunSpec], bool] | None = None
    ) -> Iterator[RunResult]:
        """Execute the runs that are not done yet; yields one result per run, in the order of execution.

        Args:
            earlier: number of the runs of earlier stages.
            may_start: whether a run that is not done yet is executed; None: all are. Others have no result.

        Raises:
            StorageError: Results cannot be written. The run in progress has a row if there is room for it.
            InputError: At the end, if checkpoints of a finished run cannot be removed.
        """
        total = earlier + len(sweep.runs)
        unremoved = []
        executed = earlier
        for number, run in enumerate(in_order(sweep, self.runtime), start=earlier + 1):
            if may_start and not self.is_done(run) and not may_start(run):
                continue
            paths = self.paths.run(run.key)
            done = self._result_of(paths)
            skipped = _is_ok(done)
            if done is None or not skipped:
                self.progress.begin(number, total, run)
                started_at = time.time()
                try:
                    done = self.run(run, executed)
                except OSError as error:  # e.g. a full disk: no run can succeed
                    trouble = "it was removed" if error.errno == errno.ENOENT else storage_trouble(error)
                    self._write_lost_result(run, started_at, trouble, executed)
                    advice = "Repair that, then run the same command to resume"
                    raise StorageError(paths.directory, f"{trouble}. {advice}") from error
                executed += 1
            # Skipped runs too: their sweep may have been killed right after it wrote the result.
            if done.status == "ok" and (reason := _remove(paths.checkpoints)):
                unremoved.append(
                    f"{paths.checkpoints}: cannot be removed ({reason}); no run needs it any more"
                )
            self.progress.end(number, total, done, skipped)
            yield done
        if unremoved:
            raise InputError("\n".join(unremoved))

    def is_done(self, run: RunSpec) -> bool:
        """Whether the directory has a result of the run that is ok and can be used."""
        try:
            found = read_result(self.paths.run(run.key).result)
        except UnusableFile:
            return False
        return found is not None and _is_ok(found) and self.runtime.can_reuse(found)

    def _result_of(self, paths: RunPaths) -> RunResult | None:
        """The result of an earlier sweep. One that cannot be used is renamed, and the run repeated."""
        try:
            found = read_result(paths.result)
            if found is not None and not self.runtime.can_reuse(found):
                self.progress.note(
                    f"{found.key}: its result has other options of the runtime; it is repeated"
                )
                return None
            return found
        except UnusableFile as error:
            os.replace(paths.result, paths.unusable_result)
            self.progress.note(f"{error}\n  kept as {paths.unusable_result.name}; the run is repeated")
            return None

    def run(self, spec: RunSpec, order: int | None = None) -> RunResult:
        """Execute one run, from the start or its last checkpoint, and write its result.

        An interrupted run leaves logs and checkpoints, but no result.

        Args:
            spec: the run.
            order: its position among the executed runs, from 0.

        Raises:
            OSError: Results cannot be written.
        """
        return self._execute(spec, self.paths.run(spec.key), order)

    def _execute(self, spec: RunSpec, paths: RunPaths, order: int | None = None) -> RunResult:
        started_at = time.time()
        replaced: str | None = None
        for _ in range(ATTEMPTS):
            _remove_previous_attempt(paths)
            write_atomic(paths.spec, spec.model_dump_json(indent=2))
            plan = self.clusters.plan(spec, paths, self.data_dir)
            write_atomic(paths.plan, json.dumps({"runtime": self.runtime_name, **plan.as_dict()}, indent=2))
            if plan.cluster.shared and plan.cluster.size and not self.clusters.has(plan.cluster):
                self.progress.note(f"  starting {self.runtime.node_kind()}, which later runs share")
            with self.clusters.lease(plan) as lease, lease.cluster.run(plan) as run:
                try:
                    state, timed_out_s = self._watch(run, spec.timeout_s, paths)
                    suspended = run.suspended() if timed_out_s else {}
                finally:
                    run.stop()
                    events = run.collect()
            replaced = replaced or lease.replaced or run.replaced
            if not state.nodes_lost:
                break
            replaced = f"{state.error} during the run, which was then repeated"
        _check_not_removed(paths)
        usage, invalid = _usage(paths)
        result = self._write_result(
            spec,
            paths,
            Execution(
                events=events,
                exits=state.exits,
                started_at=started_at,
                ended_at=time.time(),
                timed_out_s=timed_out_s,
                runtime_error=state.error,
                suspended=suspended,
                usage=usage,
                invalid=invalid,
                weights_kept=paths.weights.exists(),
                untraced=untraced_ranks(paths, spec, self.runtime.info.simulates_time),
                launcher_log=_launcher_log(paths),
                logs=sorted(log.name for log in paths.directory.glob("*.log") if log.stat().st_size),
                warm=plan.warm,
                nodes_replaced=replaced,
                requeues=run.requeues,
                engine_s=(lease.cluster.engine_start_s, lease.cluster.engine_stop_s),
                order=order,
            ),
        )
        if result.status == "ok":
            shutil.rmtree(paths.checkpoints, ignore_errors=True)  # `results` reports what remains
        return result

    def _write_lost_result(self, spec: RunSpec, started_at: float, trouble: str, order: int) -> None:
        """Remove what a run was writing, and write a row without its events if there is room for it."""
        paths = self.paths.run(spec.key)
        shutil.rmtree(paths.live, ignore_errors=True)
        lost = f"the results of the run were lost: {paths.directory}: {trouble}"
        execution = Execution(started_at=started_at, ended_at=time.time(), runtime_error=lost, order=order)
        with suppress(OSError):
            self._write_result(spec, paths, execution)

    def _write_result(self, spec: RunSpec, paths: RunPaths, execution: Execution) -> RunResult:
        """Write the result of a run that has just ended."""
        place = Place(
            self.runtime_name,
            self.runtime.info,
            self.runtime.node_kind(),
            self.runtime.cores(),
            self._environment,
        )
        result = build_result(spec, execution, place)
        write_atomic(paths.result, result.model_dump_json(indent=2))
        return result

    def _watch(self, run: Run, timeout_s: float, paths: RunPaths) -> tuple[RunState, float | None]:
        """Wait until all processes have ended, one has failed, or the time limit has passed.

        Returns the state, and the time limit if it has passed. Raises FileNotFoundError if the run's
        directory is removed, because there will be no result.
        """
        deadline = time.monotonic() + timeout_s
        failing_since: float | None = None
        while True:
            state = run.wait(TICK_S)
            self.progress.events(run.new_events())
            _check_not_removed(paths)
            now = time.monotonic()
            if state.waiting:
                deadline = now + timeout_s
            if not state.running or state.error:
                return state, None
            if state.failing:
                failing_since = failing_since or now
                if now - failing_since > GRACE_S:
                    return state, None
            if now > deadline:
                return state, timeout_s


def in_order(sweep: Sweep, runtime: Runtime) -> list[RunSpec]:
    """The sweep's runs in the order in which this runtime executes them."""
    return execution_order(sweep.spec.name, warm_groups(runtime, sweep.runs))


def _is_ok(result: RunResult | None) -> bool:
    return result is not None and result.status == "ok"


def _check_not_removed(paths: RunPaths) -> None:
    """Raises FileNotFoundError if the directory of a run in progress was removed."""
    if not paths.spec.exists():
        raise FileNotFoundError(errno.ENOENT, "removed during the run", str(paths.directory))


def _usage(paths: RunPaths) -> tuple[list[NodeUsage], str | None]:
    """Usage of the run's nodes, and why it cannot be read."""
    try:
        return read_usage(paths.usage), None
    except ValueError as error:
        return [], str(error)


def _launcher_log(paths: RunPaths) -> str:
    """The end of what mpirun has written; empty if it does not start the ranks."""
    try:
        with open_below(paths.directory, paths.log("launcher").name) as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_BYTES))
            return log.read().decode(errors="replace")
    except (FileNotFoundError, RefusedFile):
        return ""


def _remove(directory: Path) -> str | None:
    """Remove a directory if it exists. Returns why it cannot be removed, or None."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _remove_previous_attempt(paths: RunPaths) -> None:
    """Empty the run's directory except for the checkpoints, from which this attempt resumes."""
    make_private(paths.directory)
    for left in paths.directory.iterdir():
        if left in (paths.checkpoints, paths.unusable_result) and not left.is_symlink():
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()

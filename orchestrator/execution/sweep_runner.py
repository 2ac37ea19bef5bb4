"""The runner: for each run, plan, start, watch, collect, stop."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import InputError
from orchestrator.execution.assemble import assemble
from orchestrator.results.environment import environment
from orchestrator.results.records import RunResult
from orchestrator.results.store import (
    RunPaths,
    SweepPaths,
    SweepRecord,
    read_result,
    read_usage,
    write_atomic,
)
from orchestrator.runtimes.base import RunHandle, RunState, Runtime
from orchestrator.sweeps.load import Sweep
from trainer.core.events import Event, read_events
from trainer.data.base import DataError
from trainer.spec.run_spec import RunSpec

TICK_S = 0.25
# After one process of a run has failed, the others get this long to fail and say so themselves.
GRACE_S = 2.0


class Display(Protocol):
    """Who is told what goes on while a sweep runs."""

    def begin(self, number: int, total: int, run: RunSpec) -> None: ...
    def events(self, events: Sequence[Event]) -> None: ...
    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


@dataclass(frozen=True)
class SweepRunner:
    """Runs a sweep's runs one after the other, so that they do not disturb each other."""

    runtime: Runtime
    runtime_name: str
    paths: SweepPaths
    data_dir: Path
    display: Display

    @cached_property
    def _environment(self) -> dict[str, Any]:
        """Asked once: it does not change while a sweep runs, and git takes its time."""
        return {**environment(), **self.runtime.environment()}

    def prepare(self, sweep: Sweep) -> None:
        """Check and fetch everything that no run should fail for. Raises InputError."""
        for run in sweep.runs:
            if lacking := self.runtime.unsupported_reason(run):
                raise InputError(f"{run.key}: {lacking}")
        for dataset in {run.dataset.model_dump_json(): run.dataset for run in sweep.runs}.values():
            try:
                dataset.prepare(self.data_dir)
            except DataError as error:
                raise InputError(str(error)) from error
        record = SweepRecord(
            name=sweep.spec.name,
            description=sweep.spec.description,
            source=sweep.source,
            overrides=sweep.overrides,
            keys=[run.key for run in sweep.runs],
            environment=self._environment,
            lab=sweep.spec.lab,
            blocks=sweep.blocks,
        )
        write_atomic(self.paths.record, record.model_dump_json(indent=2))

    def results(self, sweep: Sweep) -> Iterator[RunResult]:
        """Carry out what is not done yet; yields one result per run, in order.

        Raises InputError: at once where nothing can be written, and at the end if checkpoints of a finished
        run cannot be removed.
        """
        total = len(sweep.runs)
        stuck = []
        for number, run in enumerate(sweep.runs, start=1):
            paths = self.paths.run(run.key)
            done = read_result(paths.result)
            skipped = done is not None and done.status == "ok"
            if done is None or not skipped:
                self.display.begin(number, total, run)
                try:
                    done = self.run(run)
                except OSError as error:  # a full disk, a directory that is gone: no run can succeed
                    raise InputError(f"{paths.directory}: cannot be written ({error})") from error
            # Also those of a run that is skipped: its sweep may have been killed right after the row.
            if done.status == "ok" and (trouble := _unremovable(paths.checkpoints)):
                stuck.append(
                    f"{paths.checkpoints}: cannot be removed ({trouble}), and is of no use any more"
                )
            self.display.end(number, total, done, skipped)
            yield done
        if stuck:
            raise InputError("\n".join(stuck))

    def run(self, spec: RunSpec) -> RunResult:
        """One run, from nothing or its last checkpoint to its row on disk.

        Interrupted, it leaves logs and checkpoints but no row.
        """
        started_at, paths = time.time(), self.paths.run(spec.key)
        _fresh(paths)
        write_atomic(paths.spec, spec.model_dump_json(indent=2))
        plan = self.runtime.plan(spec, paths, self.data_dir)
        write_atomic(paths.plan, json.dumps({"runtime": self.runtime_name, **plan.as_dict()}, indent=2))
        with self.runtime.start(plan) as handle:
            try:
                state, timed_out_s = self._watch(handle, spec.timeout_s)
            finally:
                handle.stop()
                handle.collect(paths)
        result = assemble(
            spec,
            list(read_events(paths.events)),
            state.exits,
            runtime=self.runtime_name,
            runtime_info=self.runtime.info,
            node_kind=self.runtime.node_kind(),
            started_at=started_at,
            ended_at=time.time(),
            timed_out_s=timed_out_s,
            trouble=state.trouble,
            usage=read_usage(paths.usage),
            cores=self.runtime.cores(),
            weights_kept=paths.weights.exists(),
            environment=self._environment,
        )
        write_atomic(paths.result, result.model_dump_json(indent=2))
        if result.status == "ok":
            shutil.rmtree(paths.checkpoints, ignore_errors=True)  # `results` looks whether they are gone
        return result

    def _watch(self, handle: RunHandle, timeout_s: float) -> tuple[RunState, float | None]:
        """Until all processes have ended, one has failed, or time is up (then the limit is returned)."""
        deadline = time.monotonic() + timeout_s
        failing_since: float | None = None
        while True:
            state = handle.wait(TICK_S)
            self.display.events(handle.new_events())
            now = time.monotonic()
            if not state.running or state.trouble:
                return state, None
            if state.failing:
                failing_since = failing_since or now
                if now - failing_since > GRACE_S:
                    return state, None
            if now > deadline:
                return state, timeout_s


def _unremovable(directory: Path) -> str | None:
    """Remove a directory that may be there; why it cannot be, or None."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _fresh(paths: RunPaths) -> None:
    """A directory with nothing of an earlier attempt but the checkpoints that this one may go on from."""
    paths.directory.mkdir(parents=True, exist_ok=True)
    for left in paths.directory.iterdir():
        if left == paths.checkpoints:
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()

"""Which serial training each run is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from orchestrator.report.metrics.model_partition import state_bytes
from orchestrator.report.model.groups import Group, groups_of
from orchestrator.report.model.labels import Workload, paces_of
from orchestrator.report.model.places import names_of
from orchestrator.report.model.rows import SERIAL, Row
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Baseline:
    """The serial training of the same work: one run of the same seed, or the mean over other seeds.

    train_s, work_cpu_s: seconds; None where with some seed it trained for another number of epochs, since
    a target was reached. accuracy: 0 … 1. keys: the runs it comes from. state_bytes: what one node with
    the whole model keeps from step to step.
    """

    train_s: float | None
    work_cpu_s: float | None
    accuracy: float | None
    same_seed: bool
    keys: tuple[str, ...]
    parameters: int | None = None
    state_bytes: float | None = None


def rows_of(results: Sequence[tuple[str, RunResult, RunSpec]]) -> list[Row]:
    """One row per (key, result, spec), in the same order, each with its baseline."""
    places = names_of([result for _, result, _ in results])
    paces = paces_of([run for _, _, run in results])
    alone = [
        Row(key, result, run, None, where, pace)
        for (key, result, run), where, pace in zip(results, places, paces, strict=True)
    ]
    serial: dict[Workload, list[Row]] = {}
    for row in alone:
        if row.ok and row.strategy == SERIAL:
            serial.setdefault(row.work, []).append(row)
    rows = [replace(row, baseline=_baseline(row, serial.get(row.work, []))) for row in alone]
    # A mean over the seeds whose epochs happen to be as many would not be that of the cell.
    unlike = {row.key for group in groups_of(rows) if not _timed(group) for row in group.rows}
    return [replace(row, baseline=_untimed(row.baseline)) if row.key in unlike else row for row in rows]


def _timed(group: Group) -> bool:
    return all(row.baseline.train_s is not None for row in group.rows if row.baseline)


def _untimed(baseline: Baseline | None) -> Baseline | None:
    return replace(baseline, train_s=None, work_cpu_s=None) if baseline else None


def _baseline(row: Row, serial: Sequence[Row]) -> Baseline | None:
    """None for a run that has nothing to compare, or nothing to compare with."""
    if not row.ok or not row.trains or not serial:
        return None
    # Checkpoints take their time: of serial with and without, the one that took as many as the row.
    as_often = [other for other in serial if _checkpoints(other) == _checkpoints(row)]
    serial = as_often or [other for other in serial if not other.run.checkpoints]
    if not serial:
        return None
    twins = [other for other in serial if other.seed == row.seed]
    chosen = twins or serial
    alike = all(other.result.last_epoch == row.result.last_epoch for other in chosen)
    return Baseline(
        train_s=_mean([other.train_s for other in chosen]) if alike else None,
        work_cpu_s=_mean([other.work_cpu_s for other in chosen]) if alike else None,
        accuracy=_mean([other.accuracy for other in chosen]),
        same_seed=bool(twins),
        keys=tuple(other.key for other in chosen),
        parameters=chosen[0].result.ranks[0].parameters if chosen[0].result.ranks else None,
        state_bytes=_mean([state_bytes(other) for other in chosen]),
    )


def _checkpoints(row: Row) -> tuple[int | None, int | None]:
    return row.run.checkpoint_epochs, row.run.checkpoint_steps


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

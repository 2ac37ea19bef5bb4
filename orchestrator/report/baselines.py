"""Which serial training each run is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from orchestrator.report.cut import held_bytes
from orchestrator.report.labels import Work
from orchestrator.report.places import names_of
from orchestrator.report.rows import SERIAL, Baseline, Row
from orchestrator.result import RunResult
from trainer.spec import RunSpec


def rows_of(results: Sequence[tuple[str, RunResult, RunSpec]]) -> list[Row]:
    """One row per (key, result, spec), in the same order, each with its baseline."""
    places = names_of([result for _, result, _ in results])
    alone = [
        Row(key, result, run, None, where)
        for (key, result, run), where in zip(results, places, strict=True)
    ]
    serial: dict[Work, list[Row]] = {}
    for row in alone:
        if row.ok and row.strategy == SERIAL:
            serial.setdefault(row.work, []).append(row)
    return [replace(row, baseline=_baseline(row, serial.get(row.work, []))) for row in alone]


def _baseline(row: Row, serial: Sequence[Row]) -> Baseline | None:
    """None for a run that has nothing to compare, or nothing to compare with."""
    if not row.ok or not row.trains or not serial:
        return None
    twins = [other for other in serial if other.seed == row.seed]
    chosen = twins or serial
    return Baseline(
        train_s=_mean([other.train_s for other in chosen]),
        work_cpu_s=_mean([other.work_cpu_s for other in chosen]),
        accuracy=_mean([other.accuracy for other in chosen]),
        same_seed=bool(twins),
        keys=tuple(other.key for other in chosen),
        parameters=chosen[0].result.ranks[0].parameters if chosen[0].result.ranks else None,
        held_bytes=_mean([held_bytes(other) for other in chosen]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

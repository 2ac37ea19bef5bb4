"""The columns of summary.csv: a configuration in a line."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report.metrics.intervals import (
    interval_of_accuracy,
    interval_of_speedup,
    interval_of_time,
)
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.render.csv_columns import (
    NO_SPEEDUP,
    WITH_PARAMETERS,
    CsvColumn,
    Value,
)
from orchestrator.report.statistics.intervals import MIN_SEEDS

Interval = Callable[[Group], tuple[float, float] | None]
FEW_SEEDS = f"fewer than {MIN_SEEDS} seeds are ok"


def _mean(metric: Metric, geometric: bool = False) -> Callable[[Group], Value]:
    def value(group: Group) -> Value:
        spread = group.over(metric, geometric)
        return spread.mean if spread else None

    return value


def _bound(bounds: Interval, index: int) -> Callable[[Group], Value]:
    def value(group: Group) -> Value:
        found = bounds(group)
        return found[index] if found else None

    return value


def _interval(
    name: str, bounds: Interval, of: str, unit: str, empty: str
) -> tuple[CsvColumn[Group], CsvColumn[Group]]:
    return (
        CsvColumn(
            f"{name}_low", _bound(bounds, 0), f"lower bound of the 95 % interval of {of}", unit, empty
        ),
        CsvColumn(
            f"{name}_high", _bound(bounds, 1), f"upper bound of the 95 % interval of {of}", unit, empty
        ),
    )


def _state(group: Group) -> str:
    ok = len(group.ok_rows)
    return "ok" if ok == len(group.rows) else "partly" if ok else "failed"


def _largest_peak(group: Group) -> Value:
    return max(
        (row.peak_memory_mb for row in group.ok_rows if row.peak_memory_mb is not None), default=None
    )


SUMMARY_COLUMNS: tuple[CsvColumn[Group], ...] = (
    CsvColumn(
        "workload", lambda group: group.workload.label, "what compares: dataset, model and conditions"
    ),
    CsvColumn("strategy", lambda group: group.strategy_label, WITH_PARAMETERS),
    CsvColumn("transport", lambda group: group.transport, "what carries the bytes"),
    CsvColumn(
        "partitioner",
        lambda group: group.partitioner_label,
        WITH_PARAMETERS,
        empty="every node trains on the whole training set",
    ),
    CsvColumn("nodes", lambda group: group.shape.nodes, "number of nodes"),
    CsvColumn("ranks", lambda group: group.shape.ranks, "nodes × processes per node"),
    CsvColumn("seeds", lambda group: len(group.ok_rows), "number of ok runs; means are over these"),
    CsvColumn(
        "accuracy", _mean(lambda row: row.accuracy), "test accuracy of the final weights, mean", "0 … 1"
    ),
    *_interval("accuracy", interval_of_accuracy, "`accuracy`", "0 … 1", FEW_SEEDS),
    CsvColumn(
        "time_s",
        _mean(lambda row: row.train_s, True),
        "training time on `clock`, geometric mean",
        "s",
        "no run has a time on it",
    ),
    *_interval("time_s", interval_of_time, "`time_s`", "s", FEW_SEEDS),
    CsvColumn("clock", lambda group: group.first.clock, "of times and speedups: `wall` or `cluster`"),
    CsvColumn(
        "speedup",
        _mean(lambda row: row.speedup, True),
        "time of the serial run / time on `clock`, geometric mean",
        "",
        NO_SPEEDUP,
    ),
    *_interval(
        "speedup",
        interval_of_speedup,
        "`speedup`",
        "",
        f"{FEW_SEEDS}, seeds share a serial run, or it is serial",
    ),
    CsvColumn(
        "bytes_sent_per_rank",
        _mean(lambda row: row.bytes_sent_per_rank),
        "counted payload, mean over ranks and seeds",
        "B",
    ),
    CsvColumn(
        "peak_memory_mib",
        _largest_peak,
        "the largest peak of a rank of any seed",
        "MiB",
        "the system has no /proc",
    ),
    CsvColumn("state", _state, "of its runs with a result: `ok`, `partly` or `failed`"),
)

"""The columns of summary.csv: a configuration in a line."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report.metrics.configurations import (
    Bounds,
    accuracy_bounds,
    speedup_bounds,
    time_bounds,
)
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.render.csv_columns import (
    NO_SPEEDUP,
    CsvColumn,
    Value,
)
from orchestrator.report.statistics.contrasts import MIN_SEEDS

FEW_SEEDS = f"fewer than {MIN_SEEDS} ok seeds"


def _mean(metric: Metric, geometric: bool = False) -> Callable[[Group], Value]:
    def value(group: Group) -> Value:
        spread = group.over(metric, geometric)
        return spread.mean if spread else None

    return value


def _bound(bounds: Callable[[Group], Bounds | None], index: int) -> Callable[[Group], Value]:
    def value(group: Group) -> Value:
        found = bounds(group)
        return found[index] if found else None

    return value


def _interval(
    name: str, bounds: Callable[[Group], Bounds | None], of: str, unit: str, empty: str
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
    CsvColumn(
        "strategy", lambda group: group.strategy_label, "with its parameters that are not the default"
    ),
    CsvColumn("transport", lambda group: group.transport, "what carries the bytes"),
    CsvColumn(
        "partitioner",
        lambda group: group.partitioner_label,
        "with its parameters that are not the default",
        empty="every node trains on the whole training set",
    ),
    CsvColumn("nodes", lambda group: group.shape.nodes, "number of nodes"),
    CsvColumn("ranks", lambda group: group.shape.ranks, "nodes × processes per node"),
    CsvColumn("seeds", lambda group: len(group.ok_rows), "number of ok runs; means are over these"),
    CsvColumn(
        "accuracy", _mean(lambda row: row.accuracy), "test accuracy of the final weights, mean", "0 … 1"
    ),
    *_interval("accuracy", accuracy_bounds, "`accuracy`", "0 … 1", FEW_SEEDS),
    CsvColumn(
        "time_s", _mean(lambda row: row.train_s, True), "training time on `clock`, geometric mean", "s"
    ),
    *_interval("time_s", time_bounds, "`time_s`", "s", FEW_SEEDS),
    CsvColumn("clock", lambda group: group.first.clock, "of times and speedups: `wall` or `cluster`"),
    CsvColumn(
        "speedup",
        _mean(lambda row: row.speedup, True),
        "time of the serial run / time on `clock`, geometric mean",
        "",
        NO_SPEEDUP,
    ),
    *_interval(
        "speedup", speedup_bounds, "`speedup`", "", f"serial; {FEW_SEEDS}; seeds share a serial run"
    ),
    CsvColumn(
        "bytes_sent_per_rank",
        _mean(lambda row: row.bytes_sent_per_rank),
        "counted payload, mean over ranks and seeds",
        "B",
    ),
    CsvColumn(
        "peak_memory_mib", _largest_peak, "the largest peak of a rank of any seed", "MiB", "no /proc"
    ),
    CsvColumn("state", _state, "of its runs with a result: `ok`, `partly` or `failed`"),
)

"""The columns of summary.csv: a configuration in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import ACCURACY, BYTES_SENT_PER_RANK, PEAK_MEMORY_MIB, SPEEDUP, TRAIN_S
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.render.csv_columns import (
    NO_PARTITION,
    TRANSPORT,
    WITH_PARAMETERS,
    CsvColumn,
    Value,
)
from orchestrator.report.statistics.contrasts import MIN_SEEDS as COMPARED_SEEDS
from orchestrator.report.statistics.intervals import MIN_SEEDS

FEW_SEEDS = f"fewer than {MIN_SEEDS} seeds are ok"


def _over_seeds(
    quantity: Quantity, meaning: str, empty: str = "", name: str = "", largest: bool = False
) -> CsvColumn[Group]:
    def value(group: Group) -> Value:
        spread = quantity.over(group)
        return (spread.high if largest else spread.mean) if spread else None

    return CsvColumn(name or quantity.name, value, meaning, quantity.unit.name, empty or quantity.empty)


def _interval(
    quantity: Quantity,
    empty: str = FEW_SEEDS,
    name: str = "",
    of: Callable[[Group], Bounds | None] | None = None,
) -> Iterator[CsvColumn[Group]]:
    """of: finds the interval of a group; default: that of the quantity."""
    name, find = name or quantity.name, of or quantity.interval
    for index, (end, bound) in enumerate({"low": "lower", "high": "upper"}.items()):

        def value(group: Group, index: int = index) -> Value:
            interval = find(group)
            return interval[index] if interval else None

        meaning = f"{bound} bound of the 95 % interval of `{name}`"
        yield CsvColumn(f"{name}_{end}", value, meaning, quantity.unit.name, empty)


def _state(group: Group) -> str:
    ok = len(group.ok_rows)
    return "ok" if ok == len(group.rows) else "partly" if ok else "failed"


def summary_columns(
    speedup_interval: Callable[[Group], Bounds | None] = lambda group: None,
) -> tuple[CsvColumn[Group], ...]:
    """The columns. speedup_interval: finds the interval of a group's speedup."""
    return (
        CsvColumn(
            "workload", lambda group: group.workload.label, "what compares: dataset, model and conditions"
        ),
        CsvColumn("strategy", lambda group: group.strategy_label, WITH_PARAMETERS),
        CsvColumn("transport", lambda group: group.transport, TRANSPORT),
        CsvColumn(
            "partitioner", lambda group: group.partitioner_label, WITH_PARAMETERS, empty=NO_PARTITION
        ),
        CsvColumn("nodes", lambda group: group.shape.nodes, "number of nodes"),
        CsvColumn("ranks", lambda group: group.shape.ranks, "nodes × processes per node"),
        CsvColumn("seeds", lambda group: len(group.ok_rows), "number of ok runs; means are over these"),
        _over_seeds(ACCURACY, f"{ACCURACY.meaning}, mean"),
        *_interval(ACCURACY),
        _over_seeds(
            TRAIN_S, "training time on `clock`, geometric mean", "no run has a time on it", "time_s"
        ),
        *_interval(TRAIN_S, name="time_s"),
        CsvColumn("clock", lambda group: group.first.clock, "of times and speedups: `wall` or `cluster`"),
        _over_seeds(SPEEDUP, "time of the serial run / time on `clock`, geometric mean"),
        *_interval(
            SPEEDUP,
            f"fewer than {COMPARED_SEEDS} seeds of it or of serial are ok, or it is serial",
            of=speedup_interval,
        ),
        _over_seeds(BYTES_SENT_PER_RANK, f"{BYTES_SENT_PER_RANK.meaning} and seeds"),
        _over_seeds(PEAK_MEMORY_MIB, f"{PEAK_MEMORY_MIB.meaning} of any seed", largest=True),
        CsvColumn("state", _state, "of its runs with a result: `ok`, `partly` or `failed`"),
    )

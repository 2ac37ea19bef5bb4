"""The columns of runs and of configurations, for the tables of the page and for the CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, JOIN
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import (
    ACCURACY,
    BYTES_SENT_PER_RANK,
    LOCAL_ACCURACY,
    PEAK_MEMORY_MIB,
    QUANTITIES,
    SPEEDUP,
    TRAIN_S,
)
from orchestrator.report.quantities.containers import containers
from orchestrator.report.quantities.data_partition import NO_CERTIFICATE
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.quantities.model_partition import NO_STAGES
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.quantities.times import NO_CHECKPOINTS, NO_SERIAL_RUN, NOT_RECORDED
from orchestrator.report.render.order import ORDER
from orchestrator.report.render.tables import Cell, Column, Value, csv_column, range_beside
from orchestrator.report.statistics.contrasts import MIN_SEEDS as COMPARED_SEEDS
from orchestrator.report.statistics.intervals import MIN_SEEDS
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.results.limits import written
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

IntervalOf = Callable[[Group], Bounds | None]

WITH_PARAMETERS = "name, and the parameters that are not the default"
NO_TARGET = "the run has no target"
# Of fields of the sweep file: their units, and when they are empty.
UNITS = {
    "batch_size": "samples",
    "cpus": "cores",
    "memory_mb": "MiB",
    "shm_mb": "MiB",
    "target_accuracy": "0 … 1",
    "patience": "epochs",
    "checkpoint_epochs": "epochs",
    "checkpoint_steps": "steps",
}
EMPTY = {
    "target_accuracy": NO_TARGET,
    "checkpoint_epochs": NO_CHECKPOINTS,
    "checkpoint_steps": NO_CHECKPOINTS,
}


# Runs


def of_run(quantity: Quantity) -> Column[Row]:
    """A quantity of one run."""

    def cell(row: Row) -> Cell:
        value = quantity.of(row) if quantity.only(row) else None
        return Cell.of(value, quantity.write) if value is not None else Cell(quantity.missing(row))

    return Column(
        quantity.name,
        quantity.title,
        cell,
        shown_for=quantity.shown_for,
        value=quantity.of,
        meaning=quantity.meaning,
        unit=quantity.unit.name,
        empty=quantity.empty,
    )


def _field(name: str) -> Column[Row]:
    """A field of the sweep file, with the description that the field has there."""
    if name in REGISTRIES:
        return csv_column(name, lambda row: component_label(row.run, name), WITH_PARAMETERS)
    meaning = RunSpec.model_fields[name].description or ""
    return csv_column(
        name, lambda row: getattr(row.run, name), meaning, EMPTY.get(name, ""), UNITS.get(name, "")
    )


def _node_speed(row: Row) -> Value:
    """The speeds of the nodes, separated by spaces; None if all are equal."""
    run = row.run
    return " ".join(f"{speed:g}" for speed in run.node_speeds) if run.slower_nodes else None


def _local_accuracy(row: Row) -> Cell:
    """The mean over the nodes, with the range over them."""
    spread = Spread.of(row.local_accuracies)
    return (
        Cell(ABSENT)
        if spread is None
        else Cell.of(spread.mean, formats.percent, spread.range(formats.percent))
    )


def _yes_no(value: bool | None) -> Cell:
    return Cell(ABSENT if value is None else "yes" if value else "no")


# Those that are neither a quantity nor a field of the sweep file, or shown otherwise.
_OF_RUNS: tuple[Column[Row], ...] = (
    csv_column("key", lambda row: row.key, "the run's key and directory"),
    csv_column("status", lambda row: row.status, "`ok`, `failed`, `timeout`, `unusable` or `pending`"),
    csv_column(
        "cause", lambda row: row.cause, "why the run is not ok, or its result not usable", "the run is ok"
    ),
    csv_column("transport", lambda row: row.transport, "what carries the bytes"),
    csv_column(
        "partitioner",
        lambda row: row.partitioner_label,
        WITH_PARAMETERS,
        "every node trains on the whole training set",
    ),
    csv_column("runtime", lambda row: row.result.runtime, "where the nodes ran: `docker` or `local`"),
    csv_column("cores", lambda row: written(row.result.cores), "cores that the nodes shared"),
    csv_column(
        "baseline",
        lambda row: " ".join(row.baseline.keys) if row.baseline else None,
        "keys of the serial runs that this run is compared with",
        NO_SERIAL_RUN,
    ),
    csv_column("no_speedup_reason", lambda row: row.no_speedup, "why there is no speedup", "there is one"),
    csv_column(
        "certificate_verified",
        lambda row: row.verified,
        "whether the ranks trained on the samples of the partition",
        NO_CERTIFICATE,
    ),
    Column(
        "replicas_equal",
        "Replicas equal",
        lambda row: _yes_no(row.replicas_equal),
        number=False,
        value=lambda row: row.replicas_equal,
        meaning="whether all replicas ended with the same weights",
        empty="there is one replica",
    ),
    csv_column(
        "flags",
        lambda row: "; ".join(row.result.flags),
        "what limits comparisons of the run, separated by `; `",
        "nothing does",
    ),
    csv_column("ranks", lambda row: row.run.world_size, "nodes × processes per node"),
    csv_column(
        "image",
        lambda row: row.result.environment.get("image"),
        "the image, and the hash of the sources it was built from",
        "nodes were local processes",
    ),
    csv_column(
        "link",
        lambda row: row.link_label or None,
        "the links that the sweep file requests",
        "it requests none",
    ),
    csv_column(
        "split_points",
        lambda row: " ".join(row.split_points) or None,
        "the first block of every partition but the first",
        NO_STAGES,
    ),
    csv_column(
        "node_speed", _node_speed, "speed of each node, separated by spaces", "all nodes are equally fast"
    ),
    csv_column("target_reached", target_reached, "whether the target accuracy was reached", NO_TARGET),
    csv_column("vary", lambda row: " ".join(row.run.vary), "what the seed varies", "it varies nothing"),
    csv_column("faults", lambda row: row.faults_label or None, "what was injected", "nothing was"),
    csv_column(
        "byzantine",
        lambda row: row.run.byzantine_label or None,
        "the nodes that attack the aggregation, and how",
        "all nodes are honest",
    ),
    csv_column(
        "order",
        lambda row: row.result.order,
        "position among the runs that the command executed, from 0",
        NOT_RECORDED,
    ),
    csv_column("log", lambda row: row.log, "the log that may say more about the cause", "there is none"),
    csv_column("clock", lambda row: row.clock, "on which the report compares the run: `wall` or `cluster`"),
    replace(of_run(LOCAL_ACCURACY), cell=_local_accuracy),
    # All ranks of a replay have a common clock.
    replace(of_run(QUANTITIES["straggler_rank"].in_cluster_time), empty="no rank waited"),
)
OF_RUNS = {name: of_run(quantity) for name, quantity in QUANTITIES.items()} | {
    column.key: column for column in _OF_RUNS
}


def columns_of_runs(table: str) -> list[Column[Row]]:
    """The columns of a table or CSV file of runs."""
    return [*map(_column_of_runs, ORDER[table])]


def _column_of_runs(name: str) -> Column[Row]:
    if name in OF_RUNS:
        return OF_RUNS[name]
    if (replayed := name.removeprefix("cluster_")) != name:
        return of_run(QUANTITIES[replayed].in_cluster_time)
    return _field(name)


# Configurations


def over_seeds(quantity: Quantity) -> Column[Group]:
    """The mean of a quantity over a configuration's seeds."""

    def cell(group: Group) -> Cell:
        spread = quantity.over(group) if quantity.only(group.first) else None
        if spread is None:
            missing = {quantity.missing(row) for row in group.ok_rows}
            return Cell(missing.pop() if len(missing) == 1 else ABSENT)
        detail = quantity.detail(group, range_beside(spread, quantity.write))
        return Cell.of(spread.mean, quantity.write, detail)

    return Column(
        quantity.name,
        quantity.title,
        cell,
        shown_for=lambda groups: quantity.shown_for([row for group in groups for row in group.ok_rows]),
        value=lambda group: spread.mean if (spread := quantity.over(group)) else None,
        meaning=quantity.meaning,
        unit=quantity.unit.name,
        empty=quantity.empty,
    )


def _interval(quantity: Quantity, of: IntervalOf) -> Column[Group]:
    def cell(group: Group) -> Cell:
        interval = of(group)
        return Cell(span(*interval, quantity.write), value=interval[0]) if interval else Cell(ABSENT)

    title = quantity.title.removeprefix("Test ").capitalize()
    return Column(f"{quantity.name}_interval", f"{title}, 95% interval", cell)


def _seeds(group: Group) -> Cell:
    ok, planned = len(group.ok_rows), len(group.rows)
    written = str(ok) if ok == planned else f"{ok} of {planned}"
    return Cell(written, "" if group.repeated else "not repeated", ok)


def _rank_samples(group: Group) -> Cell:
    samples = Spread.of(number for row in group.ok_rows for number in row.node_samples)
    return Cell(samples.range(formats.whole), value=samples.mean) if samples else Cell(ABSENT)


def _verified(group: Group) -> Cell:
    known = [row.verified for row in group.ok_rows if row.verified is not None]
    if not known:
        return Cell(ABSENT)
    return Cell("yes" if all(known) else f"no: {known.count(False)} of {len(known)}")


def _memory_peak(group: Group) -> Cell:
    """The maximum over seeds, since it shows how close a node came to its limit.

    Absent if any run's peak is unknown, since that could be the maximum.
    """
    measured = [found for row in group.ok_rows if (found := containers(row)) and found.memory_peak_mb]
    if not measured or len(measured) < len(group.ok_rows):
        return Cell(ABSENT)
    peak, limit = max(found.memory_peak_mb or 0.0 for found in measured), measured[0].memory_limit_mb
    return Cell(formats.memory(peak), f"{peak / limit:.0%} of {limit:,}{JOIN}MiB", peak)


STRATEGY = Column[Group](
    "strategy", "Strategy", lambda group: Cell(group.first.series, group.partitioner_label), number=False
)
NODES = Column[Group](
    "nodes", "Nodes", lambda group: Cell(group.shape.short, group.shape.slower, group.shape.ranks)
)
_OF_GROUPS: tuple[Column[Group], ...] = (
    STRATEGY,
    NODES,
    Column("seeds", "Seeds", _seeds),
    Column("samples", "Samples per rank", _rank_samples),
    Column("verified", "Verified", _verified, number=False),
    Column("container_memory_peak_mib_max", "Peak memory (of limit)", _memory_peak),
    _interval(ACCURACY, ACCURACY.interval),
)
OF_GROUPS: Mapping[str, Column[Group]] = {
    column.key: column for column in (*map(over_seeds, QUANTITIES.values()), *_OF_GROUPS)
}


def columns_of_groups(table: str, speedup_interval: IntervalOf = lambda group: None) -> list[Column[Group]]:
    """The columns of a table of configurations. speedup_interval: finds that of a configuration."""
    interval = _interval(SPEEDUP, speedup_interval)
    known = {**OF_GROUPS, interval.key: interval}
    return [known[name] for name in ORDER[table]]


def _bounds(of: IntervalOf, name: str, unit: str, empty: str) -> Iterator[Column[Group]]:
    """The bounds of an interval, as two columns of summary.csv."""
    for index, (end, bound) in enumerate({"low": "lower", "high": "upper"}.items()):

        def value(group: Group, index: int = index) -> Value:
            interval = of(group)
            return interval[index] if interval else None

        meaning = f"{bound} bound of the 95 % interval of `{name}`"
        yield Column(f"{name}_{end}", value=value, meaning=meaning, unit=unit, empty=empty)


def _state(group: Group) -> str:
    ok = len(group.ok_rows)
    return "ok" if ok == len(group.rows) else "partly" if ok else "failed"


def _mean(quantity: Quantity, meaning: str, name: str = "", empty: str = "") -> Column[Group]:
    column = over_seeds(quantity)
    return replace(column, key=name or column.key, meaning=meaning, empty=empty or column.empty)


def _largest(quantity: Quantity) -> Column[Group]:
    def value(group: Group) -> Value:
        return spread.high if (spread := quantity.over(group)) else None

    return replace(over_seeds(quantity), value=value, meaning=f"{quantity.meaning} of any seed")


def summary_columns(speedup_interval: IntervalOf = lambda group: None) -> tuple[Column[Group], ...]:
    """Those of summary.csv: a configuration in a line. speedup_interval: finds that of a configuration."""

    few = f"fewer than {MIN_SEEDS} seeds are ok"
    not_compared = f"fewer than {COMPARED_SEEDS} seeds of it or of serial are ok, or it is serial"
    return (
        csv_column(
            "workload", lambda group: group.workload.label, "what compares: dataset, model and conditions"
        ),
        csv_column("strategy", lambda group: group.strategy_label, WITH_PARAMETERS),
        *(OF_RUNS[name].of(lambda group: group.first) for name in ("transport", "partitioner")),
        csv_column("nodes", lambda group: group.shape.nodes, "number of nodes"),
        OF_RUNS["ranks"].of(lambda group: group.first),
        csv_column("seeds", lambda group: len(group.ok_rows), "number of ok runs; means are over these"),
        _mean(ACCURACY, f"{ACCURACY.meaning}, mean"),
        *_bounds(ACCURACY.interval, "accuracy", ACCURACY.unit.name, few),
        _mean(TRAIN_S, "training time on `clock`, geometric mean", "time_s", "no run has a time on it"),
        *_bounds(TRAIN_S.interval, "time_s", TRAIN_S.unit.name, few),
        csv_column("clock", lambda group: group.first.clock, "of times and speedups: `wall` or `cluster`"),
        _mean(SPEEDUP, "time of the serial run / time on `clock`, geometric mean"),
        *_bounds(speedup_interval, "speedup", "", not_compared),
        _mean(BYTES_SENT_PER_RANK, f"{BYTES_SENT_PER_RANK.meaning} and seeds"),
        _largest(PEAK_MEMORY_MIB),
        csv_column("state", _state, "of its runs with a result: `ok`, `partly` or `failed`"),
    )

"""The columns of runs and of configurations in the tables of the page."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, JOIN
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.render.order import ORDER
from orchestrator.report.render.tables import Column, range_beside
from orchestrator.report.render.tree import Cell
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.results.limits import memory_limit_mb

IntervalOf = Callable[[Group], Bounds | None]


def columns_of_runs(table: str) -> list[Column[Row]]:
    """The columns of a table of runs."""
    special = {
        "local_accuracy_mean": Column("local_accuracy_mean", Q.local_accuracy_mean.title, _local_accuracy),
        "replicas_equal": Column("replicas_equal", "Replicas equal", _replicas_equal, number=False),
    }
    return [special.get(name) or _of_run(QUANTITIES[name]) for name in ORDER[table]]


def _of_run(quantity: Quantity) -> Column[Row]:
    """A quantity of one run."""

    def cell(row: Row) -> Cell:
        value = quantity.of(row) if quantity.only(row) else None
        return Cell.of(value, quantity.write) if value is not None else Cell(quantity.missing(row))

    return Column(quantity.name, quantity.title, cell, shown_for=quantity.shown_for)


def _local_accuracy(row: Row) -> Cell:
    """The mean over the nodes, with the range over them."""
    spread = Spread.of(row.local_accuracies)
    if spread is None:
        return Cell(ABSENT)
    return Cell.of(spread.mean, formats.percent, spread.range(formats.percent))


def _replicas_equal(row: Row) -> Cell:
    return Cell(ABSENT if row.replicas_equal is None else "yes" if row.replicas_equal else "no")


def columns_of_groups(table: str, speedup_interval: IntervalOf = lambda group: None) -> list[Column[Group]]:
    """The columns of a table of configurations. speedup_interval: finds that of a configuration."""
    special = {
        "accuracy_interval": _interval(Q.accuracy, Q.accuracy.interval),
        "speedup_interval": _interval(Q.speedup, speedup_interval),
        **{column.key: column for column in _OF_GROUPS},
    }
    return [special.get(name) or over_seeds(QUANTITIES[name]) for name in ORDER[table]]


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
    quantity, limit = QUANTITIES["container_memory_peak_mib_max"], memory_limit_mb(group.first.run)
    spread = quantity.over(group)
    if spread is None or spread.seeds < len(group.ok_rows):
        return Cell(ABSENT)
    return Cell.of(spread.high, quantity.write, f"{spread.high / limit:.0%} of {limit:,}{JOIN}MiB")


STRATEGY = Column[Group](
    "strategy", "Strategy", lambda group: Cell(group.first.series, group.partitioner_label), number=False
)
NODES = Column[Group](
    "nodes", "Nodes", lambda group: Cell(group.shape.short, group.shape.slower, group.shape.ranks)
)
_OF_GROUPS = (
    STRATEGY,
    NODES,
    Column[Group]("seeds", "Seeds", _seeds),
    Column[Group]("samples", "Samples per rank", _rank_samples),
    Column[Group]("verified", "Verified", _verified, number=False),
    Column[Group]("container_memory_peak_mib_max", "Peak memory (of limit)", _memory_peak),
)

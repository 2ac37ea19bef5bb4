"""The columns of published results, of predictions and of what faults cost."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report.formats import ABSENT, count, percent, points, ratio, seconds, short, size, whole
from orchestrator.report.metrics.published import PublishedLine
from orchestrator.report.model.groups import Metric
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import last_epoch
from orchestrator.report.quantities.model_partition import ACTIVATIONS_OF_SERIAL
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.render.columns import NODES, STRATEGY, over_seeds
from orchestrator.report.render.tables import Column, mean_and_range
from orchestrator.report.render.tree import Cell
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.report.topics.faults import FaultCost
from orchestrator.results.predictions import Prediction


def _published(name: str, title: str, write: Callable[[float], str]) -> Column[PublishedLine]:
    """A published number."""

    def cell(line: PublishedLine) -> Cell:
        derived = "derived" if name in line.published.derived else ""
        return Cell.of(getattr(line.published, name), write, derived)._replace(value=None)

    return Column(f"{name}_published", f"{title}, published", cell)


def _both(name: str, title: str, quantity: Quantity) -> tuple[Column[PublishedLine], Column[PublishedLine]]:
    """A published number, and our measurement of it."""
    column = over_seeds(quantity)

    def cell(line: PublishedLine) -> Cell:
        if getattr(line.published, name) is None:
            return Cell(ABSENT)
        return column.cell(line.measured) if line.measured else Cell("not run")

    measured = Column(f"{name}_measured", f"{title}, measured", cell)
    return _published(name, title, quantity.write), measured


def _ratio(key: str, title: str, of: Callable[[PublishedLine], float | None]) -> Column[PublishedLine]:
    return Column(key, title, lambda line: Cell(ratio(of(line))))


def _accuracy_difference(line: PublishedLine) -> Cell:
    measured = line.mean(Q.accuracy.of)
    if line.published.accuracy is None or measured is None or line.overridden:
        return Cell(ABSENT)
    return Cell(points(measured - line.published.accuracy))


def _accuracy_change(line: PublishedLine) -> Cell:
    return Cell(points(None if line.published.accuracy_change is None else line.accuracy_change))


def _steps_per_epoch(row: Row) -> float | None:
    epochs = last_epoch(row)
    return row.steps / epochs if row.steps and epochs else None


PUBLISHED: tuple[Column[PublishedLine], ...] = (
    Column("block", "Block", lambda line: Cell(line.block), number=False),
    Column("runs", "Runs", lambda line: Cell(line.runs), number=False),
    *_both("time_s", "Time", Q.wall_s),
    _ratio("speedup_published", "Speedup, published", lambda line: line.published_speedup),
    _ratio("speedup_measured", "Speedup, measured", lambda line: line.measured_speedup),
    _ratio("cpu_time_speedup", "CPU-time speedup", lambda line: line.cpu_time_speedup),
    *_both("accuracy", "Accuracy", Q.accuracy),
    Column("accuracy_difference", "Accuracy, measured − published", _accuracy_difference),
    _published("accuracy_change", "Accuracy − one node", points),
    Column("accuracy_change_measured", "Accuracy − one node, measured", _accuracy_change),
    *_both("rounds_to_target", Q.rounds_to_target.title, Q.rounds_to_target),
    *_both("steps_per_epoch", "Steps per epoch", Quantity(whole, _steps_per_epoch)),
    *_both("coverage", "Coverage", Q.coverage),
    *_both("staleness", "Staleness", Q.staleness_mean),
    *_both("bubble", Q.bubble_share.title, Q.bubble_share),
    *_both("activations", ACTIVATIONS_OF_SERIAL.title, ACTIVATIONS_OF_SERIAL),
)


def _predicted(name: str, title: str, write: Callable[[float], str]) -> Column[Prediction]:
    """A predicted number."""
    return Column(name, title, lambda each: Cell.of(getattr(each, name), write))


def _predicted_configuration(each: Prediction) -> Cell:
    name, _, workload = each.configuration.partition(": ")
    return Cell(name, workload)


def _predicted_time(each: Prediction) -> Cell:
    return Cell.of(each.seconds, seconds, f"90%: {span(each.low_s, each.high_s, seconds)}")


def _predicted_target(each: Prediction) -> Cell:
    if (target := each.to_target) is None:
        return Cell(ABSENT)
    between = span(target.low_s, target.high_s, seconds)
    return Cell.of(target.seconds, seconds, f"90%: {between}; to {percent(target.accuracy)}")


PREDICTED: tuple[Column[Prediction], ...] = (
    Column("configuration", "Configuration", _predicted_configuration, number=False),
    _predicted("nodes", "Nodes", whole),
    Column("time", "Time", _predicted_time),
    _predicted("speedup", "Speedup", ratio),
    _predicted("efficiency", "Efficiency", percent),
    _predicted("communication", "Communication", percent),
    Column("to_target", "Time to target", _predicted_target),
    _predicted("bytes_sent", "Sent per rank", size),
    _predicted("state_bytes", "State per rank", size),
    _predicted("cost", "Cost", lambda cost: f"{cost:.2g}"),
)


def _on_loss(cost: FaultCost) -> Cell:
    run = cost.group.first.run
    return Cell(count(run.restarts, "restart") if run.restarts else run.on_loss)


def _spread(
    key: str,
    title: str,
    side: Callable[[FaultCost, Metric], Spread | None],
    quantity: Quantity,
    write: Callable[[float], str],
) -> Column[FaultCost]:
    return Column(key, title, lambda cost: mean_and_range(side(cost, quantity.of), write))


WITHOUT, WITH, EXTRA = FaultCost.without_faults, FaultCost.with_faults, FaultCost.difference
FAULTS: tuple[Column[FaultCost], ...] = (
    *(column.of(lambda cost: cost.group) for column in (STRATEGY, NODES)),
    Column("faults", "Faults", lambda cost: Cell(cost.group.workload.faults), number=False),
    Column("on_loss", "On loss", _on_loss, number=False),
    Column("seeds", "Seeds", lambda cost: Cell(str(len(cost.pairs)) if cost.pairs else ABSENT)),
    _spread("time_without", "Time without", WITHOUT, Q.elapsed_s, seconds),
    _spread("time_with", "Time with", WITH, Q.elapsed_s, seconds),
    _spread("extra_time", "Extra time", EXTRA, Q.elapsed_s, seconds),
    _spread("repeated_steps", "Steps repeated", WITH, Q.repeated_steps, short),
    _spread("samples_lost", "Samples lost", WITH, Q.samples_lost, short),
    _spread("accuracy_without", "Accuracy without", WITHOUT, Q.accuracy, percent),
    _spread("accuracy_with", "Accuracy with", WITH, Q.accuracy, percent),
    _spread("accuracy_difference", "Accuracy, difference", EXTRA, Q.accuracy, points),
    Column("missing", "No numbers because", lambda cost: Cell(cost.missing or ABSENT), number=False),
)

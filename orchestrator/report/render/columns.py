"""The columns of the report's tables, the same in report.html and report.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, JOIN, count
from orchestrator.report.metrics import model_partition as cut
from orchestrator.report.metrics.communication import (
    bytes_per_step,
    communicate_s,
    consensus_distance,
    exchange_s_per_step,
    wait_s,
)
from orchestrator.report.metrics.containers import containers, metric
from orchestrator.report.metrics.data_partition import distance_max, distance_mean
from orchestrator.report.metrics.learning import (
    first_rate,
    in_how_many,
    last_epoch,
    last_rate,
    rates,
    target_reached,
    time_to_target_s,
)
from orchestrator.report.model.groups import Group, Metric, Spread
from orchestrator.report.model.rows import SERIAL, Row

NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Cell:
    """What a table shows in one place. detail: the range over seeds, or what else is smaller."""

    text: str
    detail: str = ""


T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A heading and what stands under it.

    number: whether it is set flush right. worth: whether it tells more of these items than a heading does.
    """

    title: str
    cell: Callable[[T], Cell]
    number: bool = True
    worth: Callable[[Sequence[T]], bool] = bool


def filled(columns: Sequence[Column[T]], items: Sequence[T]) -> list[Column[T]]:
    """The columns that have anything to show for these items."""
    return [
        column
        for column in columns
        if any(column.cell(item).text != ABSENT for item in items) and column.worth(items)
    ]


def over_seeds(metric: Metric, write: Callable[[float], str]) -> Callable[[Group], Cell]:
    """The mean over a group's seeds, and their range where there is one."""

    def cell(group: Group) -> Cell:
        spread = group.over(metric)
        if spread is None:
            return Cell(ABSENT)
        mean, span = write(spread.mean), spread.range(write)
        return Cell(mean, "" if span == mean else span)

    return cell


def who(row: Row) -> str:
    """`all_reduce · mpi`; serial needs no transport."""
    return row.strategy_label if row.strategy == SERIAL else f"{row.strategy_label} · {row.transport}"


def _seeds(group: Group) -> Cell:
    ok, planned = len(group.ok_rows), len(group.rows)
    return Cell(
        str(ok) if ok == planned else f"{ok} of {planned}", "" if group.repeated else "not repeated"
    )


def _node_samples(group: Group) -> Cell:
    samples = Spread.of(number for row in group.ok_rows for number in row.node_samples)
    return Cell(samples.range(formats.whole)) if samples else Cell(ABSENT)


def _verified(group: Group) -> Cell:
    known = [row.verified for row in group.ok_rows if row.verified is not None]
    if not known:
        return Cell(ABSENT)
    return Cell("yes" if all(known) else f"{known.count(False)} of {len(known)} not")


def _peak(group: Group) -> Cell:
    """The largest of any seed: what is asked is how near nodes came to their limit."""
    measured = [found for row in group.ok_rows if (found := containers(row)) and found.memory_peak_mb]
    if not measured:
        return Cell(ABSENT)
    peak, limit = max(found.memory_peak_mb or 0.0 for found in measured), measured[0].memory_limit_mb
    return Cell(formats.memory(peak), f"{peak / limit:.0%} of {limit:,}{JOIN}MiB")


def _staleness(group: Group) -> Cell:
    """The mean over seeds, and the largest of any: that is what a bound holds for."""
    mean, largest = group.over(lambda row: row.staleness), group.over(lambda row: row.staleness_max)
    if mean is None or largest is None:
        return Cell(ABSENT)
    return Cell(formats.ratio(mean.mean), f"at most {largest.high:,.0f}")


def _part(metric: Metric, write: Callable[[float], str], share: Metric) -> Callable[[Group], Cell]:
    """A rank's part of something, and what share it is of what serial has."""

    def cell(group: Group) -> Cell:
        mine, of_serial = group.over(metric), group.over(share)
        if mine is None:
            return Cell(ABSENT)
        detail = formats.percent(of_serial.mean) if of_serial and not group.serial else ""
        return Cell(write(mine.mean), detail)

    return cell


def _rate(group: Group) -> Cell:
    """The last epoch's, and where it began: of one seed, since none changes it."""
    first, last = first_rate(group.ok_rows[0]) if group.ok else None, group.over(last_rate)
    if first is None or last is None:
        return Cell(ABSENT)
    return Cell(f"{last.mean:g}", "" if first == last.mean else f"from {first:g}")


def _rates_differ(groups: Sequence[Group]) -> bool:
    """Whether any run stepped with another rate than the work's heading says."""
    return any(rate != row.run.lr for group in groups for row in group.ok_rows for rate in rates(row))


def _stopped_early(groups: Sequence[Group]) -> bool:
    return any(last_epoch(row) != row.run.epochs for group in groups for row in group.ok_rows)


def _time_to_target(group: Group) -> Cell:
    """The mean over the seeds that reached it, and how many these are if not all."""
    if group.first.run.target_accuracy is None or not group.ok:
        return Cell(ABSENT)
    cell, (reached, seeds) = over_seeds(time_to_target_s, formats.seconds)(group), in_how_many(group)
    if not reached:
        return Cell(NOT_REACHED)
    some = f"by {reached} of {count(seeds, 'seed')}" if reached < seeds else ""
    return Cell(cell.text, ", ".join(filter(None, [cell.detail, some])))


def _own(row: Row) -> Cell:
    own, mean = row.local_accuracies, row.local_accuracy
    if mean is None:
        return Cell(ABSENT)
    return Cell(formats.percent(mean), Spread(mean, min(own), max(own), 1).range(formats.percent))


def _points(value: float | None) -> str:
    """As `formats.points`, for a column whose heading names the unit."""
    return formats.points(value).partition(formats.JOIN)[0]


WHO: tuple[Column[Group], ...] = (
    Column("Strategy", lambda group: Cell(who(group.first), group.partitioner_label), number=False),
    Column("Nodes", lambda group: Cell(group.shape.short, group.shape.slower)),
)

GROUPS: tuple[Column[Group], ...] = (
    *WHO,
    Column("Seeds ok", _seeds),
    Column("Learning rate", _rate, worth=_rates_differ),
    Column("Epochs", over_seeds(last_epoch, lambda value: f"{value:.4g}"), worth=_stopped_early),
    Column("Time to target accuracy", _time_to_target),
    Column("Training time", over_seeds(lambda row: row.train_s, formats.seconds)),
    Column("Speedup", over_seeds(lambda row: row.speedup, formats.ratio)),
    Column("Efficiency", over_seeds(lambda row: row.efficiency, formats.percent)),
    Column("Work speedup", over_seeds(lambda row: row.work_speedup, formats.ratio)),
    Column("Accuracy", over_seeds(lambda row: row.accuracy, formats.percent)),
    Column("To serial, points", over_seeds(lambda row: row.accuracy_difference, _points)),
    Column("Nodes' own models", over_seeds(lambda row: row.local_accuracy, formats.percent)),
    Column("Consensus distance", over_seeds(consensus_distance, formats.ratio)),
    Column("Communicate and wait", over_seeds(lambda row: row.exchange_share, formats.percent)),
    Column("Communicate", over_seeds(communicate_s, formats.seconds)),
    Column("Wait", over_seeds(wait_s, formats.seconds)),
    Column("Exchange per step", over_seeds(exchange_s_per_step, formats.seconds)),
    Column("Sent per rank", over_seeds(lambda row: row.bytes_sent_per_rank, formats.size)),
    Column("Sent per step", over_seeds(bytes_per_step, formats.size)),
    Column("Samples per s", over_seeds(lambda row: row.samples_per_s, formats.ratio)),
    Column("Staleness", _staleness),
)

CERTIFICATES: tuple[Column[Group], ...] = (
    *WHO,
    Column("Samples per rank", _node_samples),
    Column("Coverage, epoch 1", over_seeds(lambda row: row.coverage, formats.percent)),
    Column("Overlap, epoch 1", over_seeds(lambda row: row.overlap, formats.percent)),
    Column("Coverage, whole run", over_seeds(lambda row: row.coverage_whole_run, formats.percent)),
    Column("Overlap, whole run", over_seeds(lambda row: row.overlap_whole_run, formats.percent)),
    Column("JS divergence, mean, epoch 1", over_seeds(lambda row: row.js_mean, formats.bits)),
    Column("JS divergence, largest, epoch 1", over_seeds(lambda row: row.js_max, formats.bits)),
    Column("JS divergence, whole run", over_seeds(lambda row: row.js_whole_run, formats.bits)),
    Column("EMD, mean, epoch 1", over_seeds(distance_mean, formats.distance)),
    Column("EMD, largest, epoch 1", over_seeds(distance_max, formats.distance)),
    Column("Verified", _verified, number=False),
)

DIVIDED: tuple[Column[Group], ...] = (
    *WHO,
    Column("Time per step", over_seeds(cut.step_s, formats.seconds)),
    Column("Bubble", over_seeds(cut.bubble, formats.percent)),
    Column("Bubble by formula", over_seeds(cut.bubble_formula, formats.percent)),
    Column("Over a cut per step", over_seeds(cut.cut_bytes_per_step, formats.size)),
    Column("Parameters, of serial's", _part(cut.parameters, formats.whole, cut.parameters_share)),
    Column(
        "Weights, gradient, optimizer, of serial's", _part(cut.state_bytes, formats.size, cut.held_share)
    ),
    Column("Activations", over_seeds(cut.activation_bytes, formats.size)),
    Column("Peak memory", over_seeds(lambda row: row.peak_memory_mb, formats.memory)),
    Column("Balance of work", over_seeds(cut.balance, formats.percent)),
)

CONTAINERS: tuple[Column[Group], ...] = (
    *WHO,
    Column("Payload sent", over_seeds(metric("payload_bytes"), formats.size)),
    Column("Sent on the network", over_seeds(metric("sent_bytes"), formats.size)),
    Column("Network by payload", over_seeds(metric("sent_by_payload"), formats.ratio)),
    Column("CPU time", over_seeds(metric("cpu_s"), formats.seconds)),
    Column("Held back by quota", over_seeds(metric("throttled_s"), formats.seconds)),
    Column("Peak memory, of limit", _peak),
)


def _run_time_to_target(row: Row) -> Cell:
    reached = target_reached(row)
    if reached is None:
        return Cell(ABSENT)
    return Cell(formats.seconds(time_to_target_s(row)) if reached else NOT_REACHED)


# Beside the run's name, its nodes and its seed, which failed and pending runs have, too.
RUNS: tuple[Column[Row], ...] = (
    Column("Time to target accuracy", _run_time_to_target),
    Column("Training time", lambda row: Cell(formats.seconds(row.train_s))),
    Column("Speedup", lambda row: Cell(formats.ratio(row.speedup))),
    Column("Efficiency", lambda row: Cell(formats.percent(row.efficiency))),
    Column("Work speedup", lambda row: Cell(formats.ratio(row.work_speedup))),
    Column("Accuracy", lambda row: Cell(formats.percent(row.accuracy))),
    Column("To serial, points", lambda row: Cell(_points(row.accuracy_difference))),
    Column("Nodes' own models", _own),
    Column("Samples per s", lambda row: Cell(formats.ratio(row.samples_per_s))),
    Column("Sent per rank", lambda row: Cell(formats.size(row.bytes_sent_per_rank))),
    Column("Peak memory", lambda row: Cell(formats.memory(row.peak_memory_mb))),
    Column("Start-up", lambda row: Cell(formats.seconds(row.startup_s))),
    Column("Tear-down", lambda row: Cell(formats.seconds(row.teardown_s))),
    Column("Replicas equal", lambda row: _yes_no(row.replicas_equal), number=False),
)


def _yes_no(value: bool | None) -> Cell:
    return Cell(ABSENT if value is None else "yes" if value else "no")

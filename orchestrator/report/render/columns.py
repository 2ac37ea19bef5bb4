"""The columns of the report's tables, the same in report.html and report.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.replay.described import has_cores
from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, JOIN, count
from orchestrator.report.metrics import links
from orchestrator.report.metrics import model_partition as partition
from orchestrator.report.metrics.clock import wall_by_cluster
from orchestrator.report.metrics.communication import (
    bytes_per_step,
    communicate_s,
    consensus_distance,
    exchange_s_per_step,
    wait_s,
)
from orchestrator.report.metrics.containers import containers, metric
from orchestrator.report.metrics.data_partition import distance_max, distance_mean
from orchestrator.report.metrics.faults import FaultCost
from orchestrator.report.metrics.intervals import interval_of_accuracy, interval_of_speedup
from orchestrator.report.metrics.learning import (
    first_lr,
    last_epoch,
    last_lr,
    learning_rates,
    seeds_at_target,
    target_reached,
    time_to_target_s,
)
from orchestrator.report.metrics.published import PublishedLine
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import SERIAL, Clock, Row
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.results.limits import counted

NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Cell:
    """The content of a table cell.

    detail: the range over seeds, or another note in small print. value: by which a column sorts; None if it
    sorts by its text.
    """

    text: str
    detail: str = ""
    value: float | None = None


T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    key: stable identifier within its table. number: whether it is right-aligned. shown_for: whether to show
    it for these items; a column without any value is never shown.
    """

    key: str
    title: str
    cell: Callable[[T], Cell]
    number: bool = True
    shown_for: Callable[[Sequence[T]], bool] = bool


def filled(columns: Sequence[Column[T]], items: Sequence[T]) -> list[Column[T]]:
    """The columns to show for these items."""
    return [
        column
        for column in columns
        if any(column.cell(item).text != ABSENT for item in items) and column.shown_for(items)
    ]


def _with_range(spread: Spread | None, write: Callable[[float], str]) -> Cell:
    """The mean, with the range over seeds as detail."""
    if spread is None:
        return Cell(ABSENT)
    mean, span = write(spread.mean), spread.range(write)
    return Cell(mean, "" if span == mean else span, spread.mean)


def over_seeds(
    metric: Metric, write: Callable[[float], str], geometric: bool = False
) -> Callable[[Group], Cell]:
    """The mean over a group's seeds, with their range as detail."""

    def cell(group: Group) -> Cell:
        return _with_range(group.over(metric, geometric), write)

    return cell


def _accuracy_interval(group: Group) -> Cell:
    interval = interval_of_accuracy(group)
    return Cell(span(*interval, formats.percent), value=interval[0]) if interval else Cell(ABSENT)


def _cluster_s(row: Row) -> float | None:
    return row.cluster.train_s if row.cluster else None


def _wall_by_cluster(group: Group) -> Cell:
    """How far the two times differ, and why they may."""
    spread = group.over(wall_by_cluster, geometric=True)
    if spread is None:
        return Cell(ABSENT)
    wall = group.first.wall
    ranks, cores = wall.shape.ranks, wall.result.cores
    if wall.link_not_enforced:
        why = "without the requested links"
    elif wall.shares_cores:
        why = f"{ranks} ranks on {counted(cores, 'core')}"
    elif ranks == 1 or all(has_cores(row.wall.result) for row in group.ok_rows):
        why = "a core for each rank"
    else:
        why = "other load or a quota in some runs"
    return Cell(formats.ratio(spread.mean), why, spread.mean)


def _on_wall_clock(groups: Sequence[Group]) -> bool:
    """Where cluster time is the headline, it replaces the estimate by CPU time."""
    return any(group.first.clock == "wall" for group in groups)


def _speedup_interval(group: Group) -> Cell:
    interval = interval_of_speedup(group)
    return Cell(span(*interval, formats.ratio), value=interval[0]) if interval else Cell(ABSENT)


def run_label(row: Row) -> str:
    """`all_reduce · mpi`; serial has no transport."""
    return row.strategy_label if row.strategy == SERIAL else f"{row.strategy_label} · {row.transport}"


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


def _staleness(group: Group) -> Cell:
    """The mean over seeds and the maximum of any seed, since a bound applies to the maximum."""
    mean, largest = group.over(lambda row: row.staleness), group.over(lambda row: row.staleness_max)
    if mean is None or largest is None:
        return Cell(ABSENT)
    return Cell(formats.ratio(mean.mean), f"max {largest.high:,.0f}", mean.mean)


def _with_share(metric: Metric, write: Callable[[float], str], share: Metric) -> Callable[[Group], Cell]:
    """A quantity per rank, with its share of the serial run's as detail."""

    def cell(group: Group) -> Cell:
        value, of_serial = group.over(metric), group.over(share)
        if value is None:
            return Cell(ABSENT)
        detail = formats.percent(of_serial.mean) if of_serial and not group.serial else ""
        return Cell(write(value.mean), detail, value.mean)

    return cell


def _learning_rate(group: Group) -> Cell:
    """The rates of the last and the first epoch, which are the same for all seeds."""
    first, last = first_lr(group.ok_rows[0]) if group.ok else None, group.over(last_lr)
    if first is None or last is None:
        return Cell(ABSENT)
    return Cell(f"{last.mean:g}", "" if first == last.mean else f"from {first:g}", last.mean)


def _learning_rates_differ(groups: Sequence[Group]) -> bool:
    """Whether any run used another rate than the workload's `lr`."""
    return any(
        rate != row.run.lr for group in groups for row in group.ok_rows for rate in learning_rates(row)
    )


def _link(
    metric: Metric, write: Callable[[float], str], requested: Callable[[Row], str]
) -> Callable[[Group], Cell]:
    """What was measured before training, mean over seeds, beside what was requested."""

    def cell(group: Group) -> Cell:
        spread = group.over(metric)
        return (
            Cell(write(spread.mean), requested(group.ok_rows[0]), spread.mean) if spread else Cell(ABSENT)
        )

    return cell


def _links_requested(groups: Sequence[Group]) -> bool:
    return any(group.workload.link for group in groups)


def _stopped_early(groups: Sequence[Group]) -> bool:
    return any(last_epoch(row) != row.run.epochs for group in groups for row in group.ok_rows)


def _time_to_target(group: Group) -> Cell:
    """The mean over the seeds that reached the target, with their number if not all did."""
    if group.first.run.target_accuracy is None or not group.ok:
        return Cell(ABSENT)
    cell, (reached, seeds) = over_seeds(time_to_target_s, formats.seconds)(group), seeds_at_target(group)
    if not reached:
        return Cell(NOT_REACHED)
    some = f"{reached} of {count(seeds, 'seed')}" if reached < seeds else ""
    return Cell(cell.text, ", ".join(filter(None, [cell.detail, some])), cell.value)


def _local_accuracy(row: Row) -> Cell:
    local, mean = row.local_accuracies, row.local_accuracy
    if mean is None:
        return Cell(ABSENT)
    return Cell(formats.percent(mean), Spread(mean, min(local), max(local), 1).range(formats.percent), mean)


def _points(value: float | None) -> str:
    """As `formats.points`, for a column whose heading names the unit."""
    return formats.points(value).partition(formats.JOIN)[0]


def _yes_no(value: bool | None) -> Cell:
    return Cell(ABSENT if value is None else "yes" if value else "no")


IDENTITY: tuple[Column[Group], ...] = (
    Column(
        "strategy",
        "Strategy",
        lambda group: Cell(run_label(group.first), group.partitioner_label),
        number=False,
    ),
    Column("nodes", "Nodes", lambda group: Cell(group.shape.short, group.shape.slower, group.shape.ranks)),
)

GROUPS: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("seeds", "Seeds", _seeds),
    Column("learning_rate", "Learning rate", _learning_rate, shown_for=_learning_rates_differ),
    Column(
        "epochs", "Epochs", over_seeds(last_epoch, lambda value: f"{value:.4g}"), shown_for=_stopped_early
    ),
    Column("time_to_target", "Time to target accuracy", _time_to_target),
    Column("cluster_time", "Cluster time", over_seeds(_cluster_s, formats.seconds, geometric=True)),
    Column(
        "wall_time",
        "Wall time",
        over_seeds(lambda row: row.wall.train_s, formats.seconds, geometric=True),
    ),
    Column("wall_by_cluster", "Wall / cluster time", _wall_by_cluster),
    Column("speedup", "Speedup", over_seeds(lambda row: row.speedup, formats.ratio, geometric=True)),
    Column("speedup_interval", "Speedup, 95% interval", _speedup_interval),
    Column(
        "efficiency", "Efficiency", over_seeds(lambda row: row.efficiency, formats.percent, geometric=True)
    ),
    Column(
        "cpu_time_speedup",
        "CPU-time speedup",
        over_seeds(lambda row: row.cpu_time_speedup, formats.ratio, geometric=True),
        shown_for=_on_wall_clock,
    ),
    Column(
        "cpu_per_sample",
        "CPU time per sample (of serial)",
        over_seeds(
            lambda row: None if row.strategy == SERIAL else row.cpu_per_sample_of_serial,
            formats.ratio,
            geometric=True,
        ),
    ),
    Column("accuracy", "Test accuracy", over_seeds(lambda row: row.accuracy, formats.percent)),
    Column("accuracy_interval", "Accuracy, 95% interval", _accuracy_interval),
    Column(
        "accuracy_difference",
        "Accuracy − serial, points",
        over_seeds(lambda row: row.accuracy_difference, _points),
    ),
    Column(
        "local_accuracy",
        "Accuracy of local models",
        over_seeds(lambda row: row.local_accuracy, formats.percent),
    ),
    Column("consensus_distance", "Consensus distance", over_seeds(consensus_distance, formats.ratio)),
    Column(
        "exchange_share",
        "Exchange share",
        over_seeds(lambda row: row.exchange_share, formats.percent),
    ),
    Column("communication", "Communication", over_seeds(communicate_s, formats.seconds)),
    Column("waiting", "Waiting", over_seeds(wait_s, formats.seconds)),
    Column(
        "exchange_per_step",
        "Exchange per step",
        over_seeds(exchange_s_per_step, formats.seconds, geometric=True),
    ),
    Column("bytes_sent", "Sent per rank", over_seeds(lambda row: row.bytes_sent_per_rank, formats.size)),
    Column("bytes_per_step", "Sent per rank and step", over_seeds(bytes_per_step, formats.size)),
    Column(
        "link_latency",
        "Link latency, measured",
        _link(links.latency_s, formats.seconds, links.requested_latency),
        shown_for=_links_requested,
    ),
    Column(
        "link_bandwidth",
        "Link bandwidth, measured",
        _link(links.bytes_per_s, formats.mbit, links.requested_bandwidth),
        shown_for=_links_requested,
    ),
    Column("samples_per_s", "Samples/s", over_seeds(lambda row: row.samples_per_s, formats.ratio)),
    Column("staleness", "Staleness", _staleness),
)

CERTIFICATES: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("samples", "Samples per rank", _rank_samples),
    Column("coverage", "Coverage, epoch 1", over_seeds(lambda row: row.coverage, formats.percent)),
    Column("overlap", "Overlap, epoch 1", over_seeds(lambda row: row.overlap, formats.percent)),
    Column(
        "coverage_run", "Coverage, run", over_seeds(lambda row: row.coverage_whole_run, formats.percent)
    ),
    Column("overlap_run", "Overlap, run", over_seeds(lambda row: row.overlap_whole_run, formats.percent)),
    Column("js_mean", "Mean JS divergence, epoch 1", over_seeds(lambda row: row.js_mean, formats.bits)),
    Column("js_max", "Max JS divergence, epoch 1", over_seeds(lambda row: row.js_max, formats.bits)),
    Column("js_run", "Max JS divergence, run", over_seeds(lambda row: row.js_whole_run, formats.bits)),
    Column("emd_mean", "Mean EMD, epoch 1", over_seeds(distance_mean, formats.distance)),
    Column("emd_max", "Max EMD, epoch 1", over_seeds(distance_max, formats.distance)),
    Column("verified", "Verified", _verified, number=False),
)

MODEL_PARTITION: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("step", "Time per step", over_seeds(partition.step_s, formats.seconds, geometric=True)),
    Column("bubble", "Bubble", over_seeds(partition.bubble, formats.percent)),
    Column("bubble_formula", "Bubble by formula", over_seeds(partition.bubble_formula, formats.percent)),
    Column(
        "split_point_bytes",
        "Split-point traffic per step",
        over_seeds(partition.split_point_bytes_per_step, formats.size),
    ),
    Column(
        "parameters",
        "Parameters (of serial)",
        _with_share(partition.parameters, formats.whole, partition.parameters_share),
    ),
    Column(
        "state",
        "Weights, gradient, optimizer state (of serial)",
        _with_share(lambda row: row.state_bytes, formats.size, partition.state_share),
    ),
    Column("activations", "Activations", over_seeds(partition.activation_bytes, formats.size)),
    Column("memory_peak", "Peak memory", over_seeds(lambda row: row.peak_memory_mb, formats.memory)),
    Column("load_balance", "Load balance", over_seeds(partition.load_balance, formats.percent)),
)

CONTAINERS: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("payload", "Payload sent", over_seeds(metric("payload_bytes"), formats.size)),
    Column("network", "Network sent", over_seeds(metric("sent_bytes"), formats.size)),
    Column(
        "network_per_payload", "Network / payload", over_seeds(metric("sent_by_payload"), formats.ratio)
    ),
    Column("cpu_time", "CPU time", over_seeds(metric("cpu_s"), formats.seconds)),
    Column("throttled", "Throttled", over_seeds(metric("throttled_s"), formats.seconds)),
    Column("memory_peak", "Peak memory (of limit)", _memory_peak),
)


def _run_time_to_target(row: Row) -> Cell:
    reached = target_reached(row)
    if reached is None:
        return Cell(ABSENT)
    if not reached:
        return Cell(NOT_REACHED)
    return _of_run(time_to_target_s, formats.seconds)(row)


def _of_run(metric: Metric, write: Callable[[float | None], str]) -> Callable[[Row], Cell]:
    """A quantity of one run."""
    return lambda row: Cell(write(metric(row)), value=metric(row))


# Beside the label, nodes and seed of a run, which failed and pending runs have, too.
RUNS: tuple[Column[Row], ...] = (
    Column("time_to_target", "Time to target accuracy", _run_time_to_target),
    Column("cluster_time", "Cluster time", _of_run(_cluster_s, formats.seconds)),
    Column("wall_time", "Wall time", _of_run(lambda row: row.wall.train_s, formats.seconds)),
    Column("speedup", "Speedup", _of_run(lambda row: row.speedup, formats.ratio)),
    Column("efficiency", "Efficiency", _of_run(lambda row: row.efficiency, formats.percent)),
    Column(
        "cpu_time_speedup",
        "CPU-time speedup",
        _of_run(lambda row: row.cpu_time_speedup if row.clock == "wall" else None, formats.ratio),
    ),
    Column("accuracy", "Test accuracy", _of_run(lambda row: row.accuracy, formats.percent)),
    Column(
        "accuracy_difference",
        "Accuracy − serial, points",
        _of_run(lambda row: row.accuracy_difference, _points),
    ),
    Column("local_accuracy", "Accuracy of local models", _local_accuracy),
    Column("samples_per_s", "Samples/s", _of_run(lambda row: row.samples_per_s, formats.ratio)),
    Column("bytes_sent", "Sent per rank", _of_run(lambda row: row.bytes_sent_per_rank, formats.size)),
    Column("memory_peak", "Peak memory", _of_run(lambda row: row.peak_memory_mb, formats.memory)),
    Column("startup", "Start-up", _of_run(lambda row: row.startup_s, formats.seconds)),
    Column("teardown", "Teardown", _of_run(lambda row: row.teardown_s, formats.seconds)),
    Column("replicas_equal", "Replicas equal", lambda row: _yes_no(row.replicas_equal), number=False),
)


def _published(name: str, write: Callable[[float], str]) -> Callable[[PublishedLine], Cell]:
    """A published number."""

    def cell(line: PublishedLine) -> Cell:
        value = getattr(line.published, name)
        derived = "derived" if name in line.published.derived else ""
        return Cell(ABSENT if value is None else write(value), derived)

    return cell


def _measured(name: str, metric: Metric, write: Callable[[float], str]) -> Callable[[PublishedLine], Cell]:
    """Our measurement of a number that was published."""

    def cell(line: PublishedLine) -> Cell:
        if getattr(line.published, name) is None:
            return Cell(ABSENT)
        return over_seeds(metric, write)(line.measured) if line.measured else Cell("not run")

    return cell


def _accuracy(row: Row) -> float | None:
    return row.accuracy


def _accuracy_difference(line: PublishedLine) -> Cell:
    measured = line.mean(_accuracy)
    if line.published.accuracy is None or measured is None or line.overridden:
        return Cell(ABSENT)
    return Cell(formats.points(measured - line.published.accuracy))


def _accuracy_change(line: PublishedLine) -> Cell:
    return Cell(formats.points(None if line.published.accuracy_change is None else line.accuracy_change))


def _steps_per_epoch(row: Row) -> float | None:
    epochs = last_epoch(row)
    return row.steps / epochs if row.steps and epochs else None


PUBLISHED: tuple[Column[PublishedLine], ...] = (
    Column("block", "Block", lambda line: Cell(line.block), number=False),
    Column("runs", "Runs", lambda line: Cell(line.runs), number=False),
    Column("time_published", "Time, published", _published("time_s", formats.seconds)),
    Column(
        "time_measured",
        "Time, measured",
        _measured("time_s", lambda row: row.wall.train_s, formats.seconds),
    ),
    Column(
        "speedup_published", "Speedup, published", lambda line: Cell(formats.ratio(line.published_speedup))
    ),
    Column(
        "speedup_measured", "Speedup, measured", lambda line: Cell(formats.ratio(line.measured_speedup))
    ),
    Column("cpu_time_speedup", "CPU-time speedup", lambda line: Cell(formats.ratio(line.cpu_time_speedup))),
    Column("accuracy_published", "Accuracy, published", _published("accuracy", formats.percent)),
    Column("accuracy_measured", "Accuracy, measured", _measured("accuracy", _accuracy, formats.percent)),
    Column("accuracy_difference", "Accuracy, measured − published", _accuracy_difference),
    Column(
        "change_published", "Accuracy − one node, published", _published("accuracy_change", formats.points)
    ),
    Column("change_measured", "Accuracy − one node, measured", _accuracy_change),
    Column("steps_published", "Steps per epoch, published", _published("steps_per_epoch", formats.whole)),
    Column(
        "steps_measured",
        "Steps per epoch, measured",
        _measured("steps_per_epoch", _steps_per_epoch, formats.whole),
    ),
    Column("coverage_published", "Coverage, published", _published("coverage", formats.percent)),
    Column(
        "coverage_measured",
        "Coverage, measured",
        _measured("coverage", lambda row: row.coverage, formats.percent),
    ),
)


def _short(value: float) -> str:
    """A mean of counts."""
    return f"{value:.4g}"


def _on_loss(cost: FaultCost) -> Cell:
    run = cost.group.first.run
    return Cell(count(run.restarts, "restart") if run.restarts else run.on_loss)


FAULTS: tuple[Column[FaultCost], ...] = (
    *(
        Column(column.key, column.title, lambda cost, column=column: column.cell(cost.group), column.number)  # type: ignore[misc]
        for column in IDENTITY
    ),
    Column("faults", "Faults", lambda cost: Cell(cost.group.first.faults_label), number=False),
    Column("on_loss", "On loss", _on_loss, number=False),
    Column("seeds", "Seeds", lambda cost: Cell(str(len(cost.pairs)) if cost.pairs else ABSENT)),
    Column(
        "time_without",
        "Time without",
        lambda cost: _with_range(cost.without_faults(lambda row: row.elapsed_s), formats.seconds),
    ),
    Column(
        "time_with",
        "Time with",
        lambda cost: _with_range(cost.with_faults(lambda row: row.elapsed_s), formats.seconds),
    ),
    Column(
        "extra_time",
        "Extra time",
        lambda cost: _with_range(cost.difference(lambda row: row.elapsed_s), formats.seconds),
    ),
    Column(
        "repeated_steps",
        "Steps repeated",
        lambda cost: _with_range(cost.with_faults(lambda row: row.repeated_steps), _short),
    ),
    Column(
        "samples_lost",
        "Samples lost",
        lambda cost: _with_range(cost.with_faults(lambda row: row.samples_lost), _short),
    ),
    Column(
        "accuracy_without",
        "Accuracy without",
        lambda cost: _with_range(cost.without_faults(lambda row: row.accuracy), formats.percent),
    ),
    Column(
        "accuracy_with",
        "Accuracy with",
        lambda cost: _with_range(cost.with_faults(lambda row: row.accuracy), formats.percent),
    ),
    Column(
        "accuracy_difference",
        "Accuracy, difference",
        lambda cost: _with_range(cost.difference(lambda row: row.accuracy), formats.points),
    ),
    Column("missing", "No numbers because", lambda cost: Cell(cost.missing or ABSENT), number=False),
)

# Keys of the columns that the page shows first, the most important first; a button shows the rest.
FIRST_COLUMNS = (
    *("workload", "strategy", "nodes", "block", "runs", "faults"),
    *("time_published", "time_measured", "accuracy_published", "accuracy_measured"),
    *("time_to_target", "cluster_time", "speedup", "accuracy", "bytes_sent", "wall_time"),
    *("coverage", "overlap", "samples", "verified"),
    *("step", "state", "activations", "bubble"),
    *("extra_time", "accuracy_difference", "missing"),
    *("network", "cpu_time", "throttled", "memory_peak"),
)


def first_columns(columns: Sequence[Column[T]], most: int, clock: Clock = "cluster") -> set[str]:
    """The keys of at most `most` columns to show first. clock: of the speedups."""
    keys = [column.key for column in columns]
    times = {"cluster_time": "wall_time", "wall_time": "cluster_time"} if clock == "wall" else {}
    important = [shown for key in FIRST_COLUMNS if (shown := times.get(key, key)) in keys]
    return {*[*important, *(key for key in keys if key not in important)][:most]}

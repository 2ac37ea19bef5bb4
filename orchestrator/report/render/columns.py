"""The columns of the report's tables, the same in report.html and report.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.replay.described import has_cores
from orchestrator.report import formats
from orchestrator.report.formats import ABSENT, JOIN, count, percent, points, seconds, short
from orchestrator.report.metrics.clock import wall_by_cluster
from orchestrator.report.metrics.published import PublishedLine
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Baseline, Clock, Row
from orchestrator.report.quantities import (
    ACCURACY,
    BUBBLE,
    COVERAGE,
    ELAPSED_S,
    FIRST_LR,
    LAST_LR,
    LOCAL_ACCURACY,
    QUANTITIES,
    REPEATED_STEPS,
    ROUNDS_TO_TARGET,
    SAMPLES_LOST,
    SPEEDUP,
    STALENESS,
    STALENESS_MAX,
    TIME_TO_TARGET_S,
    WALL_S,
)
from orchestrator.report.quantities.containers import containers
from orchestrator.report.quantities.learning import (
    last_epoch,
    learning_rates,
    seeds_at_target,
    target_reached,
)
from orchestrator.report.quantities.links import requested_bandwidth, requested_latency
from orchestrator.report.quantities.model_partition import ACTIVATIONS_OF_SERIAL
from orchestrator.report.quantities.quantity import COUNT, Bounds, Quantity
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.report.topics.faults import FaultCost
from orchestrator.results.limits import counted
from orchestrator.results.predictions import Prediction

NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Cell:
    """The content of a table cell.

    detail: the range over seeds, or another note in small print. value: the value by which a column sorts;
    None if it sorts by its text.
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


def _over_seeds(
    name: str,
    detail: Callable[[Group], str] | None = None,
    only: Callable[[Group], bool] = lambda group: True,
    shown_for: Callable[[Sequence[Group]], bool] = bool,
) -> Column[Group]:
    """The mean of a quantity over a group's seeds.

    Args:
        detail: the text beside it; the range over seeds by default.
        only: whether a group has a value.
    """
    quantity = QUANTITIES[name]

    def cell(group: Group) -> Cell:
        spread = quantity.over(group) if only(group) else None
        if spread is None or detail is None:
            return _with_range(spread, quantity.write)
        return Cell(quantity.write(spread.mean), detail(group), spread.mean)

    return Column(name, quantity.title, cell, shown_for=shown_for)


def _interval(quantity: Quantity, of: Callable[[Group], Bounds | None] | None = None) -> Column[Group]:
    """of: finds the interval of a group; default: that of the quantity."""

    def cell(group: Group) -> Cell:
        interval = (of or quantity.interval)(group)
        return Cell(span(*interval, quantity.write), value=interval[0]) if interval else Cell(ABSENT)

    title = quantity.title.removeprefix("Test ").capitalize()
    return Column(f"{quantity.name}_interval", f"{title}, 95% interval", cell)


def _of_serial(name: str, of: Callable[[Baseline], float | None]) -> Column[Group]:
    """A quantity per rank, with its share of the serial run's as detail."""
    quantity = QUANTITIES[name]

    def share(row: Row) -> float | None:
        value, whole = quantity.of(row), of(row.baseline) if row.baseline else None
        return value / whole if value is not None and whole else None

    def detail(group: Group) -> str:
        of_serial = group.over(share)
        return percent(of_serial.mean) if of_serial and not group.serial else ""

    return _over_seeds(name, detail)


def _link(name: str, requested: Callable[[Row], str]) -> Column[Group]:
    """What was measured before training, beside what was requested."""
    return _over_seeds(name, lambda group: requested(group.ok_rows[0]), shown_for=_links_requested)


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


def _most_stale(group: Group) -> str:
    """The maximum of any seed, since a bound applies to it."""
    largest = STALENESS_MAX.over(group)
    return f"max {largest.high:,.0f}" if largest else ""


def _learning_rate(group: Group) -> Cell:
    """The rates of the last and the first epoch, which are the same for all seeds."""
    first, last = FIRST_LR.of(group.ok_rows[0]) if group.ok else None, LAST_LR.over(group)
    if first is None or last is None:
        return Cell(ABSENT)
    return Cell(f"{last.mean:g}", "" if first == last.mean else f"from {first:g}", last.mean)


def _learning_rates_differ(groups: Sequence[Group]) -> bool:
    """Whether any run used another rate than the workload's `lr`."""
    return any(
        rate != row.run.lr for group in groups for row in group.ok_rows for rate in learning_rates(row)
    )


def _links_requested(groups: Sequence[Group]) -> bool:
    return any(group.workload.link for group in groups)


def _stopped_early(groups: Sequence[Group]) -> bool:
    last = ((last_epoch(row), row.run.epochs) for group in groups for row in group.ok_rows)
    return any(epoch not in (None, planned) for epoch, planned in last)


def _time_to_target(group: Group) -> Cell:
    """The mean over the seeds that reached the target, with their number if not all did."""
    if group.first.run.target_accuracy is None or not group.ok:
        return Cell(ABSENT)
    return _of_seeds_at_target(TIME_TO_TARGET_S, group)


def _of_seeds_at_target(quantity: Quantity, group: Group) -> Cell:
    cell = _with_range(quantity.over(group), quantity.write)
    reached, number = seeds_at_target(group)
    if not reached:
        return Cell(NOT_REACHED)
    some = f"{reached} of {count(number, 'seed')}" if reached < number else ""
    return Cell(cell.text, ", ".join(filter(None, [cell.detail, some])), cell.value)


def _local_accuracy(row: Row) -> Cell:
    local, mean = row.local_accuracies, LOCAL_ACCURACY.of(row)
    if mean is None:
        return Cell(ABSENT)
    return Cell(percent(mean), Spread(mean, min(local), max(local), 1).range(percent), mean)


def _yes_no(value: bool | None) -> Cell:
    return Cell(ABSENT if value is None else "yes" if value else "no")


IDENTITY: tuple[Column[Group], ...] = (
    Column(
        "strategy",
        "Strategy",
        lambda group: Cell(group.first.series, group.partitioner_label),
        number=False,
    ),
    Column("nodes", "Nodes", lambda group: Cell(group.shape.short, group.shape.slower, group.shape.ranks)),
)

GROUPS: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("seeds", "Seeds", _seeds),
    Column(LAST_LR.name, LAST_LR.title, _learning_rate, shown_for=_learning_rates_differ),
    _over_seeds("epochs_trained", shown_for=_stopped_early),
    Column(TIME_TO_TARGET_S.name, TIME_TO_TARGET_S.title, _time_to_target),
    *map(_over_seeds, ("cluster_s", "wall_s")),
    Column("wall_by_cluster", "Wall / cluster time", _wall_by_cluster),
    _over_seeds("speedup"),
    _over_seeds("efficiency"),
    _over_seeds("cpu_time_speedup", shown_for=_on_wall_clock),
    _over_seeds("cpu_s_per_sample_of_serial", only=lambda group: not group.serial),
    _over_seeds("accuracy"),
    _interval(ACCURACY),
    *map(_over_seeds, ("bits_per_token", "dropped_choices")),
    *map(_over_seeds, ("accuracy_difference", "local_accuracy_mean")),
    *map(_over_seeds, ("consensus_distance", "exchange_share")),
    _over_seeds("communicate_s", only=lambda group: group.shape.ranks > 1),
    _over_seeds("wait_s", only=lambda group: group.shape.ranks > 1),
    *map(_over_seeds, ("exchange_s_per_step", "bytes_sent_per_rank", "bytes_sent_per_rank_per_step")),
    _link("link_latency_s", requested_latency),
    _link("link_bytes_per_s", requested_bandwidth),
    _over_seeds("samples_per_s"),
    _over_seeds(STALENESS.name, _most_stale),
)


def with_speedup_intervals(of: Callable[[Group], Bounds | None]) -> tuple[Column[Group], ...]:
    """GROUPS, with the interval of a speedup beside it."""
    at = [column.key for column in GROUPS].index(SPEEDUP.name) + 1
    return (*GROUPS[:at], _interval(SPEEDUP, of), *GROUPS[at:])


CERTIFICATES: tuple[Column[Group], ...] = (
    *IDENTITY,
    Column("samples", "Samples per rank", _rank_samples),
    *map(_over_seeds, ("coverage", "overlap", "coverage_whole_run", "overlap_whole_run")),
    *map(_over_seeds, ("js_divergence_mean_bits", "js_divergence_max_bits")),
    _over_seeds("js_divergence_whole_run_max_bits"),
    *map(_over_seeds, ("earth_movers_distance_mean", "earth_movers_distance_max")),
    Column("verified", "Verified", _verified, number=False),
)

MODEL_PARTITION: tuple[Column[Group], ...] = (
    *IDENTITY,
    *map(_over_seeds, ("step_s", "bubble_share", "bubble_share_formula", "split_point_bytes_per_step_max")),
    _of_serial("parameters_per_rank_max", lambda serial: serial.parameters),
    _of_serial("state_bytes_per_rank_max", lambda serial: serial.state_bytes),
    *map(_over_seeds, ("activation_bytes_per_rank_max", "peak_memory_mib", "load_balance")),
)

CONTAINERS: tuple[Column[Group], ...] = (
    *IDENTITY,
    *map(_over_seeds, ("container_payload_bytes_mean", "container_sent_bytes_mean")),
    *map(_over_seeds, ("container_sent_by_payload", "container_cpu_s_mean", "container_throttled_s_max")),
    Column("container_memory_peak_mib_max", "Peak memory (of limit)", _memory_peak),
)


def _run_time_to_target(row: Row) -> Cell:
    reached = target_reached(row)
    if reached is None:
        return Cell(ABSENT)
    return _of_run(TIME_TO_TARGET_S.name).cell(row) if reached else Cell(NOT_REACHED)


def _of_run(name: str, only: Callable[[Row], bool] = lambda row: True) -> Column[Row]:
    """A quantity of one run. only: whether a run has a value."""
    quantity = QUANTITIES[name]

    def cell(row: Row) -> Cell:
        value = quantity.of(row) if only(row) else None
        return Cell(ABSENT if value is None else quantity.write(value), value=value)

    return Column(name, quantity.title, cell)


# Beside the label, nodes and seed of a run, which failed and pending runs have, too.
RUNS: tuple[Column[Row], ...] = (
    Column(TIME_TO_TARGET_S.name, TIME_TO_TARGET_S.title, _run_time_to_target),
    *map(_of_run, ("cluster_s", "wall_s", "speedup", "efficiency")),
    _of_run("cpu_time_speedup", lambda row: row.clock == "wall"),
    *map(_of_run, ("accuracy", "accuracy_difference")),
    Column(LOCAL_ACCURACY.name, LOCAL_ACCURACY.title, _local_accuracy),
    *map(_of_run, ("samples_per_s", "bytes_sent_per_rank", "peak_memory_mib", "startup_s", "teardown_s")),
    Column("replicas_equal", "Replicas equal", lambda row: _yes_no(row.replicas_equal), number=False),
)


def _published(name: str, title: str, write: Callable[[float], str]) -> Column[PublishedLine]:
    """A published number."""

    def cell(line: PublishedLine) -> Cell:
        value = getattr(line.published, name)
        derived = "derived" if name in line.published.derived else ""
        return Cell(ABSENT if value is None else write(value), derived)

    return Column(f"{name}_published", f"{title}, published", cell)


def _both(name: str, title: str, quantity: Quantity) -> tuple[Column[PublishedLine], Column[PublishedLine]]:
    """A published number, and our measurement of it."""

    def cell(line: PublishedLine) -> Cell:
        if getattr(line.published, name) is None:
            return Cell(ABSENT)
        return (
            _with_range(quantity.over(line.measured), quantity.write) if line.measured else Cell("not run")
        )

    measured = Column(f"{name}_measured", f"{title}, measured", cell)
    return _published(name, title, quantity.write), measured


def _rounds_to_target(line: PublishedLine) -> Cell:
    if line.published.rounds_to_target is None:
        return Cell(ABSENT)
    if line.measured is None:
        return Cell("not run")
    return _of_seeds_at_target(ROUNDS_TO_TARGET, line.measured)


def _ratio(key: str, title: str, of: Callable[[PublishedLine], float | None]) -> Column[PublishedLine]:
    return Column(key, title, lambda line: Cell(formats.ratio(of(line))))


def _accuracy_difference(line: PublishedLine) -> Cell:
    measured = line.mean(ACCURACY.of)
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
    *_both("time_s", "Time", WALL_S),
    _ratio("speedup_published", "Speedup, published", lambda line: line.published_speedup),
    _ratio("speedup_measured", "Speedup, measured", lambda line: line.measured_speedup),
    _ratio("cpu_time_speedup", "CPU-time speedup", lambda line: line.cpu_time_speedup),
    *_both("accuracy", "Accuracy", ACCURACY),
    Column("accuracy_difference", "Accuracy, measured − published", _accuracy_difference),
    _published("accuracy_change", "Accuracy − one node", points),
    Column("accuracy_change_measured", "Accuracy − one node, measured", _accuracy_change),
    _published("rounds_to_target", ROUNDS_TO_TARGET.title, ROUNDS_TO_TARGET.write),
    Column("rounds_to_target_measured", f"{ROUNDS_TO_TARGET.title}, measured", _rounds_to_target),
    *_both("steps_per_epoch", "Steps per epoch", Quantity(COUNT, _steps_per_epoch)),
    *_both("coverage", "Coverage", COVERAGE),
    *_both("staleness", "Staleness", STALENESS),
    *_both("bubble", BUBBLE.title, BUBBLE),
    *_both("activations", ACTIVATIONS_OF_SERIAL.title, ACTIVATIONS_OF_SERIAL),
)


def _of_prediction(
    key: str, title: str, of: Callable[[Prediction], float | None], write: Callable[[float | None], str]
) -> Column[Prediction]:
    return Column(key, title, lambda each: Cell(write(of(each)), value=of(each)))


def _configuration(each: Prediction) -> Cell:
    name, _, workload = each.configuration.partition(": ")
    return Cell(name, workload)


def _predicted_time(each: Prediction) -> Cell:
    return Cell(seconds(each.seconds), f"90%: {span(each.low_s, each.high_s, seconds)}", each.seconds)


def _predicted_target(each: Prediction) -> Cell:
    target = each.to_target
    if target is None:
        return Cell(ABSENT)
    between = span(target.low_s, target.high_s, seconds)
    return Cell(seconds(target.seconds), f"90%: {between}; to {percent(target.accuracy)}", target.seconds)


PREDICTED: tuple[Column[Prediction], ...] = (
    Column("configuration", "Configuration", _configuration, number=False),
    Column("nodes", "Nodes", lambda each: Cell(f"{each.nodes:,}", value=each.nodes)),
    Column("time", "Time", _predicted_time),
    _of_prediction("speedup", "Speedup", lambda each: each.speedup, formats.ratio),
    _of_prediction("efficiency", "Efficiency", lambda each: each.efficiency, percent),
    _of_prediction("communication", "Communication", lambda each: each.communication, percent),
    Column("to_target", "Time to target", _predicted_target),
    _of_prediction("bytes_sent", "Sent per rank", lambda each: each.bytes_sent, formats.size),
    _of_prediction("state_bytes", "State per rank", lambda each: each.state_bytes, formats.size),
    _of_prediction(
        "cost", "Cost", lambda each: each.cost, lambda cost: ABSENT if cost is None else f"{cost:.2g}"
    ),
)


def _on_loss(cost: FaultCost) -> Cell:
    run = cost.group.first.run
    return Cell(count(run.restarts, "restart") if run.restarts else run.on_loss)


def _spread(
    key: str, title: str, of: Callable[[FaultCost], Spread | None], write: Callable[[float], str]
) -> Column[FaultCost]:
    return Column(key, title, lambda cost: _with_range(of(cost), write))


FAULTS: tuple[Column[FaultCost], ...] = (
    *(
        Column(column.key, column.title, lambda cost, column=column: column.cell(cost.group), column.number)  # type: ignore[misc]
        for column in IDENTITY
    ),
    Column("faults", "Faults", lambda cost: Cell(cost.group.first.faults_label), number=False),
    Column("on_loss", "On loss", _on_loss, number=False),
    Column("seeds", "Seeds", lambda cost: Cell(str(len(cost.pairs)) if cost.pairs else ABSENT)),
    _spread("time_without", "Time without", lambda cost: cost.without_faults(ELAPSED_S.of), seconds),
    _spread("time_with", "Time with", lambda cost: cost.with_faults(ELAPSED_S.of), seconds),
    _spread("extra_time", "Extra time", lambda cost: cost.difference(ELAPSED_S.of), seconds),
    _spread("repeated_steps", "Steps repeated", lambda cost: cost.with_faults(REPEATED_STEPS.of), short),
    _spread("samples_lost", "Samples lost", lambda cost: cost.with_faults(SAMPLES_LOST.of), short),
    _spread("accuracy_without", "Accuracy without", lambda cost: cost.without_faults(ACCURACY.of), percent),
    _spread("accuracy_with", "Accuracy with", lambda cost: cost.with_faults(ACCURACY.of), percent),
    _spread(
        "accuracy_difference", "Accuracy, difference", lambda cost: cost.difference(ACCURACY.of), points
    ),
    Column("missing", "No numbers because", lambda cost: Cell(cost.missing or ABSENT), number=False),
)

# Keys of the columns that the page shows first, the most important first; a button shows the rest.
FIRST_COLUMNS = (
    *("workload", "strategy", "nodes", "block", "runs", "faults"),
    *("time_s_published", "time_s_measured", "accuracy_published", "accuracy_measured"),
    *("time_to_target_s", "cluster_s", "speedup", "accuracy", "bytes_sent_per_rank", "wall_s"),
    *("coverage", "overlap", "samples", "verified"),
    *("step_s", "state_bytes_per_rank_max", "activation_bytes_per_rank_max", "bubble_share"),
    *("extra_time", "accuracy_difference", "missing"),
    *("container_sent_bytes_mean", "container_cpu_s_mean", "container_throttled_s_max"),
    *("container_memory_peak_mib_max", "peak_memory_mib"),
)


def first_columns(columns: Sequence[Column[T]], most: int, clock: Clock = "cluster") -> set[str]:
    """The keys of at most `most` columns to show first. clock: that of the speedups."""
    keys = [column.key for column in columns]
    times = {"cluster_s": "wall_s", "wall_s": "cluster_s"} if clock == "wall" else {}
    important = [shown for key in FIRST_COLUMNS if (shown := times.get(key, key)) in keys]
    return {*[*important, *(key for key in keys if key not in important)][:most]}

"""The columns of tables: of configurations and runs, of what was published and predicted, of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.report.formats import ABSENT, JOIN, count, percent, points, ratio, seconds, size, whole
from orchestrator.report.metrics.published import PublishedLine
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.learning import last_epoch
from orchestrator.report.quantities.model_partition import (
    ACTIVATIONS_OF_SERIAL,
    SENT_OF_WEIGHTS,
    STATE_OF_SERIAL,
)
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.render.tables import Column, Write, numbers, words
from orchestrator.report.render.tree import Cell
from orchestrator.report.statistics.spread import Spread, span
from orchestrator.report.topics.faults import FaultCost
from orchestrator.results.limits import memory_limit_mb
from orchestrator.results.predictions import Prediction

IntervalOf = Callable[[Group], Bounds | None]

# The columns of each table of configurations or runs: quantities, and special ones.
ORDER = {
    "results": """
        strategy nodes seeds lr_last_epoch epochs_trained time_to_target_s cluster_s wall_s
        wall_by_cluster speedup speedup_interval efficiency cpu_time_speedup cpu_s_per_sample_of_serial
        accuracy accuracy_interval bits_per_token dropped_choices accuracy_difference
        local_accuracy_mean consensus_distance exchange_share communicate_s hidden_s wait_s
        exchange_s_per_step bytes_sent_per_rank bytes_sent_per_rank_per_step link_latency_s
        link_bytes_per_s samples_per_s staleness_mean noise_scale_samples
    """,
    "certificates": """
        strategy nodes samples coverage overlap coverage_whole_run overlap_whole_run
        js_divergence_mean_bits js_divergence_max_bits js_divergence_whole_run_max_bits
        earth_movers_distance_mean earth_movers_distance_max verified
    """,
    "model-partitioning": """
        strategy nodes step_s bubble_share bubble_share_formula split_point_bytes_per_step_max
        parameters_per_rank_max state_bytes_per_rank_max activation_bytes_per_rank_max peak_memory_mib
        load_balance
    """,
    "containers": """
        strategy nodes container_payload_bytes_mean container_sent_bytes_mean container_sent_by_payload
        container_cpu_s_mean container_throttled_s_max container_memory_peak_mib_max
    """,
    # Beside the label, nodes and seed of a run, which failed and pending runs have, too.
    "runs": """
        time_to_target_s cluster_s wall_s speedup efficiency cpu_time_speedup accuracy
        accuracy_difference local_accuracies samples_per_s bytes_sent_per_rank peak_memory_mib
        startup_s teardown_s replicas_equal
    """,
}


def columns_of(table: str, speedup_interval: IntervalOf = lambda group: None) -> list[Column[Group]]:
    """The columns of a table of ORDER. A run is a configuration of one seed there.

    Args:
        speedup_interval: finds that of a configuration.
    """
    intervals = [
        _interval(Q.accuracy, "Accuracy", Q.accuracy.interval),
        _interval(Q.speedup, "Speedup", speedup_interval),
    ]
    special = {column.key: column for column in (*_SPECIAL, *intervals)}
    return [special.get(name) or over_seeds(QUANTITIES[name]) for name in ORDER[table].split()]


def over_seeds(quantity: Quantity) -> Column[Group]:
    """The mean of a quantity over a configuration's seeds."""

    def cell(group: Group) -> Cell:
        spread = quantity.over(group) if quantity.only(group.first) else None
        if spread is None:
            missing = {quantity.missing(row) for row in group.ok_rows}
            return Cell(missing.pop() if len(missing) == 1 else ABSENT)
        return _mean(spread, quantity.write, lambda beside: quantity.detail(group, beside))

    def shown_for(groups: Sequence[Group]) -> bool:
        return quantity.shown_for([row for group in groups for row in group.ok_rows])

    return Column(quantity.name, quantity.title, cell, shown_for=shown_for)


def _mean(spread: Spread | None, write: Write, detail: Callable[[str], str] = str) -> Cell:
    """A mean, with the range beside it unless that is written like the mean."""
    if spread is None:
        return Cell(ABSENT)
    mean, beside = write(spread.mean), spread.range(write)
    return Cell(mean, detail("" if beside == mean else beside), spread.mean)


def _interval(quantity: Quantity, title: str, of: IntervalOf) -> Column[Group]:
    def cell(group: Group) -> Cell:
        interval = of(group)
        return Cell(span(*interval, quantity.write), value=interval[0]) if interval else Cell(ABSENT)

    return Column(f"{quantity.name}_interval", f"{title}, 95% interval", cell)


def _seeds(group: Group) -> Cell:
    ok, planned = len(group.ok_rows), len(group.rows)
    written = str(ok) if ok == planned else f"{ok} of {planned}"
    return Cell(written, "" if group.repeated else "not repeated", ok)


def _rank_samples(group: Group) -> Cell:
    samples = Spread.of(number for row in group.ok_rows for number in row.node_samples)
    return Cell(samples.range(whole), value=samples.mean) if samples else Cell(ABSENT)


def _verified(group: Group) -> str:
    known = [row.verified for row in group.ok_rows if row.verified is not None]
    if not known:
        return ABSENT
    return "yes" if all(known) else f"no: {known.count(False)} of {len(known)}"


def _replicas_equal(group: Group) -> str:
    equal = group.first.replicas_equal
    return ABSENT if equal is None else "yes" if equal else "no"


def _memory_peak(group: Group) -> Cell:
    """The maximum over seeds, since it shows how close a node came to its limit.

    Absent if any run's peak is unknown, since that could be the maximum.
    """
    quantity, limit = Q.container_memory_peak_mib_max, memory_limit_mb(group.first.run)
    spread = quantity.over(group)
    if spread is None or spread.seeds < len(group.ok_rows):
        return Cell(ABSENT)
    share = f"{spread.high / limit:.0%} of {limit:,}{JOIN}MiB"
    return Cell(quantity.write(spread.high), share, spread.high)


STRATEGY = Column[Group](
    "strategy", "Strategy", lambda group: Cell(group.first.series, group.partitioner_label), number=False
)
NODES = Column[Group](
    "nodes", "Nodes", lambda group: Cell(group.shape.short, group.shape.slower, group.shape.ranks)
)
_SPECIAL: tuple[Column[Group], ...] = (
    STRATEGY,
    NODES,
    Column("seeds", "Seeds", _seeds),
    Column("samples", "Samples per rank", _rank_samples),
    Column(
        "local_accuracies",
        Q.local_accuracy_mean.title,
        lambda group: _mean(Spread.of(group.first.local_accuracies), percent),
    ),
    words("verified", "Verified", _verified),
    words("replicas_equal", "Replicas equal", _replicas_equal),
    Column("container_memory_peak_mib_max", Q.container_memory_peak_mib_max.title, _memory_peak),
)


def _published(name: str, title: str, write: Write) -> Column[PublishedLine]:
    """A published number."""
    return numbers(
        f"{name}_published",
        f"{title}, published",
        lambda line: getattr(line.published, name),
        write,
        lambda line: "derived" if name in line.published.derived else "",
    )


def _both(name: str, title: str, quantity: Quantity) -> tuple[Column[PublishedLine], Column[PublishedLine]]:
    """A published number, and our measurement of it."""
    column = over_seeds(quantity)

    def cell(line: PublishedLine) -> Cell:
        if getattr(line.published, name) is None:
            return Cell(ABSENT)
        return column.cell(line.measured) if line.measured else Cell("not run")

    measured = Column(f"{name}_measured", f"{title}, measured", cell)
    return _published(name, title, quantity.write), measured


def _accuracy_difference(line: PublishedLine) -> float | None:
    published, measured = line.published.accuracy, line.mean(Q.accuracy.of)
    if published is None or measured is None or line.overridden:
        return None
    return measured - published


def _accuracy_change(line: PublishedLine) -> float | None:
    return None if line.published.accuracy_change is None else line.accuracy_change


def _steps_per_epoch(row: Row) -> float | None:
    epochs = last_epoch(row)
    return row.steps / epochs if row.steps and epochs else None


PUBLISHED: tuple[Column[PublishedLine], ...] = (
    words("block", "Block", lambda line: line.block),
    words("runs", "Runs", lambda line: line.runs),
    *_both("time_s", "Time", Q.wall_s),
    numbers("speedup_published", "Speedup, published", lambda line: line.published_speedup, ratio),
    numbers("speedup_measured", "Speedup, measured", lambda line: line.measured_speedup, ratio),
    numbers("cpu_time_speedup", "CPU-time speedup", lambda line: line.cpu_time_speedup, ratio),
    *_both("accuracy", "Accuracy", Q.accuracy),
    numbers("accuracy_difference", "Accuracy, measured − published", _accuracy_difference, points),
    _published("accuracy_change", "Accuracy − one node", points),
    numbers("accuracy_change_measured", "Accuracy − one node, measured", _accuracy_change, points),
    *_both("rounds_to_target", Q.rounds_to_target.title, Q.rounds_to_target),
    *_both("steps_per_epoch", "Steps per epoch", Quantity(whole, _steps_per_epoch)),
    *_both("coverage", "Coverage", Q.coverage),
    *_both("staleness", "Staleness", Q.staleness_mean),
    *_both("bubble", Q.bubble_share.title, Q.bubble_share),
    *_both("activations", ACTIVATIONS_OF_SERIAL.title, ACTIVATIONS_OF_SERIAL),
    *_both("state", STATE_OF_SERIAL.title, STATE_OF_SERIAL),
    *_both("sent", SENT_OF_WEIGHTS.title, SENT_OF_WEIGHTS),
    *_both("exchange_share", Q.exchange_share.title, Q.exchange_share),
)


def _configuration(each: Prediction) -> Cell:
    name, _, workload = each.configuration.partition(": ")
    return Cell(name, workload)


def _time_to_target(each: Prediction) -> Cell:
    if (target := each.to_target) is None:
        return Cell(ABSENT)
    between = span(target.low_s, target.high_s, seconds)
    detail = f"90%: {between}; to {percent(target.accuracy)}"
    return Cell(seconds(target.seconds), detail, target.seconds)


PREDICTED: tuple[Column[Prediction], ...] = (
    Column("configuration", "Configuration", _configuration, number=False),
    numbers("nodes", "Nodes", lambda each: each.nodes, whole),
    numbers(
        "time",
        "Time",
        lambda each: each.seconds,
        seconds,
        lambda each: f"90%: {span(each.low_s, each.high_s, seconds)}",
    ),
    numbers("speedup", "Speedup", lambda each: each.speedup, ratio),
    numbers("efficiency", "Efficiency", lambda each: each.efficiency, percent),
    numbers("communication", "Communication", lambda each: each.communication, percent),
    Column("to_target", "Time to target", _time_to_target),
    numbers("bytes_sent", "Sent per rank", lambda each: each.bytes_sent, size),
    numbers("state_bytes", "State per rank", lambda each: each.state_bytes, size),
    numbers("cost", "Cost", lambda each: each.cost, "{:.2g}".format),
)


def _on_loss(cost: FaultCost) -> str:
    run = cost.group.first.run
    return count(run.restarts, "restart") if run.restarts else run.on_loss


def _over_pairs(
    key: str,
    title: str,
    side: Callable[[FaultCost, Metric], Spread | None],
    quantity: Quantity,
    write: Write | None = None,
) -> Column[FaultCost]:
    """A quantity over the seeds that finished with and without faults. write: default: as it is written."""
    return Column(key, title, lambda cost: _mean(side(cost, quantity.of), write or quantity.write))


WITHOUT, WITH, EXTRA = FaultCost.without_faults, FaultCost.with_faults, FaultCost.difference
FAULTS: tuple[Column[FaultCost], ...] = (
    Column("strategy", "Strategy", lambda cost: STRATEGY.cell(cost.group), number=False),
    Column("nodes", "Nodes", lambda cost: NODES.cell(cost.group)),
    words("faults", "Faults", lambda cost: cost.group.workload.faults),
    words("on_loss", "On loss", _on_loss),
    Column("seeds", "Seeds", lambda cost: Cell(str(len(cost.pairs)) if cost.pairs else ABSENT)),
    _over_pairs("time_without", "Time without", WITHOUT, Q.elapsed_s),
    _over_pairs("time_with", "Time with", WITH, Q.elapsed_s),
    _over_pairs("extra_time", "Extra time", EXTRA, Q.elapsed_s),
    _over_pairs("repeated_steps", Q.repeated_steps.title, WITH, Q.repeated_steps),
    _over_pairs("samples_lost", Q.samples_lost.title, WITH, Q.samples_lost),
    _over_pairs("accuracy_without", "Accuracy without", WITHOUT, Q.accuracy),
    _over_pairs("accuracy_with", "Accuracy with", WITH, Q.accuracy),
    _over_pairs("accuracy_difference", "Accuracy, difference", EXTRA, Q.accuracy, points),
    words("missing", "No numbers because", lambda cost: cost.missing or ABSENT),
)

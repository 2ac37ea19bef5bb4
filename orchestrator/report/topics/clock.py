"""Clock: what cluster time stands for, its error, shared cores, drift, and times that compare with none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isclose
from statistics import fmean
from typing import Any, get_args

from orchestrator.replay.described import MAX_CONTENTION, fits_cores
from orchestrator.replay.run import NoClusterTime
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.metrics.clock import MAX_ERROR, clock_error, error_of_difference
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import grouped
from orchestrator.report.model.rows import Clock, Row
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.drift import time_drift
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.limits import rank_quota, shows_load
from trainer.time_model.described import UNKNOWN

MOST_DISTURBED = 0.25  # of the runs that show it
BUSY = 0.1  # share of its time that a rank had no core: the box itself takes less, also with containers
CLOCKS = get_args(Clock)


def disturbed(comparison: Comparison) -> Findings:
    """That other processes used the machine during the sweep: a report opens with it."""
    rows = [row for row in comparison.rows if row.ok and shows_load(row.wall_result)]
    lost = tuple(row for row in rows if row.without_core > BUSY)
    untimed = any(row.disturbed for row in rows)
    if untimed or len(lost) > MOST_DISTURBED * len(rows):
        data = {"disturbed": len(lost), "of": len(rows), "busy": BUSY, "timed": not untimed}
        yield Finding("disturbed", lost, data)


def cluster_time(view: WorkloadView) -> Findings:
    """What the cluster times of this workload stand for, and their error."""
    if view.clock != "cluster" or view.disturbed:
        return
    rows = evidence(view.groups)
    virtual, error = any(row.is_virtual for row in rows), clock_error(rows)
    data: dict[str, Any] = {
        "virtual": virtual,
        "links": any(row.run.has_links for row in rows),
        "error_of_difference": error_of_difference(view),
        "median_error": error and error.median,
        "worst_error": error and error.worst,
        "checked": len(error.rows) if error else 0,
        "without_core": error and max(row.without_core for row in error.rows),
        **(_of_virtual_nodes(view, rows) if virtual else _of_traces(view, rows)),
    }
    calibrated = error and error.worst <= MAX_ERROR and not (virtual and data["checked"] < data["of"])
    kind = "cluster_time" if calibrated else "cluster_time_uncalibrated"
    yield Finding(kind, error.rows if error else rows, data)


def _of_traces(view: WorkloadView, rows: Sequence[Row]) -> dict[str, Any]:
    """Why times are replayed from traces, what exchanges cost in them, and which runs can show errors."""
    several = [group for group in view.groups if group.shape.ranks > 1 and group.first.timed]
    unpriced = [group for group in several if not all(row.priced for row in group.ok_rows)]
    return {
        "shared_cores": any(row.wall.shares_cores for row in rows),
        "links_not_enforced": any(row.link_not_enforced for row in rows),
        "waited_for_cores": any(row.without_core > MAX_CONTENTION for row in rows),
        "quotas": any(rank_quota(row.run, row.wall_result.runtime_info) < 1 for row in rows),
        "exchanging": len(several),
        "unpriced": [view.name_on(group) for group in unpriced],
        "of": sum(row.cluster is not None and fits_cores(row.wall_result) for row in rows),
        "unchecked_ranks": sorted({row.run.world_size for row in rows if row.wall.shares_cores}),
    }


def _of_virtual_nodes(view: WorkloadView, rows: Sequence[Row]) -> dict[str, Any]:
    """What work and messages cost virtual nodes, and the runs that real nodes have executed, too."""
    real, several = view.real, [row for row in rows if row.run.world_size > 1]
    transports = sorted({row.transport for row in several})
    measured = [name for name in transports if real and real.showing(name)]
    prices = {row.result.environment.get("seconds_per_sample") for row in rows}
    clocks = Counter(row.real.clock for row in rows if row.real)
    return {
        "sampled": any(row.is_sampled for row in rows),
        "work_measured": None in prices,
        "seconds_per_sample": sorted(price for price in prices if price),
        "measured_over": measured,
        "assumed_over": [name for name in transports if name not in measured],
        "real_nodes": real and [real.runs.node_kind, real.runs.directory, sum(map(real.showing, measured))],
        "message_s": UNKNOWN.message_s,
        "bytes_per_s": UNKNOWN.bytes_per_s,
        "of": len(several),
        "clocks": {clock: clocks[clock] for clock in CLOCKS if clocks[clock]},
    }


def cpu_inflation(comparison: Comparison) -> Findings:
    """The correction of the CPU time of ranks that shared cores in cluster time."""
    shared = [row for row in comparison.rows if row.replayed and row.wall.shares_cores]
    found = {row.key: row.replayed.cluster.cpu_inflation for row in shared if row.replayed}
    inflation = {key: fmean(of_ranks) for key, of_ranks in found.items() if of_ranks}
    rows = tuple(row for row in shared if row.key in inflation)
    if rows:
        yield Finding("cpu_inflation", rows, {"inflation": inflation, "unknown": len(shared) - len(rows)})


def real_nodes(comparison: Comparison) -> Findings:
    """That the runs of real nodes cannot be used that were given for those of virtual ones."""
    if comparison.real_unusable:
        yield Finding("real_nodes_unusable", (), {"reason": comparison.real_unusable})


def no_cluster_time(comparison: Comparison) -> Findings:
    """The runs whose times cannot be compared with those of their workload, by reason."""

    def reason(row: Row) -> str:
        time = comparison.clusters.get(row.key)
        return time.reason if isinstance(time, NoClusterTime) else "it recorded no traces"

    lacking = [row for row in comparison.rows if row.ok and not row.timed and not row.disturbed]
    for why, rows in grouped(lacking, reason).items():
        names = [*dict.fromkeys(f"{row.strategy_label} on {row.shape.label}" for row in rows)]
        yield Finding("no_cluster_time", tuple(rows), {"configurations": names, "reason": why})


def shared_cores(view: WorkloadView) -> Findings:
    """Shared cores, which limit the wall-clock speedup but not the CPU-time speedup."""
    sharing = [group for group in view.groups if group.first.shares_cores]
    if not sharing:
        return
    rows = evidence(sharing)
    shapes = sorted({group.shape for group in sharing}, key=lambda shape: (shape.ranks, shape.nodes))
    several = any(shape.processes_per_node > 1 for shape in shapes)
    most = [group for group in sharing if group.shape == shapes[-1]]
    by_cpu_time = Q.cpu_time_speedup.means(most, view.name)
    serial = view.serial and view.serial.over(lambda row: row.train_s)
    data = {
        "nodes": [shape.label if several or shape is shapes[-1] else shape.short for shape in shapes],
        "cores": max(row.result.cores for row in rows),
        "limit": max(row.speedup_limit for row in rows),
        "cpu_time_speedup": max(by_cpu_time.values(), default=None),
        "strategy": max(by_cpu_time, key=by_cpu_time.__getitem__, default=None),
        "speedup": max((row.speedup for row in rows if row.speedup), default=None),
        "serial_train_s": serial and (serial.low, serial.high),
    }
    yield Finding("shared_cores", rows, data)


def drift(view: WorkloadView) -> Findings:
    """How much slower the machine was at the end of the sweep than at its start.

    And the largest ratio of the times of two configurations that this alone makes.
    """
    timed = [group for group in view.groups if group.first.times_compare]
    rows = [row for group in timed for row in group.ok_rows if row.train_s]
    found = time_drift([(row.result.started_at, row.configuration(), row.train_s or 0.0) for row in rows])
    if not found or (isclose(found.low, 1) and isclose(found.high, 1)):  # as at a price
        return
    starts = [
        (fmean(row.result.started_at for row in group.ok_rows), view.name_on(group)) for group in timed
    ]
    (first_s, earliest), (last_s, latest) = min(starts), max(starts)
    share = (last_s - first_s) / found.span_s
    data = {
        "clock": view.clock,
        "shown": found.shown,
        "factor": found.factor,
        "interval": (found.low, found.high),
        "span_s": found.span_s,
        "by_order": max(found.factor, 1 / found.factor) ** share,
        "earliest": earliest,
        "latest": latest,
    }
    yield Finding("drift" if found.shown or found.wide else "no_drift", tuple(rows), data)


def thread_ranks(comparison: Comparison) -> Findings:
    """Runs whose ranks were threads of one interpreter."""
    rows = [row for row in comparison.rows if row.ok and not row.result.times_compare]
    if rows:
        yield Finding("thread_ranks", tuple(rows), {"runs": len(rows)})


TOPIC = Topic(
    rules=(cluster_time,),
    rules_with_faults=(shared_cores, drift),
    sweep_rules=(disturbed, real_nodes, cpu_inflation, no_cluster_time, thread_ranks),
)

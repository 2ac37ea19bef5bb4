"""Clock: what cluster time stands for, its error, shared cores, drift, and times that compare with none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from orchestrator.replay.described import MAX_CONTENTION, fits_cores
from orchestrator.replay.real_nodes import Calibrated
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.findings.base import Finding, evidence, said
from orchestrator.report.formats import count, first_few, listed, percent, ratio, seconds
from orchestrator.report.metrics.clock import MAX_ERROR, ClockError, clock_error, error_of_difference
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.drift import Drift, time_drift
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.limits import counted, shows_load
from trainer.time_model.described import UNKNOWN

MOST_DISTURBED = 0.25  # of the runs that show it
BUSY = 0.1  # share of its time that a rank had no core: the box itself takes less, also with containers
MAX_NAMED = 3  # configurations


def disturbed(comparison: Comparison) -> Findings:
    """That other processes used the machine during the sweep: a report opens with it."""
    rows = [row for row in comparison.rows if row.ok and shows_load(row.wall_result)]
    lost = tuple(row for row in rows if row.without_core > BUSY)
    untimed = any(row.disturbed for row in rows)
    if untimed or len(lost) > MOST_DISTURBED * len(rows):
        yield said(
            "disturbed",
            f"The machine was busy: in {len(lost)} of the {count(len(rows), 'run')} whose ranks could have "
            f"had a core each, a rank waited for its core during over {BUSY:.0%} of its time. "
            f"{'Times are not compared. ' if untimed else ''}"
            "Stop other processes, and run the sweep again with another --out.",
            lost,
            {"disturbed": len(lost), "of": len(rows)},
        )


def cluster_time(view: WorkloadView) -> Findings:
    """The error of the cluster times of this workload, from its runs whose ranks had a core each."""
    if view.clock != "cluster" or view.disturbed:
        return
    rows = [row for group in view.groups for row in group.ok_rows]
    error = clock_error(rows)
    if any(row.is_virtual for row in rows):
        yield _of_virtual_nodes(view, rows, error)
        return
    several = [group for group in view.groups if group.shape.ranks > 1 and group.first.timed]
    unpriced = [view.name_on(group) for group in several if not all(row.priced for row in group.ok_rows)]
    links = ", on the links that the runs request" if any(row.run.has_links for row in rows) else ""
    meaning = (
        f"{_reason(rows)}, so times are cluster times, replayed from the traces of the runs: what training "
        f"takes if every rank has a core of its own{links}{_exchanges(len(several), unpriced)}"
    )
    if error is None:
        yield said(
            "cluster_time_uncalibrated",
            f"{meaning}. Their error is unknown, because few or no runs had several ranks with a core each "
            "all the time, and so exchanges may cost more or less than the cluster times include. The "
            f"intervals of differences contain an error of {percent(MAX_ERROR)}.",
            evidence(view.groups),
            {"unpriced": unpriced},
        )
        return
    off = error.worst > MAX_ERROR
    waited = max(row.without_core for row in error.rows)
    able = sum(row.cluster is not None and fits_cores(row.wall_result) for row in rows)
    checked = (
        f"all {able} runs" if able == len(error.rows) else f"{len(error.rows)} of {count(able, 'run')}"
    )
    yield said(
        "cluster_time_uncalibrated" if off else "cluster_time",
        f"{meaning}. In {checked} of several ranks with as many cores, ranks waited for a core during at "
        f"most {percent(waited)} of their time; there, cluster times differ from wall times by "
        f"{percent(error.median)} in the median and {percent(error.worst)} at most. Runs of more ranks "
        "than cores could not be checked. The intervals of differences contain an error of "
        f"{percent(error.of_configuration)}, the largest median error of a configuration.",
        error.rows,
        {
            "median_error": error.median,
            "worst_error": error.worst,
            "error_of_difference": error.of_configuration,
            "without_core": waited,
            "checked": len(error.rows),
            "of": able,
            "unchecked_ranks": sorted({row.run.world_size for row in rows if row.wall.shares_cores}),
            "unpriced": unpriced,
        },
    )


def _exchanges(configurations: int, unpriced: list[str]) -> str:
    """What exchanges cost in cluster time, as the end of a sentence.

    Args:
        configurations: those of several ranks.
        unpriced: the names of those whose exchanges cost nothing beyond their messages.
    """
    if not configurations:
        return ""
    free = "no more than their messages, because no other run shows what else they cost"
    if len(unpriced) == configurations:
        return f", and exchanges cost {free}"
    text = ", and exchanges cost what they cost here between ranks with a core each"
    return f"{text}; those of {first_few(unpriced, MAX_NAMED)} cost {free}" if unpriced else text


def cpu_inflation(comparison: Comparison) -> Findings:
    """The correction of the CPU time of ranks that shared cores in cluster time."""
    shared = [row for row in comparison.rows if row.cluster is not None and row.wall.shares_cores]
    found = {row.key: comparison.clusters[row.key] for row in shared}
    inflation = {
        key: fmean(time.cluster.cpu_inflation)
        for key, time in found.items()
        if isinstance(time, ClusterTime) and time.cluster.cpu_inflation
    }
    unknown = [row for row in shared if row.key not in inflation]
    if not shared or not inflation:
        return
    low, high = f"{min(inflation.values()):.3g}", f"{max(inflation.values()):.3g}"
    text = (
        f"Ranks of {count(len(shared), 'run')} with a cluster time shared cores, and so caches. Cluster "
        f"time divides the CPU time of their work by {low if low == high else f'{low} to {high}'}. This is "
        "their CPU time per step relative to runs of the same work with a core for each rank; where there "
        "are none, it is the median of the other runs that shared these cores."
    )
    if unknown:
        text += f" {count(len(unknown), 'run')} could not be corrected."
    rows = tuple(row for row in shared if row.key in inflation)
    yield said("cpu_inflation", text, rows, {"inflation": inflation, "unknown": len(unknown)})


def real_nodes(comparison: Comparison) -> Findings:
    """That the runs of real nodes cannot be used that were given for those of virtual ones."""
    if comparison.real_unusable:
        yield said(
            "real_nodes_unusable",
            "Times of virtual nodes are not calibrated, because the runs of real nodes cannot be used: "
            f"{comparison.real_unusable.rstrip('.?')}. Give others with `report --real`.",
        )


def _of_virtual_nodes(view: WorkloadView, rows: Sequence[Row], error: ClockError | None) -> Finding:
    """What the times of virtual nodes stand for, and their error where the same runs had real nodes."""
    prices = {row.result.environment.get("seconds_per_sample") for row in rows}
    given = [f"{price:g} s" for price in sorted(price for price in prices if price)]
    sampled = any(row.is_sampled for row in rows)
    measured = ""
    if None in prices:
        measured = (
            "the median CPU time of the same step on this machine"
            if sampled
            else "the CPU time that it needed on a core of its own"
        )
    work = listed([*filter(None, [measured, f"{listed(given, 'or')} per sample" if given else ""])], "or")
    links = "the links that the runs request" if any(row.run.has_links for row in rows) else "ideal links"
    meaning = (
        f"{'Nodes are virtual and train nothing' if sampled else 'Nodes are virtual'}, so times are "
        f"cluster times: work takes {work}, and exchanges take what the time model gives them on {links}. "
    )
    several = [row for row in rows if row.run.world_size > 1]
    meaning += _software(view.real, sorted({row.transport for row in several}))
    kept = f"The intervals of differences contain an error of {percent(error_of_difference(view))}."
    if error is None:
        text = f"{meaning} Their error is unknown: these runs have no times of real nodes. {kept}"
        return said("cluster_time_uncalibrated", text, evidence(view.groups))
    clocks = Counter(row.real.clock for row in error.rows if row.real)
    true = listed([count(clocks[clock], f"{clock} time") for clock in ("wall", "cluster") if clocks[clock]])
    text = (
        f"{meaning} Real nodes have also executed {len(error.rows)} of the {count(len(several), 'run')} of "
        f"several ranks. Times of virtual nodes, each with the costs that other runs show, differ from "
        f"theirs ({true}) by {percent(error.median)} in the median and {percent(error.worst)} at most."
    )
    unchecked = len(several) - len(error.rows)
    text += f"{' The others could not be checked.' if unchecked else ''} {kept}"
    data = {
        "median_error": error.median,
        "worst_error": error.worst,
        "checked": len(error.rows),
        "of": len(several),
        "clocks": dict(clocks),
    }
    off = error.worst > MAX_ERROR or unchecked
    return said("cluster_time_uncalibrated" if off else "cluster_time", text, error.rows, data)


def _software(real: Calibrated | None, transports: Sequence[str]) -> str:
    """What the software of messages costs virtual nodes, in a sentence or two."""
    measured = [name for name in transports if real and real.showing(name)]
    others = [name for name in transports if name not in measured]
    sentences = []
    if real and measured:
        runs = count(sum(map(real.showing, measured)), "run")
        sentences.append(
            f"What the software of messages and exchanges costs over {listed(measured)} was measured in "
            f"{runs} on {real.runs.node_kind}, in {real.runs.directory}."
        )
    if others or not measured:
        most = f"{UNKNOWN.bytes_per_s / 1e9:g} GB/s"
        over = f"Over {listed(others)}, the" if measured else "The"
        sentences.append(
            f"{over} software of a message takes {UNKNOWN.message_s * 1e6:g} µs, and moves at most {most} "
            "between nodes."
        )
    return " ".join(sentences)


def _reason(rows: Sequence[Row]) -> str:
    """Why these rows are compared in cluster time, as a main clause."""
    shared = any(row.wall.shares_cores for row in rows)
    links = "the links that runs request were not enforced"
    if shared and any(row.link_not_enforced for row in rows):
        return f"Nodes of this machine share cores, and {links}"
    if shared:
        return "Nodes of this machine share cores"
    if any(row.link_not_enforced for row in rows):
        return links.capitalize()
    if any(row.without_core > MAX_CONTENTION for row in rows):
        return "Other load took the cores of ranks that had work"
    return "Other runs of this workload are over links that make wall times incomparable"


def no_cluster_time(comparison: Comparison) -> Findings:
    """The runs whose times cannot be compared with those of their workload, by reason."""
    lacking: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.ok and not row.timed and not row.disturbed:
            time = comparison.clusters.get(row.key)
            reason = time.reason if isinstance(time, NoClusterTime) else "it recorded no traces"
            lacking.setdefault(reason, []).append(row)
    for reason, rows in lacking.items():
        names = [*dict.fromkeys(f"{row.strategy_label} on {row.shape.label}" for row in rows)]
        yield said(
            "no_cluster_time",
            f"Without cluster time, and so in no comparison of times: {first_few(names)} ({reason}).",
            tuple(rows),
            {"configurations": names, "reason": reason},
        )


def shared_cores(view: WorkloadView) -> Findings:
    """Shared cores, which limit the wall-clock speedup but not the CPU-time speedup."""
    sharing = [group for group in view.groups if group.first.shares_cores]
    if not sharing:
        return
    limit = max(row.speedup_limit for group in sharing for row in group.rows)
    cores = max(row.result.cores for group in sharing for row in group.rows)
    shapes = sorted({group.shape for group in sharing}, key=lambda shape: (shape.ranks, shape.nodes))
    text = (
        f"Runs on {_on(shapes)} shared {counted(cores, 'core')}: their wall-clock speedup cannot exceed "
        f"{limit:.3g}, and does not predict that of as many machines."
    )
    data: dict[str, Any] = {"shapes": [shape.short for shape in shapes], "cores": cores, "limit": limit}
    most = shapes[-1]
    by_cpu_time = [
        (spread.mean, group)
        for group in sharing
        if group.shape == most and (spread := Q.cpu_time_speedup.over(group))
    ]
    if by_cpu_time:
        reached, best = max(by_cpu_time, key=lambda item: item[0])
        text += (
            f" With a core for every rank and free communication, {view.name(best)} on {most.label} would "
            f"reach a speedup of {ratio(reached)} by CPU time."
        )
        data |= {"strategy": view.name(best), "cpu_time_speedup": reached}
    beyond = [row.speedup for row in evidence(sharing) if row.speedup and row.speedup > row.speedup_limit]
    serial_s = view.serial.over(lambda row: row.train_s) if view.serial else None
    if beyond and serial_s:
        text += (
            f" A speedup above that, of up to {ratio(max(beyond))}, comes from serial runs in which the "
            f"machine was slow (serial took {serial_s.range(seconds)})."
        )
        data["beyond_limit"] = max(beyond)
    yield said("shared_cores", text, evidence(sharing), data)


def _on(shapes: list[ClusterShape]) -> str:
    """`2, 4 and 5 nodes`; with ranks per node if there are several."""
    if any(shape.processes_per_node > 1 for shape in shapes):
        return listed([shape.label for shape in shapes])
    *others, last = shapes
    return listed([*(shape.short for shape in others), last.label])


def drift(view: WorkloadView) -> Findings:
    """How much slower the machine was at the end of the sweep than at its start."""
    timed = [group for group in view.groups if group.first.times_compare]
    rows = [row for group in timed for row in group.ok_rows if row.train_s]
    found = time_drift([(row.result.started_at, row.configuration(), row.train_s or 0.0) for row in rows])
    if found is None:
        return
    text = (
        f"From the first run to the last, {view.clock} times changed by a factor of {ratio(found.factor)} "
        f"({ratio(found.low)} to {ratio(found.high)})"
    )
    data: dict[str, Any] = {
        "factor": found.factor,
        "interval": (found.low, found.high),
        "span_s": found.span_s,
    }
    if not found.shown:
        text += ": whether there is a drift is undecided"
    else:
        text += ": the machine was not equally fast all the time"
        if by_order := _by_order(view, found):
            text += (
                f". The order of runs makes a factor of at most {ratio(by_order['by_order'])} between "
                f"configurations: on average, the runs of {by_order['earliest']} were the earliest, and "
                f"those of {by_order['latest']} the latest"
            )
            data |= by_order
    yield said("drift" if found.shown or found.wide else "no_drift", f"{text}.", tuple(rows), data)


def _by_order(view: WorkloadView, found: Drift) -> dict[str, Any]:
    """The largest ratio of the times of two configurations that the drift alone makes, and of which.

    Empty if the runs of all configurations started at the same time in the mean.
    """
    starts = [
        (fmean(row.result.started_at for row in group.ok_rows), view.name_on(group))
        for group in view.groups
        if group.first.times_compare
    ]
    (first_s, earliest), (last_s, latest) = min(starts), max(starts)
    if first_s == last_s:
        return {}
    by_order = max(found.factor, 1 / found.factor) ** ((last_s - first_s) / found.span_s)
    return {"by_order": by_order, "earliest": earliest, "latest": latest}


def thread_ranks(comparison: Comparison) -> Findings:
    """Runs whose ranks were threads of one interpreter."""
    rows = [row for row in comparison.rows if row.ok and not row.result.times_compare]
    if rows:
        text = (
            f"The ranks of {count(len(rows), 'run')} were threads of one interpreter and slowed each other "
            "down: their times do not compare, and no finding about time includes them."
        )
        yield said("thread_ranks", text, tuple(rows))


TOPIC = Topic(
    rules=(cluster_time,),
    rules_with_faults=(shared_cores, drift),
    sweep_rules=(disturbed, real_nodes, cpu_inflation, no_cluster_time, thread_ranks),
)

"""Findings about cluster time: what it stands for, its error, and the runs that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from orchestrator.replay.described import MAX_CONTENTION, fits_cores
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims
from orchestrator.report.formats import count, first_few, percent
from orchestrator.report.metrics.clock import BUSY, MAX_ERROR, clock_error, lost_cores, shows_load
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.rows import Row

MOST_DISTURBED = 0.25  # of the runs that show it


def disturbed(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """That other processes used the machine during the sweep: a report opens with it."""
    rows = [row for row in comparison.rows if row.ok and shows_load(row)]
    lost = tuple(row for row in rows if lost_cores(row))
    if len(lost) > MOST_DISTURBED * len(rows):
        yield Finding(
            "disturbed",
            f"The machine was busy: in {len(lost)} of the {count(len(rows), 'run')} whose ranks could have "
            f"had a core each, a rank waited for its core during over {BUSY:.0%} of its time. Stop other "
            "processes, and run the sweep again with another --out.",
            lost,
            {"disturbed": len(lost), "of": len(rows)},
        )


def cluster_time(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The error of the cluster times of this workload, from its runs whose ranks had a core each."""
    if view.clock != "cluster":
        return
    rows = [row for group in view.groups for row in group.ok_rows]
    error = clock_error(rows)
    meaning = (
        f"{_reason(rows)}, so times are cluster times, replayed from the traces of the runs: what training "
        "takes if every rank has a core of its own, and exchanges cost what they cost here between ranks "
        "with a core each"
    )
    if any(row.run.has_links for row in rows):
        meaning += ", on the links that the runs request"
    if error is None:
        yield Finding(
            "cluster_time_uncalibrated",
            f"{meaning}. Their error is unknown, because few or no runs had several ranks with a core each "
            "all the time, and so exchanges may cost more or less than the cluster times include. The "
            f"intervals of differences contain an error of {percent(MAX_ERROR)}.",
            evidence(view.groups),
        )
        return
    off = error.worst > MAX_ERROR
    unchecked = sorted({row.run.world_size for row in rows if row.wall.shares_cores})
    able = sum(row.cluster is not None and fits_cores(row.wall.result) for row in rows)
    checked = (
        f"all {able} runs" if able == len(error.rows) else f"{len(error.rows)} of {count(able, 'run')}"
    )
    yield Finding(
        "cluster_time_uncalibrated" if off else "cluster_time",
        f"{meaning}. In {checked} of several ranks with as many cores, ranks waited for a core during at "
        f"most {percent(MAX_CONTENTION)} of their time; there, cluster times differ from wall times by "
        f"{percent(error.median)} in the median and {percent(error.worst)} at most. Runs of more ranks "
        "than cores could not be checked. The intervals of differences contain an error of "
        f"{percent(error.of_configuration)}, the largest median error of a configuration.",
        error.rows,
        {
            "median_error": error.median,
            "worst_error": error.worst,
            "error_of_difference": error.of_configuration,
            "checked": len(error.rows),
            "of": able,
            "unchecked_ranks": unchecked,
        },
    )


def cpu_inflation(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """By how much cluster time corrects the CPU time of ranks that shared cores."""
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
    yield Finding("cpu_inflation", text, rows, {"inflation": inflation, "unknown": len(unknown)})


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


def no_cluster_time(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """The runs whose times cannot be compared with those of their workload, by reason."""
    lacking: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.ok and not row.timed:
            time = comparison.clusters.get(row.key)
            reason = time.reason if isinstance(time, NoClusterTime) else "it recorded no traces"
            lacking.setdefault(reason, []).append(row)
    for reason, rows in lacking.items():
        names = [*dict.fromkeys(f"{row.strategy_label} on {row.shape.label}" for row in rows)]
        yield Finding(
            "no_cluster_time",
            f"Without cluster time, and so in no comparison of times: {first_few(names)} ({reason}).",
            tuple(rows),
            {"configurations": names, "reason": reason},
        )

"""The serial run that each run is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.model.clock import on_cluster
from orchestrator.report.model.groups import Group, groups_of
from orchestrator.report.model.labels import Rate, Workload, lr_schedule_labels
from orchestrator.report.model.locations import location_names
from orchestrator.report.model.rows import SERIAL, Baseline, Row
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec


def rows_of(
    results: Sequence[tuple[str, RunResult]],
    clusters: Mapping[str, ClusterTime | NoClusterTime],
    elsewhere: bool = False,
) -> list[Row]:
    """One row per (key, result), in the same order, each with its baseline.

    Rows of a workload whose nodes are virtual, share cores or wait for them, or whose links were requested
    and not enforced, are on the cluster clock, if their runs have cluster times. So are those of the same
    workload over other links, since they have the serial runs in common.

    Args:
        clusters: the cluster times of runs by key, or why they have none.
        elsewhere: whether these are times on another cluster, on which all runs are compared. Wall times
            say nothing about it.
    """
    plain = _plain(results)
    walls = _with_baselines(plain)
    if elsewhere:
        walls = [replace(wall, timed=False) for wall in walls]
    known = {key: time for key, time in clusters.items() if isinstance(time, ClusterTime)}
    twins = _with_baselines([_in_cluster_time(row, known.get(row.key)) for row in plain])
    by_cluster_time = (
        {wall.workload.without_links for wall in walls}
        if elsewhere
        else _compared_in_cluster_time(walls, known)
    )
    return [
        replace(twin, twin=wall)
        if wall.workload.without_links in by_cluster_time
        else replace(wall, twin=twin)
        for wall, twin in zip(walls, twins, strict=True)
    ]


def _compared_in_cluster_time(walls: Sequence[Row], clusters: Mapping[str, ClusterTime]) -> set[Workload]:
    """The workloads, without links, whose wall times mislead and whose runs have cluster times."""
    ok = [row for row in walls if row.ok]
    misleading = [row for row in ok if row.shares_cores or row.link_not_enforced]
    misleading += [row for row in ok if row.is_virtual]
    misleading += [row for group in groups_of(ok) if waits_for_cores(group) for row in group.rows]
    found = {row.workload.without_links for row in misleading if row.key in clusters or row.is_virtual}
    serial = [row for row in walls if row.ok and row.strategy == SERIAL]
    untraced = {row.workload for row in serial if row.key not in clusters and not row.is_virtual}
    return found - untraced


def waits_for_cores(group: Group) -> bool:
    """Whether other load took the cores of a configuration, so that its wall times are not its own."""
    return median(row.without_core for row in group.ok_rows) > MAX_CONTENTION


def _plain(results: Sequence[tuple[str, RunResult]]) -> list[Row]:
    """Rows on the wall clock without baselines."""
    locations = location_names([result for _, result in results])
    runs = [result.run for _, result in results]
    rates = workload_rates(runs)
    schedules = [
        " ".join(filter(None, [schedule, "" if rate.lr == run.lr else f"lr={run.lr:g}"]))
        for run, schedule, rate in zip(runs, lr_schedule_labels(runs), rates, strict=True)
    ]
    return [
        Row(key, result, run, None, location, schedule, rate, timed=not result.runtime_info.simulates_time)
        for (key, result), run, location, schedule, rate in zip(
            results, runs, locations, schedules, rates, strict=True
        )
    ]


def _in_cluster_time(row: Row, time: ClusterTime | None) -> Row:
    """The row on the cluster clock. time: None if it has none."""
    if time is None:
        return replace(row, clock="cluster", timed=False)
    priced = any(cost.seconds for costs in time.cluster.software.values() for cost in costs)
    return replace(row, result=on_cluster(row.result, time), clock="cluster", timed=True, priced=priced)


def _with_baselines(plain: Sequence[Row]) -> list[Row]:
    """The rows, all on one clock, each with its baseline."""
    serial: dict[Workload, list[Row]] = {}
    for row in plain:
        if row.ok and row.strategy == SERIAL:
            serial.setdefault(row.workload, []).append(row)
    rows = [
        replace(row, baseline=_baseline(row, serial.get(row.workload.without_links, []))) for row in plain
    ]
    # If one seed has no speedup, a mean over the others would not be that of the configuration.
    untimed = {row.key for group in groups_of(rows) if not _timed(group) for row in group.rows}
    return [replace(row, baseline=_untimed(row.baseline)) if row.key in untimed else row for row in rows]


def workload_rates(runs: Sequence[RunSpec]) -> list[Rate]:
    """The learning rate of the workload of each run: that of its serial runs.

    A strategy may need a rate of its own, as signSGD does. If all serial runs of otherwise equal workloads
    have one rate, runs with other rates compare with them. If serial runs have several, a run compares with
    those of its rate. The same applies to the warm-up of serial runs.
    """
    others = [replace(Workload.of(run), lr=0.0, link="") for run in runs]
    serial: dict[Workload, set[Rate]] = {}
    for run, workload in zip(runs, others, strict=True):
        if run.name_of("strategy") == SERIAL:
            serial.setdefault(workload, set()).add(Rate(run.lr, run.warm_up_epochs))
    rates = []
    for run, workload in zip(runs, others, strict=True):
        known = serial.get(workload, set())
        lrs = {rate.lr for rate in known}
        lr = min(lrs) if len(lrs) == 1 else run.lr
        warm_ups = {rate.warm_up_epochs for rate in known if rate.lr == lr}
        own = run.warm_up_epochs
        rates.append(Rate(lr, own if own in warm_ups else min(warm_ups, default=0)))
    return rates


def _timed(group: Group) -> bool:
    return all(row.baseline.train_s is not None for row in group.rows if row.baseline)


def _untimed(baseline: Baseline | None) -> Baseline | None:
    return replace(baseline, timed=False) if baseline else None


def _baseline(row: Row, serial: Sequence[Row]) -> Baseline | None:
    """None if the run has nothing to compare, or there is no serial run to compare it with."""
    if not row.ok or not row.trains or not serial:
        return None
    # Checkpoints cost time: prefer serial runs with the same checkpoint interval, then those without any.
    same_interval = [other for other in serial if _checkpoints(other) == _checkpoints(row)]
    serial = same_interval or [other for other in serial if not other.run.checkpoints]
    if not serial:
        return None
    same_seed = [other for other in serial if other.seed == row.seed]
    chosen = same_seed or serial
    same_epochs = all(other.result.last_epoch == row.result.last_epoch for other in chosen)
    return Baseline(tuple(chosen), bool(same_seed), same_epochs)


def _checkpoints(row: Row) -> tuple[int | None, int | None]:
    return row.run.checkpoint_epochs, row.run.checkpoint_steps

"""The serial run that each run is compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import get_args

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.replay.real_nodes import RealTime
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.model.groups import Group, groups_of
from orchestrator.report.model.labels import Rate, Workload, location_names, lr_schedule_labels
from orchestrator.report.model.rows import SERIAL, Clock, Row
from orchestrator.results.limits import is_disturbed, shows_load
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec


def rows_of(
    results: Sequence[tuple[str, RunResult]],
    clusters: Mapping[str, ClusterTime | NoClusterTime],
    real: Mapping[str, RealTime],
    elsewhere: bool = False,
) -> list[Row]:
    """One row per (key, result), in the same order, each with the serial runs that it is compared with.

    Rows of a workload whose nodes are virtual, share cores or wait for them, or whose links were requested
    and not enforced, are on the cluster clock, if their runs have cluster times. So are those of the same
    workload over other links, since they have the serial runs in common.

    Args:
        clusters: the cluster times of runs by key, or why they have none.
        real: what the runs of virtual nodes took on real ones, by key.
        elsewhere: whether these are times on another cluster, on which all runs are compared. Wall times
            say nothing about it.
    """
    plain = []
    disturbed = _are_disturbed(result for _, result in results)
    runs = [result.run for _, result in results]
    names = location_names([result for _, result in results])
    described = zip(results, names, lr_schedule_labels(runs), workload_rates(runs), strict=True)
    for (key, result), location, schedule, rate in described:
        own_lr = "" if rate.lr == result.run.lr else f"lr={result.run.lr:g}"
        label = " ".join(filter(None, [schedule, own_lr]))
        time = clusters.get(key)
        replayed = time if isinstance(time, ClusterTime) else None
        plain.append(
            Row(
                key,
                result,
                result.run,
                location,
                label,
                rate,
                replayed,
                real.get(key),
                elsewhere,
                disturbed,
            )
        )
    rows = _with_serial(plain)
    in_cluster_time = (
        {row.workload.without_links for row in rows} if elsewhere else _compared_in_cluster_time(rows)
    )
    return [row.on("cluster" if row.workload.without_links in in_cluster_time else "wall") for row in rows]


def _compared_in_cluster_time(rows: Sequence[Row]) -> set[Workload]:
    """The workloads, without links, whose wall times mislead and whose runs have cluster times."""
    ok = [row for row in rows if row.ok]
    misleading = [row for row in ok if row.shares_cores or row.link_not_enforced or row.is_virtual]
    misleading += [row for group in groups_of(ok) if _waits_for_cores(group) for row in group.rows]
    timed = {row.key for row in ok if row.replayed or row.is_virtual}
    untraced = {row.workload for row in ok if row.strategy == SERIAL and row.key not in timed}
    return {row.workload.without_links for row in misleading if row.key in timed} - untraced


def _waits_for_cores(group: Group) -> bool:
    """Whether other load took the cores of a configuration, so that its wall times are not its own."""
    return median(row.without_core for row in group.ok_rows) > MAX_CONTENTION


def _are_disturbed(results: Iterable[RunResult]) -> bool:
    """Whether other load disturbed most runs with one number of ranks: then no times of the sweep compare.

    Runs of one rank show it best. Ranks that wait for each other wait less for cores, but are as disturbed.
    """
    found: dict[int, list[bool]] = {}
    for result in results:
        if result.status == "ok" and shows_load(result):
            found.setdefault(result.run.world_size, []).append(is_disturbed(result))
    return any(2 * sum(runs) > len(runs) for runs in found.values())


def _with_serial(plain: Sequence[Row]) -> list[Row]:
    """The rows, each with the serial runs that it is compared with, and the clocks on which it is not."""
    serial: dict[Workload, list[Row]] = {}
    for row in plain:
        if row.ok and row.strategy == SERIAL:
            serial.setdefault(row.workload, []).append(row)
    rows = [replace(row, serial=_serial(row, serial.get(row.workload.without_links, []))) for row in plain]
    untimed_on = {
        group.first.configuration(): frozenset(clock for row in group.rows for clock in _untimed_on(row))
        for group in groups_of(rows)
    }
    return [replace(row, untimed_on=untimed_on[row.configuration()]) for row in rows]


def _untimed_on(row: Row) -> Iterator[Clock]:
    """The clocks on which the time of a run cannot be compared with its serial runs."""
    same_epochs = all(each.result.last_epoch == row.result.last_epoch for each in row.serial)
    for clock in get_args(Clock) if row.serial else ():
        if not same_epochs or all(each.on(clock).train_s is None for each in row.serial):
            yield clock


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
    return [_rate(run, serial.get(workload, set())) for run, workload in zip(runs, others, strict=True)]


def _rate(run: RunSpec, known: Collection[Rate]) -> Rate:
    lrs = {rate.lr for rate in known}
    lr = min(lrs) if len(lrs) == 1 else run.lr
    warm_ups = {rate.warm_up_epochs for rate in known if rate.lr == lr}
    return Rate(lr, run.warm_up_epochs if run.warm_up_epochs in warm_ups else min(warm_ups, default=0))


def _serial(row: Row, serial: Sequence[Row]) -> tuple[Row, ...]:
    """Nothing if the run has nothing to compare, or there is no serial run to compare it with."""
    if not row.ok or not row.trains:
        return ()
    # Checkpoints cost time: prefer serial runs with the same checkpoint interval, then those without any.
    same_interval = [other for other in serial if _checkpoints(other) == _checkpoints(row)]
    serial = same_interval or [other for other in serial if not other.run.checkpoints]
    same_seed = [other for other in serial if other.seed == row.seed]
    return tuple(same_seed or serial)


def _checkpoints(row: Row) -> tuple[int | None, int | None]:
    return row.run.checkpoint_epochs, row.run.checkpoint_steps

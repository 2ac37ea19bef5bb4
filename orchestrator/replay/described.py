"""The cluster that the runs of a sweep stand for, and their times on it.

Nodes are those of a run's spec, with a core for each rank or with its quota. Links are those that the run
requests; otherwise wires that cost nothing. Beside them a message costs what the transport's own software
costs on this machine: the probe before each run measures it, and the fastest result of the sweep counts,
because other load only slows a probe down. What an exchange costs beyond its messages is measured in those
runs of the sweep whose ranks had a core each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path as RunDirectory

from orchestrator.replay.calibration import DIGITS, Calibration, Place
from orchestrator.replay.run import (
    ClusterTime,
    NoClusterTime,
    read_cluster_time,
    read_traces,
    replay_run,
    write_cluster_time,
)
from orchestrator.replay.work import Work, step_cpu_s
from orchestrator.results.limits import may_have_cores, rank_quota
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, UnusableFile
from trainer.core.result import MAX_WAITS_LISTED
from trainer.core.trace import WORK_PHASES
from trainer.time_model.cluster import Cluster
from trainer.time_model.described import UNKNOWN, Software, cluster_of_run

# Share of its time that a rank had work but no core: with more, it did not have a core to itself. Beside
# other load the share is small where ranks wait for each other, but the load makes their exchanges slower.
MAX_CONTENTION = 0.02
# Fields of a run on which the CPU time of a step depends, beside its batch, its trace and where it runs.
STEP_FIELDS = (
    "strategy",
    "transport",
    "dataset",
    "model",
    "loss",
    "optimizer",
    "augmentation",
    "threads",
    "link",
)


def software_of(results: Iterable[RunResult]) -> dict[Place, Software]:
    """The fastest software of each place, over the probes of all runs without shaped links."""
    found: dict[Place, Software] = {}
    for result in results:
        if _has_shaped_links(result):
            continue
        place = _place(result)
        for link in result.links:
            best = found.get(place, Software(inf, 0.0))
            found[place] = Software(
                min(best.message_s, link.latency_s), max(best.bytes_per_s, link.bytes_per_s)
            )
    return found


def described(result: RunResult, software: Mapping[Place, Software], requested: bool = True) -> Cluster:
    """The cluster of a run.

    Args:
        requested: whether it has the links that the run requests; otherwise those of this machine.
    """
    own = software.get(_place(result), UNKNOWN)
    return cluster_of_run(result.run, rank_quota(result.run, result.runtime_info), own, requested)


@dataclass(frozen=True)
class Costs:
    """What work and communication cost on this machine, as the runs of a sweep show it."""

    software: Mapping[Place, Software]
    calibration: Calibration
    work: Work

    @classmethod
    def of(cls, runs: Sequence[tuple[RunDirectory, RunResult]]) -> Costs:
        """The costs from the probes and the traces of runs, each with its directory."""
        software = software_of(result for _, result in runs)
        calibration, work = Calibration(), Work()
        for directory, result in runs:
            if result.status != "ok" or rank_quota(result.run, result.runtime_info) < 1:
                continue
            traces = read_traces(directory, result.run, result.runtime_info.simulates_time)
            if isinstance(traces, NoClusterTime):
                continue
            key = directory.name
            if fits_cores(result) and not _has_shaped_links(result):
                own, loaded = described(result, software, requested=False), not has_cores(result)
                calibration.add(key, _strategy(result), _place(result), traces, own, loaded)
            if result.run.strategy.rounds:  # a step costs nothing where its rank is absent
                continue
            steps = step_cpu_s(traces, whole_batches(result))
            if has_cores(result):
                work.add_undisturbed(key, work_of_step(result), steps)
            elif len(traces) > 1 and not result.runtime_info.simulates_time:
                work.add_shared(key, work_of_step(result), (result.runtime, result.cores), steps)
        return cls(software, calibration, work)

    def cluster(self, result: RunResult, key: str, requested: bool = True) -> Cluster:
        """The cluster of a run.

        Args:
            key: the key of the run, whose exchanges do not count.
            requested: see `described`.
        """
        software = self.calibration.costs(_place(result), _strategy(result), key)
        inflation = [float(f"{each:.{DIGITS}g}") for each in self.work.inflation(key)]
        changes = {"software": software, "cpu_inflation": inflation}
        return described(result, self.software, requested).model_copy(update=changes)

    def cluster_as_on(
        self, runtime: str, result: RunResult, without: str = "", requested: bool = True
    ) -> Cluster:
        """The cluster of a run of virtual nodes, where exchanges cost what they cost on a runtime.

        Args:
            without: the key of a run whose exchanges do not count.
            requested: see `described`.
        """
        place = runtime, result.run.transport
        software = self.calibration.costs(place, _strategy(result), without)
        own = cluster_of_run(result.run, 1.0, self.software.get(place, UNKNOWN), requested)
        return own.model_copy(update={"software": software})


def cluster_times(
    paths: SweepPaths,
    results: Sequence[tuple[str, RunResult]],
    of_virtual: Callable[[RunResult], Cluster | None] | None = None,
) -> dict[str, ClusterTime | NoClusterTime]:
    """The times of the ok runs on their clusters, by key.

    Times that are stored beside the results are read; others are replayed, and then stored. Raises OSError.

    Args:
        of_virtual: the cluster of a run of virtual nodes, if runs of real nodes calibrate it.
    """
    costs = Costs.of([(paths.run(key).directory, result) for key, result in results])
    found: dict[str, ClusterTime | NoClusterTime] = {}
    for key, result in results:
        if result.status == "ok" and result.run.strategy.trains:
            virtual = of_virtual if result.runtime_info.simulates_time else None
            cluster = (virtual and virtual(result)) or costs.cluster(result, key)
            found[key] = _cluster_time(paths.run(key), result, cluster)
    return found


def work_of_step(result: RunResult) -> str:
    """What the ranks of a run compute in a step, as text: equal if it is the same.

    The number of ranks matters only where it changes what each of them computes.
    """
    run = result.run
    known = run.canonical()
    fields = {name: known[name] for name in STEP_FIELDS if name in known}
    whole = run.strategy.replicas(run.world_size) == run.world_size and not run.strategy.shards_state
    ranks = run.processes_per_node if whole else (run.nodes, run.processes_per_node)
    return json.dumps([result.runtime, ranks, run.batch_per_replica, run.trace, fields], sort_keys=True)


def whole_batches(result: RunResult) -> list[int | None]:
    """Whole batches of each rank in an epoch, the fewest of all epochs; None for ranks without samples."""
    found: list[int | None] = [None] * result.run.world_size
    for part in result.certificate.parts if result.certificate else ():
        batches, known = part.samples // result.run.batch_per_replica, found[part.rank]
        found[part.rank] = batches if known is None else min(batches, known)
    return found


def fits_cores(result: RunResult) -> bool:
    """Whether several ranks of a run could have a core each, on one machine and without a quota.

    Nodes with a quota work in bursts, so their wall time is not that of slower nodes.
    """
    run, runtime = result.run, result.runtime_info
    several = run.world_size > 1 and result.times_compare and runtime.one_clock
    return several and not runtime.simulates_time and may_have_cores(run, runtime, result.cores)


def has_cores(result: RunResult) -> bool:
    """Whether each of several ranks had a core, so that wall time is what cluster time should be."""
    return fits_cores(result) and result.without_core <= MAX_CONTENTION


def _cluster_time(paths: RunPaths, result: RunResult, cluster: Cluster) -> ClusterTime | NoClusterTime:
    with suppress(UnusableFile):  # it is computed again
        stored = read_cluster_time(paths)
        if (
            stored
            and stored.cluster == cluster
            and stored.run == result.key
            and not _misses(stored, result)
        ):
            return stored
    time = replay_run(paths.directory, result.run, cluster, result.runtime_info.simulates_time)
    if isinstance(time, ClusterTime):
        if reason := _misses(time, result):
            return NoClusterTime(reason)
        write_cluster_time(paths, time)
    return time


def _misses(time: ClusterTime, result: RunResult) -> str:
    """What of the result a cluster time does not have; empty if it has all."""
    epochs, size = result.last_epoch or 0, result.run.world_size
    if len(time.epoch_ends_s) < epochs:
        return f"its traces have {len(time.epoch_ends_s)} epochs, and its result has {epochs}"
    whole = len(time.ranks) == size and all(
        len(rank.wait_s_by_rank or []) == (size if size <= MAX_WAITS_LISTED else 0)
        and rank.work_s.keys() == {*WORK_PHASES}
        for rank in time.ranks
    )
    return "" if whole else f"its times are not those of {size} ranks"


def _has_shaped_links(result: RunResult) -> bool:
    return result.run.has_links and result.runtime_info.shapes_links


def _strategy(result: RunResult) -> str:
    return result.run.name_of("strategy")


def _place(result: RunResult) -> Place:
    return result.runtime, result.run.transport

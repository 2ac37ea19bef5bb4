"""The cluster that the runs of a sweep stand for, and their times on it.

Nodes are those of a run's spec, with a core for each rank or with its quota. Links are those that the run
requests; otherwise wires that cost nothing. Beside them a message costs what the transport's own software
costs on this machine: the probe before each run measures it, and the fastest result of the sweep counts,
because other load only slows a probe down. What an exchange costs beyond its messages is measured in those
runs of the sweep whose ranks had a core each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from math import inf

from orchestrator.replay.calibration import Calibration, Place
from orchestrator.replay.cluster import Cluster, DirectedLink, Link
from orchestrator.replay.run import (
    ClusterTime,
    NoClusterTime,
    cluster_of,
    read_cluster_time,
    read_traces,
    replay_run,
    write_cluster_time,
)
from orchestrator.results.limits import rank_quota, shares_cores
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, UnusableFile
from trainer.spec.link import Path

# Share of its time that a rank had work but no core: with more, it did not have a core to itself. Beside
# other load the share is small where ranks wait for each other, but the load makes their exchanges slower.
MAX_CONTENTION = 0.02


@dataclass(frozen=True)
class Software:
    """What a transport's software costs: seconds of a small message, and bytes per second of large ones."""

    message_s: float
    bytes_per_s: float


UNKNOWN = Software(message_s=50e-6, bytes_per_s=1e9)  # where no run has a probe


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
        requested: with the links that the run requests; otherwise with those of this machine.
    """
    run, own = result.run, software.get(_place(result), UNKNOWN)
    quota = rank_quota(run, result.runtime_info)
    changes: dict[str, object] = {
        "overhead_s": own.message_s / 2,
        "node_speed": [quota * speed for speed in run.node_speeds],
    }
    link = Link(latency_s=0.0, bytes_per_s=own.bytes_per_s)
    if requested and run.link is not None and run.has_links:
        if run.link.differ:
            changes["links"] = [
                DirectedLink(
                    source=source, target=to, **_requested(run.link.path(source, to), link).model_dump()
                )
                for source, to in permutations(range(run.nodes), 2)
            ]
        else:
            link = _requested(run.link.path(0, 1), link)
    return cluster_of(run, link).model_copy(update=changes)


def _requested(path: Path, own: Link) -> Link:
    """A requested link. Messages are not faster than without it."""
    bandwidth = inf if path.bandwidth_mbit is None else path.bandwidth_mbit * 1e6 / 8
    return Link(latency_s=path.latency_ms / 1000, bytes_per_s=min(own.bytes_per_s, bandwidth))


@dataclass(frozen=True)
class Costs:
    """What communication costs on this machine, as the runs of a sweep show it."""

    software: Mapping[Place, Software]
    calibration: Calibration

    @classmethod
    def of(cls, paths: SweepPaths, results: Sequence[tuple[str, RunResult]]) -> Costs:
        """From probes, and from the traces of ok runs with a core for each rank."""
        software, calibration = software_of(result for _, result in results), Calibration()
        for key, result in results:
            if result.status != "ok" or not fits_cores(result) or _has_shaped_links(result):
                continue
            loaded = not has_cores(result)
            traces = read_traces(paths.run(key).directory, result.run)
            if not isinstance(traces, NoClusterTime):
                own = described(result, software, requested=False)
                calibration.add(key, _strategy(result), _place(result), traces, own, loaded)
        return cls(software, calibration)

    def cluster(self, result: RunResult, without: str, requested: bool = True) -> Cluster:
        """The cluster of a run.

        Args:
            without: the key of a run whose exchanges do not count.
            requested: as in `described`.
        """
        costs = self.calibration.costs(_place(result), _strategy(result), without)
        return described(result, self.software, requested).model_copy(update={"software": costs})


def cluster_times(
    paths: SweepPaths, results: Sequence[tuple[str, RunResult]]
) -> dict[str, ClusterTime | NoClusterTime]:
    """The times of the ok runs on their clusters, by key.

    As stored beside the results; otherwise replayed, and then stored. Raises OSError.
    """
    costs = Costs.of(paths, results)
    return {
        key: _cluster_time(paths.run(key), result, costs.cluster(result, without=key))
        for key, result in results
        if result.status == "ok" and result.run.strategy.trains
    }


def fits_cores(result: RunResult) -> bool:
    """Whether several ranks of a run could have a core each, on one machine and without a quota.

    Nodes with a quota work in bursts, so their wall time is not that of slower nodes.
    """
    run, runtime = result.run, result.runtime_info
    return (
        run.world_size > 1
        and result.times_compare
        and runtime.one_clock
        and not shares_cores(run, runtime, result.cores)
        and rank_quota(run, runtime) >= 1
        and not run.slower_nodes
    )


def has_cores(result: RunResult) -> bool:
    """Whether each of several ranks had a core, so that wall time is what cluster time should be."""
    return fits_cores(result) and all(
        rank.seconds.get("cpu_contention", 0.0) <= MAX_CONTENTION * rank.train_s for rank in result.ranks
    )


def _cluster_time(paths: RunPaths, result: RunResult, cluster: Cluster) -> ClusterTime | NoClusterTime:
    with suppress(UnusableFile):  # it is computed again
        stored = read_cluster_time(paths)
        if stored and stored.cluster == cluster and stored.run == result.key:
            return stored
    time = replay_run(paths.directory, result.run, cluster)
    if isinstance(time, ClusterTime):
        write_cluster_time(paths, time)
    return time


def _has_shaped_links(result: RunResult) -> bool:
    return result.run.has_links and result.runtime_info.shapes_links


def _strategy(result: RunResult) -> str:
    return result.run.name_of("strategy")


def _place(result: RunResult) -> Place:
    return result.runtime, result.run.transport

"""Virtual nodes beside real ones: what exchanges cost between these, and how long the same runs took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from orchestrator.replay.described import Costs, has_cores
from orchestrator.replay.run import ClusterTime, replay_run
from orchestrator.results.limits import rank_quota
from orchestrator.results.real_nodes import RealRuns
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from trainer.time_model.cluster import Cluster


@dataclass(frozen=True)
class RealTime:
    """A run of several virtual ranks that real nodes have executed, too.

    Attributes:
        seconds: what real nodes took.
        clock: wall, where each rank had a core and its links; else cluster: replayed from their traces.
        predicted_s: what the virtual ones take with the costs that other runs of real nodes show.
    """

    seconds: float
    clock: Literal["wall", "cluster"]
    predicted_s: float


@dataclass(frozen=True)
class Calibrated:
    """What runs of real nodes show of virtual ones.

    Attributes:
        runs: of the real nodes.
        times: of the runs that both have, by key.
    """

    runs: RealRuns
    costs: Costs
    times: Mapping[str, RealTime]

    @classmethod
    def by(cls, runs: RealRuns) -> Self:
        """What these runs show of the costs of exchanges."""
        return cls(runs, Costs.of([(paths.directory, result) for paths, result in runs.runs]), {})

    def showing(self, transport: str) -> int:
        """The number of runs that show what exchanges over a transport cost."""
        return self.costs.calibration.count((self.runs.runtime, transport))

    def cluster(self, result: RunResult, without: str = "", requested: bool = True) -> Cluster | None:
        """The cluster of a run of virtual nodes; None if nothing shows what its transport costs.

        Args:
            without: the key of a run of real nodes that does not count.
            requested: whether it has the links that the run requests.
        """
        if not self.showing(result.run.transport):
            return None
        return self.costs.cluster_as_on(self.runs.runtime, result, without, requested)


def calibrated(paths: SweepPaths, results: Sequence[tuple[str, RunResult]], real: RealRuns) -> Calibrated:
    """What runs of real nodes show of the results in a directory, each with its key."""
    found = Calibrated.by(real)
    times: dict[str, RealTime] = {}
    measured = {of.directory.name: (of, result) for of, result in real.runs}
    for key, result in results:
        if key not in measured or not _compares(result, measured[key][1]):
            continue
        of, truth = measured[key]
        cluster = found.cluster(result, without=key)
        predicted = cluster and replay_run(paths.run(key).directory, result.run, cluster, simulated=True)
        if not isinstance(predicted, ClusterTime):
            continue
        links = truth.run.has_links and not truth.runtime_info.shapes_links
        if has_cores(truth) and not links and truth.train_s:
            times[key] = RealTime(truth.train_s, "wall", predicted.cluster_s)
            continue
        replayed = replay_run(of.directory, truth.run, found.costs.cluster(truth, key))
        if isinstance(replayed, ClusterTime):
            times[key] = RealTime(replayed.cluster_s, "cluster", predicted.cluster_s)
    return replace(found, times=times)


def _compares(virtual: RunResult, real: RunResult) -> bool:
    """Whether a run of virtual nodes should take as long as that of real ones with the same spec."""
    info, epochs = virtual.runtime_info, real.last_epoch
    return (
        virtual.status == "ok"
        and info.simulates_time
        and virtual.run.strategy.trains
        and virtual.run.world_size > 1
        and virtual.environment.get("seconds_per_sample") is None  # a price is no measurement
        and epochs == (virtual.last_epoch if info.trains else virtual.run.epochs)
        and rank_quota(real.run, real.runtime_info) == 1  # virtual nodes have whole cores
    )

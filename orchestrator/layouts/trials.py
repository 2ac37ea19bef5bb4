"""What a layout costs: a few steps on virtual or real nodes, replayed on the cluster that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.single_run import execute
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.measured_cluster import MeasuredCluster, on_link
from orchestrator.replay.described import Costs
from orchestrator.replay.run import NoClusterTime, read_traces, time_of_traces
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link
from trainer.time_model.described import cluster_of_run

STEPS = 1  # of an epoch
EPOCHS = 3  # of which the first one warms up


@dataclass(frozen=True)
class Network:
    """The links of the cluster that is asked about.

    Attributes:
        link: between any two nodes; None: as fast as the software.
        measured: what messages and exchanges cost; None: the default of virtual nodes.
    """

    link: Link | None
    measured: MeasuredCluster | None

    def of(self, cluster: Cluster, transport: str) -> Cluster:
        """A cluster with these links. Raises NoPrediction if the transport was not measured."""
        if self.measured is not None:
            cluster = self.measured.costs_on(cluster, transport)
        return on_link(cluster, self.link, cluster.link.bytes_per_s)


@dataclass(frozen=True)
class Trial:
    """A layout that was tried.

    Attributes:
        run: its spec.
        step_s: seconds of a step on the cluster that is asked about: the shortest mean of an epoch but the
            first.
        communication: the share of the time in which ranks communicate or wait, 0 … 1.
        step_bytes: sent by a rank in a step, the mean over ranks.
        held_bytes: weights, gradient, optimizer state and stored activations of the rank that holds most.
    """

    run: RunSpec
    step_s: float
    communication: float
    step_bytes: float
    held_bytes: int

    @property
    def communication_s(self) -> float:
        """Seconds of a step in which ranks communicate or wait."""
        return self.communication * self.step_s

    @property
    def work_s(self) -> float:
        """The other seconds of a step."""
        return self.step_s - self.communication_s


@dataclass(frozen=True)
class Failed:
    """A layout that could not be tried, and why, as a clause."""

    run: RunSpec
    reason: str


class Trials:
    """Tries layouts on a runtime."""

    def __init__(
        self, clusters: Clusters, runtime: str, directory: Path, data_dir: Path, network: Network
    ) -> None:
        """runtime: the name of the runtime of `clusters`. directory: of the files of its runs."""
        self._clusters, self._runtime, self._directory = clusters, runtime, directory
        self._data_dir, self._network = data_dir, network

    def of(self, run: RunSpec) -> Trial | Failed:
        """Train a few steps of a layout."""
        if reason := self._clusters.runtime.unsupported_reason(run):
            return Failed(run, reason)
        result, directory = execute(run, self._clusters, self._runtime, self._directory, self._data_dir)
        if result.status != "ok":
            return Failed(run, str(result.cause))
        simulated = result.runtime_info.simulates_time
        traces = read_traces(directory, run, simulated)
        if isinstance(traces, NoClusterTime):
            return Failed(run, traces.reason)
        # Real nodes may have shared cores, which made their work take longer.
        own = cluster_of_run(run) if simulated else Costs.of([(directory, result)]).cluster(result, run.key)
        try:
            time = time_of_traces(traces, run, self._network.of(own, run.transport))
        except NoPrediction as error:
            return Failed(run, str(error))
        if isinstance(time, NoClusterTime):
            return Failed(run, time.reason)
        return Trial(
            run,
            step_s(time.epoch_ends_s),
            1 - time.mean("work") / time.cluster_s if time.cluster_s else 0.0,
            (result.bytes_sent_per_rank or 0.0) / (STEPS * EPOCHS),
            result.held_bytes or 0,
        )


def step_s(epoch_ends_s: Sequence[float]) -> float:
    """Seconds of a step: the shortest mean of an epoch but the first."""
    return min(end - start for start, end in pairwise(epoch_ends_s)) / STEPS

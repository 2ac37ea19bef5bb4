"""Times of a configuration on any nodes, by virtual nodes: the strategy's own code at measured costs.

Where the strategy permits, the computation is sampled: ranks play their exchanges and pay for their steps
what these cost in the measured runs. Otherwise all virtual nodes train, and pay what their work takes. A
simulation leaves traces, and their replay gives the time on each cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.single_run import execute
from orchestrator.prediction.errors import NoPrediction
from orchestrator.prediction.evidence import Configuration
from orchestrator.replay.run import NoClusterTime, read_traces, time_of_traces
from orchestrator.results.records import RunResult
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from trainer.core.trace import Trace
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster
from trainer.virtual.options import VirtualOptions

RUNTIME = "virtual"
LATENCY_MS = 0.05  # in which messages of an asynchronous strategy arrive while it is simulated
TIMEOUT_S = 3600.0  # of a simulation
NOT_SIMULATED = {"target_accuracy": None, "patience": 1, "save_weights": False, "checkpoint_epochs": None}


@dataclass(frozen=True)
class Time:
    """A simulated time.

    Attributes:
        seconds: of training.
        communication: the share of it in which ranks communicate or wait, 0 … 1, the mean over ranks.
    """

    seconds: float
    communication: float


@dataclass(frozen=True)
class Played:
    """What a simulation left: its result, and the traces of its ranks.

    first_s: how many more CPU seconds the first step takes than the traces have; 0 if nodes trained.
    """

    result: RunResult
    traces: list[Trace]
    first_s: float


class Simulations:
    """Simulates configurations, each once for each number of nodes and epochs."""

    def __init__(self, clusters: Clusters, directory: Path, data_dir: Path) -> None:
        """
        Args:
            clusters: of virtual nodes, whose options it sets.
            directory: of its files.
        """
        self._clusters, self._directory, self._data_dir = clusters, directory, data_dir
        self._played: dict[tuple[int, int, int], Played | NoPrediction] = {}

    def time(self, configuration: Configuration, epochs: int, cluster: Cluster) -> Time:
        """The time on a cluster. Raises NoPrediction."""
        played = self.played(configuration, len(cluster.node_speed), epochs)
        time = time_of_traces(played.traces, played.result.run, cluster)
        if isinstance(time, NoClusterTime):
            raise NoPrediction(time.reason)
        # All ranks take their first step at once.
        first_s = played.first_s / min(cluster.node_speed)
        seconds = time.cluster_s + first_s
        return Time(seconds, 1 - (time.mean("work") + first_s) / seconds if seconds else 0.0)

    def played(self, configuration: Configuration, nodes: int, epochs: int) -> Played:
        """The simulation of a configuration on so many nodes. Raises NoPrediction."""
        key = id(configuration), nodes, epochs
        if key not in self._played:
            try:
                self._played[key] = self._play(configuration, nodes, epochs)
            except NoPrediction as error:
                self._played[key] = error
        found = self._played[key]
        if isinstance(found, NoPrediction):
            raise found
        return found

    def _play(self, configuration: Configuration, nodes: int, epochs: int) -> Played:
        run = simulated_run(configuration.run, nodes, epochs)
        sampled = VirtualOptions(
            compute="sampled",
            seconds_per_step=configuration.per_step_s,
            seconds_per_sample=configuration.per_sample_s,
            seconds_per_update=configuration.server_s,
        )
        runtime = self._clusters.runtime
        for options in (sampled, VirtualOptions()):
            runtime.configure(options)
            if not (reason := runtime.unsupported_reason(run)):
                break
        else:
            raise NoPrediction(str(reason))
        result, directory = self._execute(run)
        if result.status != "ok":
            raise NoPrediction(f"its simulation on {nodes} nodes failed: {result.cause}")
        traces = read_traces(directory, run, simulated=True)
        if isinstance(traces, NoClusterTime):
            raise NoPrediction(traces.reason)
        return Played(result, traces, configuration.first_s if options is sampled else 0.0)

    def _execute(self, run: RunSpec) -> tuple[RunResult, Path]:
        """The result of a run, and its directory: runs with other options may have the same keys."""
        directory = self._directory / str(len(self._played))
        return execute(run, self._clusters, RUNTIME, directory, self._data_dir)


@contextmanager
def simulations(data_dir: Path) -> Iterator[Simulations]:
    """Simulations that leave no file and no process."""
    with tempfile.TemporaryDirectory() as directory, Clusters(VirtualRuntime()) as clusters:
        yield Simulations(clusters, Path(directory), data_dir)


def simulated_run(run: RunSpec, nodes: int, epochs: int) -> RunSpec:
    """A run as virtual nodes play it. Raises NoPrediction if it cannot have so many nodes."""
    fields = run.model_dump(mode="json", exclude_defaults=True) | NOT_SIMULATED
    fields |= {"nodes": nodes, "epochs": epochs, "timeout_s": TIMEOUT_S, "threads": 1, "seed": 0}
    fields |= {"trace": "steps", "node_speed": None, "lr_schedule": "constant"}
    fields["link"] = None if run.strategy.deterministic else {"latency_ms": LATENCY_MS}
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise NoPrediction(f"it cannot have {nodes} nodes: {error.errors()[0]['msg']}") from error

"""What finished runs show of each configuration: how long it took on some nodes, and what a step costs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from orchestrator.replay.described import Costs, described, has_cores, whole_batches
from orchestrator.replay.run import NoClusterTime, read_traces, time_of_traces
from orchestrator.replay.work import first_step_cpu_s, partial_step_cpu_s
from orchestrator.results import store
from orchestrator.results.limits import rank_quota, shares_cores
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths
from trainer.core.registry import ImportedComponent
from trainer.core.trace import Trace
from trainer.spec.run_spec import NODE_LIMITS, RunSpec
from trainer.time_model.cluster import Cluster

# Fields of a spec in which the runs of one configuration may differ.
FREE = {"nodes", "seed", "link", "node_speed", "save_weights", "timeout_s", "trace", *NODE_LIMITS}
# The share of a step that is the same for any batch, where no run has batches of two sizes: the middle.
UNKNOWN_SHARE = 0.5
Clock = Literal["wall", "cluster"]
WALL, CLUSTER = get_args(Clock)


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run.

    Attributes:
        seconds: of training.
        clock: wall, where each rank had a core or its quota; else cluster: replayed from its traces.
        cluster: that of the run, with what exchanges cost in other runs.
        own_bytes_per_s: what messages reach where no link limits them.
        steps_s: CPU seconds of a step with a whole batch after the first, of each rank that trains.
        first_s: how many more CPU seconds the first step takes, the mean over these ranks.
        server_s: CPU seconds of a step of a server, the mean over servers; 0 without one.
        partial: of ranks with a smaller batch at the end of an epoch: its samples and its CPU seconds, each
            as a share of those of a whole batch.
    """

    key: str
    result: RunResult
    seconds: float
    clock: Clock
    cluster: Cluster
    own_bytes_per_s: float
    steps_s: Sequence[float]
    first_s: float
    server_s: float
    partial: Sequence[tuple[float, float]]

    @property
    def run(self) -> RunSpec:
        return self.result.run

    @property
    def epochs(self) -> int:
        """The epochs that it trained for: fewer than those of its spec if it reached its target."""
        return self.result.last_epoch or self.run.epochs


@dataclass(frozen=True)
class Configuration:
    """Runs that differ in nodes, links and seeds alone.

    Attributes:
        runs: at least one.
        per_step_s, per_sample_s: CPU seconds of a step: per_step_s + samples · per_sample_s.
        first_s: how many more CPU seconds the first step takes.
        server_s: those of a server's step.
    """

    runs: Sequence[MeasuredRun]
    per_step_s: float
    per_sample_s: float
    first_s: float
    server_s: float

    @property
    def run(self) -> RunSpec:
        """The spec of its first run."""
        return self.runs[0].run

    @property
    def has_quotas(self) -> bool:
        """Whether the nodes of a run had less than a core each."""
        return any(max(each.cluster.node_speed) < 1 for each in self.runs)

    @property
    def most_nodes(self) -> int:
        return max(each.run.nodes for each in self.runs)


@dataclass(frozen=True)
class Unusable:
    """A run that shows nothing, and why, as a clause."""

    key: str
    reason: str


@dataclass(frozen=True)
class Evidence:
    """What the runs of a results directory show.

    Attributes:
        configurations: in the order of their first runs.
        costs: of messages and exchanges.
    """

    configurations: Sequence[Configuration]
    unusable: Sequence[Unusable]
    costs: Costs


def finished_runs(paths: SweepPaths) -> tuple[list[tuple[RunPaths, RunResult]], list[Unusable]]:
    """The runs of a results directory that are ok, and those whose results cannot be read.

    Raises InputError if it has no sweep.
    """
    results, unusable = store.finished_runs(paths)
    return results, [Unusable(key, str(error)) for key, error in unusable.items()]


def evidence_of(
    results: Sequence[tuple[RunPaths, RunResult]], unusable: Sequence[Unusable] = ()
) -> Evidence:
    """What runs show that are ok, each with its paths. unusable: further runs."""
    trained = [each for each in results if each[1].run.strategy.trains]
    costs = Costs.of([(paths.directory, result) for paths, result in trained])
    found = [_measured(paths, result, costs) for paths, result in trained]
    measured = [each for each in found if isinstance(each, MeasuredRun)]
    unfit = [each for each in found if isinstance(each, Unusable)]
    return Evidence([*_configurations(measured)], [*unusable, *unfit], costs)


def _measured(paths: RunPaths, result: RunResult, costs: Costs) -> MeasuredRun | Unusable:
    run, key = result.run, paths.directory.name
    if reason := _unfit(result):
        return Unusable(key, reason)
    traces = read_traces(paths.directory, run)
    if isinstance(traces, NoClusterTime):
        return Unusable(key, traces.reason)
    cluster = costs.cluster(result, key)
    if has_cores(result) or not result.runtime_info.shares_cores or _has_quotas(result):
        seconds, clock = result.train_s or 0.0, WALL
    else:
        time = time_of_traces(traces, run, cluster)
        if isinstance(time, NoClusterTime):
            return Unusable(key, time.reason)
        seconds, clock = time.cluster_s, CLUSTER
    own_bytes_per_s = described(result, costs.software, requested=False).link.bytes_per_s
    inflation = cluster.cpu_inflation or [1.0] * run.world_size
    alone = cluster.model_copy(update={"cpu_inflation": []})
    return MeasuredRun(
        key, result, seconds, clock, alone, own_bytes_per_s, *_steps(result, traces, inflation)
    )


def _steps(
    result: RunResult, traces: Sequence[Trace], inflation: Sequence[float]
) -> tuple[list[float], float, float, list[tuple[float, float]]]:
    """What steps cost: the last four attributes of a MeasuredRun. inflation: see `Work`."""
    run, servers, batches = result.run, result.run.strategy.servers, whole_batches(result)
    steps = [first_step_cpu_s(trace, whole) for trace, whole in zip(traces, batches, strict=True)]
    whole_s = [usual / slower for (usual, _), slower in zip(steps, inflation, strict=True)]
    pairs = zip(steps[servers:], inflation[servers:], strict=True)
    firsts_s = [first / slower for (usual, first), slower in pairs if usual]
    partial, parts = [], result.certificate.parts if result.certificate else ()
    for trace, whole, usual_s, slower in zip(traces, batches, whole_s, inflation, strict=True):
        left = {part.samples % run.batch_per_replica for part in parts if part.rank == trace.header.rank}
        partial_s = partial_step_cpu_s(trace, whole) if whole and usual_s and len(left) == 1 else None
        if partial_s and (samples := left.pop()):
            partial.append((samples / run.batch_per_replica, partial_s / slower / usual_s))
    usual = [each for each in whole_s[servers:] if each]
    return usual, fmean(firsts_s or [0.0]), fmean(whole_s[:servers] or [0.0]), partial


def _has_quotas(result: RunResult) -> bool:
    """Whether each rank had a quota, and the machine has as many cores."""
    run, runtime = result.run, result.runtime_info
    return rank_quota(run, runtime) < 1 and not shares_cores(run, runtime, result.cores)


def _unfit(result: RunResult) -> str:
    """Why a run says nothing about others, as a clause; empty if it does."""
    run = result.run
    if result.runtime_info.simulates_time:
        return "its nodes are virtual"
    if any(isinstance(getattr(run, name), ImportedComponent) for name in type(run).model_fields):
        return "it has a component of your own, which a prediction would execute"
    if run.faults or result.restarted:
        return "it had faults or restarts"
    return "" if result.times_compare else "its ranks are threads of one interpreter"


def _configurations(measured: Iterable[MeasuredRun]) -> Iterator[Configuration]:
    groups: defaultdict[str, list[MeasuredRun]] = defaultdict(list)
    works: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in measured:
        groups[same_but(each.run, FREE)].append(each)
        works[_work(each.run)] += each.partial
    for runs in groups.values():
        steps = [fmean(each.steps_s) for each in runs if each.steps_s]
        if not steps:
            continue
        share, step_s = share_of_step(works[_work(runs[0].run)]), fmean(steps)
        batch = runs[0].run.batch_per_replica
        first_s = fmean(each.first_s for each in runs if each.steps_s)
        server_s = fmean(each.server_s for each in runs)
        yield Configuration(runs, share * step_s, (1 - share) * step_s / batch, first_s, server_s)


def share_of_step(partial: Sequence[tuple[float, float]]) -> float:
    """The share of a step's cost that is the same for any batch, 0 … 1, by least squares.

    With share s, a batch of a share r of the samples takes the share s + (1 − s)·r of the time.

    Args:
        partial: shares of samples and of time.
    """
    rests = sum((1 - samples) ** 2 for samples, _ in partial)
    if not rests:
        return UNKNOWN_SHARE
    found = sum((seconds - samples) * (1 - samples) for samples, seconds in partial) / rests
    return min(max(found, 0.0), 1.0)


def same_but(run: RunSpec, without: set[str]) -> str:
    """A text that is equal for runs that differ in these fields alone."""
    known = run.canonical()
    return json.dumps({name: value for name, value in known.items() if name not in without}, sort_keys=True)


def _work(run: RunSpec) -> str:
    """What a batch computes, as text."""
    return same_but(run, FREE | {"strategy", "partitioner", "transport", "lr", "epochs", "target_accuracy"})

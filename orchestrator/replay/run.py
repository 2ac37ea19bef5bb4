"""Cluster time of a run: reads its traces, checks that they belong to it, and replays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, ValidationError

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths, UnusableFile, read_of_run, write_atomic
from trainer.core.record import Amount, Count, Record, Share, Text, first_error
from trainer.core.result import listed_waits
from trainer.core.trace import WORK_PHASES, Trace, TraceError, read_trace, trace_path
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason
from trainer.time_model.cluster import Cluster
from trainer.time_model.errors import ClusterError, ReplayError
from trainer.time_model.outcome import Replay
from trainer.time_model.simulate import simulate

VERSION: Literal[5] = 5  # changes when the same traces would give another record


class _Strict(Record):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RankTime(_Strict):
    """One rank's seconds of cluster time. All but `overlapped_s` add up to the run's cluster time.

    Attributes:
        work_s: work by phase: `data`, `compute`, `other`.
        communicate_s: exposed communication, beside which the rank did nothing.
        wait_s: waiting.
        wait_s_by_rank: waiting, by the rank whose late entry or work ended it; None for many ranks.
        idle_s: the time after its last record, until the slowest rank has ended.
        overlapped_s: communication beside work.
    """

    work_s: dict[Text, Amount]
    communicate_s: Amount
    wait_s: Amount
    wait_s_by_rank: list[Amount] | None
    idle_s: Amount
    overlapped_s: Amount


class ClusterTime(_Strict):
    """What a cluster takes for a run, replayed from its traces.

    Attributes:
        version: the version of the model and of this record.
        run: key of the run.
        cluster: the description for which it was computed.
        cluster_s: time of the slowest rank, from the moment all ranks are ready to its last record.
        epoch_ends_s: when the last rank has ended each epoch, without evaluation.
        bubble: share of the ranks' time that is waiting or idle, 0 … 1; None for strategies without stages.
        records: how many records were replayed.
    """

    version: Literal[5] = VERSION
    run: Text
    cluster: Cluster
    cluster_s: Amount
    epoch_ends_s: list[Amount]
    ranks: list[RankTime]
    bubble: Share | None
    records: Count

    def mean(self, phase: Literal["work", "communicate", "wait", "idle", "overlapped"]) -> float:
        """Mean seconds of a phase over the ranks."""
        seconds = {
            "work": (sum(rank.work_s.values()) for rank in self.ranks),
            "communicate": (rank.communicate_s for rank in self.ranks),
            "wait": (rank.wait_s for rank in self.ranks),
            "idle": (rank.idle_s for rank in self.ranks),
            "overlapped": (rank.overlapped_s for rank in self.ranks),
        }
        return sum(seconds[phase]) / len(self.ranks)


@dataclass(frozen=True)
class NoClusterTime:
    """Why a run has no cluster time, as a clause."""

    reason: str


def replay_run(
    directory: Path, run: RunSpec, cluster: Cluster, simulated: bool = False
) -> ClusterTime | NoClusterTime:
    """Replay the traces in a run's directory on a cluster. simulated: see `read_traces`.

    Raises InputError if the cluster does not have the run's nodes and ranks, or an algorithm is unknown.
    """
    traces = read_traces(directory, run, simulated)
    return traces if isinstance(traces, NoClusterTime) else time_of_traces(traces, run, cluster)


def time_of_traces(traces: Sequence[Trace], run: RunSpec, cluster: Cluster) -> ClusterTime | NoClusterTime:
    """Like `replay_run`, of traces that have been read. Raises InputError."""
    replay = replay_traces(traces, run, cluster)
    return replay if isinstance(replay, NoClusterTime) else cluster_time(replay, run, cluster)


def read_traces(directory: Path, run: RunSpec, simulated: bool = False) -> list[Trace] | NoClusterTime:
    """The traces of all ranks of the run, or why they cannot be replayed.

    simulated: whether its times are simulated, so that its time limit does not bound them.
    """
    if reason := untraced_reason(run):
        return NoClusterTime(reason)
    paths = [trace_path(directory, rank) for rank in range(run.world_size)]
    if not any(path.exists() for path in paths):
        return NoClusterTime("the run recorded no traces")
    traces, key = [], run.key
    limits = OutputLimits.of(run, simulated=simulated).trace
    for rank, path in enumerate(paths):
        try:
            trace = read_trace(path, limits)
        except TraceError as error:
            return NoClusterTime(str(error))
        if reason := _foreign(trace, run, key, rank):
            return NoClusterTime(f"{path}: {reason}")
        traces.append(trace)
    return traces


def replay_traces(
    traces: Sequence[Trace], run: RunSpec, cluster: Cluster, intervals: bool = False
) -> Replay | NoClusterTime:
    """Like `simulate`, with the parameters of the run. Raises InputError."""
    nodes, ranks = len(cluster.node_speed), cluster.processes_per_node
    if (nodes, ranks) != (run.nodes, run.processes_per_node):
        raise InputError(
            f"the cluster has {nodes} nodes with {ranks} ranks each; {run.key} needs {run.nodes} with "
            f"{run.processes_per_node}"
        )
    try:
        return simulate(traces, cluster, _max_staleness(run), intervals)
    except ClusterError as error:
        raise InputError(str(error)) from error
    except ReplayError as error:
        return NoClusterTime(f"its traces do not fit together: {error}")


def cluster_time(replay: Replay, run: RunSpec, cluster: Cluster) -> ClusterTime | NoClusterTime:
    """The record of a replay, unless it takes too long: a cluster may have any speed."""
    try:
        return _cluster_time(replay, run, cluster)
    except ValidationError as error:
        return NoClusterTime(f"its time on this cluster is out of range: {first_error(error)}")


def _cluster_time(replay: Replay, run: RunSpec, cluster: Cluster) -> ClusterTime:
    end_s = replay.cluster_s
    ranks = [
        RankTime(
            work_s=dict(zip(WORK_PHASES, rank.work_s, strict=True)),
            communicate_s=max(rank.communicate_s, 0.0),
            wait_s=sum(rank.wait_s.values()),
            wait_s_by_rank=listed_waits(rank.wait_s, len(replay.ranks)),
            idle_s=end_s - rank.end_s,
            overlapped_s=rank.overlapped_s,
        )
        for rank in replay.ranks
    ]
    epochs = sorted({epoch for rank in replay.ranks for epoch in rank.epoch_ends_s})
    ends = [
        max(rank.epoch_ends_s[epoch] for rank in replay.ranks if epoch in rank.epoch_ends_s)
        for epoch in epochs
    ]
    bubble = None
    if run.strategy.bubble(run.world_size) is not None and end_s > 0:
        bubble = min(1.0, sum(rank.wait_s + rank.idle_s for rank in ranks) / (len(ranks) * end_s))
    return ClusterTime(
        run=run.key,
        cluster=cluster,
        cluster_s=end_s,
        epoch_ends_s=ends,
        ranks=ranks,
        bubble=bubble,
        records=replay.records,
    )


def write_cluster_time(paths: RunPaths, time: ClusterTime) -> None:
    """Store the record beside the run's result. Raises OSError."""
    write_atomic(paths.cluster_time, time.model_dump_json(indent=1) + "\n")


def read_cluster_time(paths: RunPaths) -> ClusterTime | None:
    """The stored record; None if there is none, or it is of another version. Raises UnusableFile."""
    path = paths.cluster_time
    try:
        content = read_of_run(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableFile(path, f"cannot be read ({error.strerror})") from error
    try:
        return ClusterTime.model_validate_json(content)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("version",):
            return None
        raise UnusableFile(path, f"is damaged: {first_error(error)}") from error


def _foreign(trace: Trace, run: RunSpec, key: str, rank: int) -> str:
    """Why a trace is not that of a rank of the run with this key; empty if it is."""
    header = trace.header
    for what, found, expected in (
        ("run", header.run, key),
        ("rank", header.rank, rank),
        ("number of ranks", header.size, run.world_size),
        ("transport", header.transport, run.transport),
    ):
        if found != expected:
            return f"has {what} {found!s:.60}, not {expected}"
    return "" if header.complete else f"ends before the end of training, after {header.count:,} records"


def _max_staleness(run: RunSpec) -> int | None:
    """The bound of a strategy whose workers do not wait for each other; None: it has none."""
    bound: int | None = getattr(run.strategy, "max_staleness", None)
    return bound

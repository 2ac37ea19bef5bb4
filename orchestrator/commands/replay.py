"""The command `replay`: cluster time of the finished runs of a results directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from rich.table import Table
from rich.text import Text

from orchestrator.errors import InputError, output_error
from orchestrator.layouts.hardware import link_of
from orchestrator.replay.described import Costs
from orchestrator.replay.real_nodes import Calibrated
from orchestrator.replay.run import ClusterTime, NoClusterTime, cluster_time, read_traces, replay_traces
from orchestrator.replay.timeline_files import write_timeline
from orchestrator.report import formats
from orchestrator.results.real_nodes import read_real_runs
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, finished_runs
from orchestrator.terminal import plain_table
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link

MAX_SPEED = 1e6


@dataclass(frozen=True)
class Options:
    """What the command line gives of a cluster. speeds: the nodes'; empty: each run's."""

    link: Link
    speeds: tuple[float, ...] = ()

    def cluster(self, own: Cluster, run: RunSpec) -> Cluster:
        """The cluster for a run. Raises InputError if speeds are missing.

        Args:
            own: the cluster of the run in a report, without the links that it requests. Messages are not
                faster than there.
        """
        bandwidth = min(self.link.bytes_per_s, own.link.bytes_per_s)
        link = Link(latency_s=self.link.latency_s, bytes_per_s=bandwidth)
        cluster = own.model_copy(update={"link": link, "links": []})
        if not self.speeds:
            return cluster
        if 1 < len(self.speeds) < run.nodes:
            raise InputError(
                f"--node-speed {','.join(f'{each:g}' for each in self.speeds)}: {len(self.speeds)} speeds, "
                f"and {run.key} has {run.nodes} nodes; give one speed for all nodes, or one for each"
            )
        speeds = run.nodes * self.speeds if len(self.speeds) == 1 else self.speeds[: run.nodes]
        return cluster.model_copy(update={"node_speed": [*speeds]})


@dataclass(frozen=True)
class Row:
    """A finished run. train_s: its wall time."""

    key: str
    train_s: float | None
    time: ClusterTime | NoClusterTime


def options(link: str, speeds: str | None) -> Options:
    """The options, read. Raises InputError."""
    return Options(link_of(link), () if speeds is None else parse_speeds(speeds))


def parse_speeds(text: str) -> tuple[float, ...]:
    """`1,1,0.5` as speeds of nodes. Raises InputError."""
    speeds = []
    for each in text.split(","):
        try:
            speed = float(each)
        except ValueError:
            speed = 0.0
        if not (isfinite(speed) and 0 < speed <= MAX_SPEED):
            raise InputError(
                f"--node-speed {text}: {each.strip() or 'an empty speed'} is no speed; each is a number "
                f"above 0, where 1 is the speed at which the run was recorded"
            )
        speeds.append(speed)
    return tuple(speeds)


def rows(paths: SweepPaths, options: Options, timelines: bool = False) -> Iterator[Row]:
    """Replay the finished runs, in the order of the sweep, after those whose results cannot be used.

    Raises InputError for a directory without results, with unequal numbers of nodes and speeds, or whose
    runs of real nodes cannot be used.
    """
    results, unusable = finished_runs(paths)
    most = max((result.run.nodes for _, result in results), default=0)
    if len(options.speeds) > max(most, 1):
        raise InputError(
            f"--node-speed: {len(options.speeds)} speeds, and no run has more than {most} nodes; "
            "give one speed for all nodes, or one for each"
        )
    yield from (Row(key, None, NoClusterTime(str(error))) for key, error in unusable.items())
    costs = Costs.of([(run.directory, result) for run, result in results])
    real = read_real_runs(paths)
    calibrated = Calibrated.by(real) if real else None
    for run, result in results:
        key = run.directory.name
        own = costs.cluster(result, key, requested=False)
        if calibrated and result.runtime_info.simulates_time:
            own = calibrated.cluster(result, requested=False) or own
        cluster = options.cluster(own, result.run)
        wall_s = None if result.runtime_info.simulates_time else result.train_s
        yield Row(key, wall_s, _replay(run, result, cluster, timelines))


def _replay(
    paths: RunPaths, result: RunResult, cluster: Cluster, timelines: bool
) -> ClusterTime | NoClusterTime:
    run = result.run
    traces = read_traces(paths.directory, run, result.runtime_info.simulates_time)
    if isinstance(traces, NoClusterTime):
        return traces
    replay = replay_traces(traces, run, cluster, intervals=timelines)
    if isinstance(replay, NoClusterTime):
        return replay
    time = cluster_time(replay, run, cluster)
    if timelines and isinstance(time, ClusterTime):
        try:
            written = write_timeline(paths, result, cluster, traces, replay)
        except OSError as error:
            raise output_error(paths.directory, error, "DIRECTORY") from error
        if isinstance(written, NoClusterTime):
            return written
    return time


def conclusions(paths: SweepPaths, found: Sequence[Row]) -> list[str]:
    """What to choose on this cluster, a sentence for each workload, as a report has it of its own.

    Workloads over links of their own are left out, since their links are replaced.
    """
    # Imported here: only this part of the command compares runs.
    from orchestrator.report.model.comparison import read_comparison
    from orchestrator.report.topics import asked_by
    from orchestrator.report.verdict import verdicts

    comparison = read_comparison(paths, {row.key: row.time for row in found})
    claims = asked_by(comparison).decided()
    return [
        verdict.headline.replace(formats.JOIN, " ")
        for verdict in verdicts(comparison, claims)
        if len(verdict.options) > 1 and not verdict.workload.link
    ]


def as_json(found: Sequence[Row]) -> str:
    """All that was computed, as a JSON array with one object per run."""
    return json.dumps(
        [
            {"run": row.key, "train_s": row.train_s, "reason": row.time.reason}
            if isinstance(row.time, NoClusterTime)
            else {"train_s": row.train_s, **row.time.model_dump(mode="json")}
            for row in found
        ],
        indent=1,
    )


def table(found: Sequence[Row]) -> Table:
    """A line for each run with a cluster time. Phases are shares of cluster time, means over the ranks."""
    headings = ("wall\ntime", "cluster\ntime", "\nwork", "exposed\ncomm.", "\nwaiting", "\nbubble")
    shown = plain_table(headings, first="\nrun")
    for row in found:
        if isinstance(time := row.time, ClusterTime):
            waiting = time.mean("wait") + time.mean("idle")
            phases = (time.mean("work"), time.mean("communicate"), waiting)
            shown.add_row(
                Text(row.key),
                formats.seconds(row.train_s),
                formats.seconds(time.cluster_s),
                *(formats.percent(each / time.cluster_s if time.cluster_s else None) for each in phases),
                formats.percent(time.bubble),
            )
    return shown


def has_time(row: Row) -> bool:
    """Whether the run has a cluster time."""
    return isinstance(row.time, ClusterTime)


def reasons(found: Sequence[Row]) -> list[str]:
    """A sentence for each run without a cluster time."""
    return [
        f"{row.key}: no cluster time: {row.time.reason}"
        for row in found
        if isinstance(row.time, NoClusterTime)
    ]

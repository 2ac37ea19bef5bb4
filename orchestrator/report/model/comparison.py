"""Comparison: the results of a sweep, read and grouped. The input of all report pages."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from orchestrator.replay.described import cluster_times
from orchestrator.replay.real_nodes import Calibrated, RealTime, calibrated
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.replay.windows import Windows
from orchestrator.report.model.baselines import rows_of
from orchestrator.report.model.groups import Group, groups_of, in_blocks
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.model.rows import Clock, Row
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.results.predictions import Predictions, read_predictions
from orchestrator.results.real_nodes import read_real_runs
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, SweepRecord, UnusableFile, read_record, read_result
from orchestrator.sweeps.stages import UNFINISHED, Stages

REFERENCE_PARTITIONER = "random_partition"  # others are compared with it, if it was run

MAX_LINE_PARTITIONERS = 3  # partitioners that figures distinguish by line style


@dataclass(frozen=True)
class WorkloadView:
    """The ok groups of one workload."""

    workload: Workload
    groups: list[Group]
    shape: ClusterShape  # at which strategies are compared
    one_of_many: bool  # whether the sweep has other workloads, so that this one must be named
    stages: Stages | None  # how adding seeds until the choice was decided ended; None if all have as many
    tolerance: Tolerance
    real: Calibrated | None  # what runs of real nodes show of virtual ones
    unfinished: bool  # whether the sweep has runs to come

    @property
    def staged(self) -> bool:
        return self.stages is not None

    @property
    def serial(self) -> Group | None:
        return next((group for group in self.groups if group.serial), None)

    @property
    def clock(self) -> Clock:
        """The clock of all times in this view: rows of a workload are compared on one."""
        return self.groups[0].first.clock if self.groups else "wall"

    @property
    def disturbed(self) -> bool:
        """Whether its times are not compared, because the machine was busy."""
        return any(group.first.disturbed for group in self.groups)

    @property
    def times_at(self) -> str:
        """`At 4 nodes`, `In cluster time, at 4 nodes`: the start of a sentence about times."""
        at = f"t {self.shape.label}"
        return f"A{at}" if self.clock == "wall" else f"In cluster time, a{at}"

    def subject(self, group: Group) -> str:
        """`all_reduce over mpi`, `In cluster time, all_reduce over mpi`: the subject of a time."""
        return self.name(group) if self.clock == "wall" else f"In cluster time, {self.name(group)}"

    @property
    def of_ranked(self) -> str:
        """`, with random_partition`: what the ranked candidates share, if others are not ranked."""
        if len(self.ranked_candidates) == len(self.candidates):
            return ""
        return f", with {self.partitioners[0]}"

    @property
    def of_reference(self) -> str:
        """`, with random_partition`: what the reference candidates share, if there are others."""
        if len(self.reference_candidates) == len(self.candidates):
            return ""
        return f", with {self.partitioners[0]}"

    @cached_property
    def candidates(self) -> list[Group]:
        """The groups of this shape without serial; one of those that differ only in split points."""
        shown = one_per_split(self.groups)
        return [group for group in shown if group.shape == self.shape and not group.serial]

    @cached_property
    def partitioners(self) -> list[str]:
        """Labels of the candidates' partitioners, the reference first."""
        labels = dict.fromkeys(
            group.partitioner_label for group in self.candidates if group.partitioner_label
        )
        return sorted(labels, key=lambda label: label != REFERENCE_PARTITIONER)

    @cached_property
    def ranked_candidates(self) -> list[Group]:
        """The candidates that are ranked; with many partitioners, only those of the reference."""
        return self._few_partitioners(self.candidates)

    @cached_property
    def reference_candidates(self) -> list[Group]:
        """The candidates with the reference partitioner or none; strategies are compared on these."""
        return self._with_reference(self.candidates)

    @cached_property
    def line_groups(self) -> list[Group]:
        """The groups to draw as lines; if there are many partitioners, only those of the reference."""
        return self._few_partitioners(one_per_split(self.groups))

    def _few_partitioners(self, groups: list[Group]) -> list[Group]:
        return groups if len(self.partitioners) <= MAX_LINE_PARTITIONERS else self._with_reference(groups)

    def _with_reference(self, groups: list[Group]) -> list[Group]:
        """Those of `groups` with the reference partitioner, or without any."""
        shown = ("", *self.partitioners[:1])
        return [group for group in groups if group.partitioner_label in shown]

    def name(self, group: Group, transport: bool = True, partitioner: bool = True) -> str:
        """`all_reduce over mpi`, with the partitioner if the strategy was run with several.

        transport, partitioner: whether to name it.
        """
        name = group.name if transport else group.strategy_label
        return name + (self.partitioner(group) if partitioner and not group.serial else "")

    def name_on(self, group: Group, transport: bool = True, partitioner: bool = True) -> str:
        """`ddp over gloo on 2 nodes`, `serial`; see `name`."""
        name = self.name(group, transport, partitioner)
        return name if group.serial else f"{name} on {group.shape.label}"

    def partitioner(self, group: Group) -> str:
        """` with random_sampling`; empty if the strategy was not run with several partitioners."""
        labels = {other.partitioner_label for other in self.groups if other.line[:2] == group.line[:2]}
        return f" with {group.partitioner_label}" if len(labels) > 1 else ""


@dataclass(frozen=True)
class Comparison:
    """The runs of a sweep. The mappings are by key.

    windows: what is drawn of the timelines of the slowest runs, or why there is none.
    """

    record: SweepRecord
    rows: tuple[Row, ...]  # the runs with a result, in the order of the sweep file
    pending: tuple[str, ...]  # keys of the others
    unusable: Mapping[str, str]  # why the result of a pending run cannot be used
    clusters: Mapping[str, ClusterTime | NoClusterTime]  # the cluster time of a run, or why it has none
    windows: Mapping[str, Windows | NoClusterTime] = field(default_factory=dict)
    predictions: Predictions | None = None  # those that are stored beside the runs
    predictions_unusable: str = ""  # why stored ones are not shown
    real: Calibrated | None = None  # what runs of real nodes show of virtual ones
    real_unusable: str = ""  # why they cannot be used

    @property
    def tolerance(self) -> Tolerance:
        """Differences that do not matter."""
        stated = self.record.tolerance
        return Tolerance(stated.accuracy_share, stated.time_share)

    @cached_property
    def groups(self) -> list[Group]:
        stages = self.record.stages
        return in_blocks(groups_of(self.rows), stages.dropped if stages else {})

    @cached_property
    def workloads(self) -> list[Workload]:
        """The workloads of the sweep's training runs, in order.

        Runs on one node have no links: they belong to the workload over each link, and are a workload of
        their own only if there is none.
        """
        training = [group for group in self.groups if group.first.trains]
        over_links = {group.workload.without_links for group in training if group.workload.link}
        return list(
            dict.fromkeys(
                group.workload
                for group in training
                if group.shape.nodes > 1 or group.workload not in over_links
            )
        )

    def groups_in(self, workload: Workload) -> list[Group]:
        """The training groups of a workload. Those on one node are in the workload over each link."""
        return [
            group
            for group in self.groups
            if group.first.trains
            and (
                group.workload == workload
                or (group.shape.nodes == 1 and group.workload == workload.without_links)
            )
        ]

    def view(self, workload: Workload) -> WorkloadView:
        """The groups of this workload, for findings and figures."""
        planned = self.groups_in(workload)
        return WorkloadView(
            workload,
            [group for group in planned if group.ok],
            _busiest(planned),
            len(self.workloads) > 1,
            self.record.stages,
            self.tolerance,
            self.real,
            self.unfinished,
        )

    def name_on(self, group: Group) -> str:
        """`ddp over gloo on 2 nodes`, `serial`: a configuration, outside of the view of its workload."""
        return self.view(group.workload).name_on(group)

    def over_links(self) -> dict[Workload, list[WorkloadView]]:
        """The views that differ only in their links, by their workload without links."""
        found: dict[Workload, list[WorkloadView]] = {}
        for workload in self.workloads:
            if not workload.faults:
                found.setdefault(workload.without_links, []).append(self.view(workload))
        return found

    @property
    def unfinished(self) -> bool:
        """Whether the sweep has runs to come, which may be the seeds that configurations lack."""
        stages = self.record.stages
        return bool(self.pending) or (stages is not None and stages.ended == UNFINISHED)

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.ok]


def _busiest(planned: Sequence[Group]) -> ClusterShape:
    """The shape with most groups, the largest of equals; only shapes with an ok group."""
    planned = one_per_split(planned)
    ok = {group.shape for group in planned if group.ok and not group.serial}
    size = Counter(group.shape for group in planned if group.shape in ok and not group.serial)
    return max(size, key=lambda shape: (size[shape], shape.ranks, shape.nodes), default=ClusterShape(1))


def read_comparison(
    paths: SweepPaths, elsewhere: Mapping[str, ClusterTime | NoClusterTime] | None = None
) -> Comparison:
    """Read sweep.json and the results of its runs. Raises InputError if sweep.json is invalid.

    elsewhere: the times of runs on another cluster by key, on which they are compared instead.
    """
    record, results, unusable = read_record(paths), [], {}
    with _all_objects_stay():
        for key in record.keys:
            try:
                result = read_result(paths.run(key).result)
            except UnusableFile as error:
                unusable[key] = f"{key}/{paths.run(key).result.name} {error.reason}"
            else:
                results += [(key, result)] if result else []
        if elsewhere is not None:
            return compare(record, results, unusable, elsewhere, elsewhere=True)
        real, why = _calibrated(paths, results)
        clusters = cluster_times(paths, results, real.cluster if real else None)
        compared = compare(record, results, unusable, clusters, real=real.times if real else {})
        predictions, unused = _predictions(paths, compared)
        compared = replace(compared, predictions=predictions, predictions_unusable=unused)
        return replace(compared, real=real, real_unusable=why)


def _calibrated(
    paths: SweepPaths, results: Sequence[tuple[str, RunResult]]
) -> tuple[Calibrated | None, str]:
    """What runs of real nodes show of virtual ones, or why those that were given show nothing."""
    try:
        runs = read_real_runs(paths)
    except UnusableFile as error:
        return None, f"{paths.real_nodes.name} {error.reason}"
    return (calibrated(paths, results, runs) if runs else None), ""


def _predictions(paths: SweepPaths, comparison: Comparison) -> tuple[Predictions | None, str]:
    """The predictions of a directory, or why those that it has are not shown."""
    try:
        predictions = read_predictions(paths)
    except UnusableFile as error:
        return None, f"{paths.predictions.name} {error.reason}"
    ok = [row for row in comparison.rows if row.ok]
    if predictions and predictions.outdated({row.key: row.wall_result.started_at for row in ok}):
        return None, "they were made from other runs"
    if predictions and any(row.disturbed for row in comparison.rows):
        return None, "the machine was busy during their runs, which must be repeated first"
    return predictions, ""


@contextmanager
def _all_objects_stay() -> Iterator[None]:
    """Without garbage collection of what is read, neither now nor later.

    A large sweep has a million objects and no garbage among them, and looking for it takes longer than
    reading them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def compare(
    record: SweepRecord,
    results: Sequence[tuple[str, RunResult]],
    unusable: Mapping[str, str] | None = None,
    clusters: Mapping[str, ClusterTime | NoClusterTime] | None = None,
    elsewhere: bool = False,
    real: Mapping[str, RealTime] | None = None,
) -> Comparison:
    """Group results.

    Args:
        results: the results with their keys, in the order of the sweep.
        unusable: why other results cannot be used, by key.
        clusters: the cluster times of runs by key, or why they have none.
        elsewhere: whether these are times on another cluster than the one that wall times are of.
        real: what the runs of virtual nodes took on real ones, by key.
    """
    done, clusters = {key for key, _ in results}, clusters or {}
    return Comparison(
        record,
        tuple(rows_of(results, clusters, real or {}, elsewhere)),
        tuple(key for key in record.keys if key not in done),
        unusable or {},
        clusters,
    )

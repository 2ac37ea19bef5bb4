"""Timelines: the slowest run of each strategy, whose timeline is written and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from orchestrator.replay.run import NoClusterTime
from orchestrator.replay.timeline_files import windows_of
from orchestrator.replay.windows import Window, Windows
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.model.split_points import one_per_split
from orchestrator.results.store import SweepPaths

MOST = 16  # timelines of a workload: those of the strategies that take longest
NO_TRACES = NoClusterTime("the run recorded no traces")


@dataclass(frozen=True)
class SlowestRun:
    """The run of a strategy that took longest."""

    group: Group
    row: Row


@dataclass(frozen=True)
class Timeline:
    """What is drawn of a run."""

    run: SlowestRun
    windows: Windows

    @property
    def window(self) -> Window:
        """The window on the clock on which the run is compared."""
        return self.windows.wall if self.run.row.clock == "wall" else self.windows.replayed

    @property
    def name(self) -> str:
        """`all_reduce over gloo, 4 nodes, seed 1`."""
        group, row = self.run.group, self.run.row
        return f"{group.name}, {group.shape.label}, seed {row.seed}"

    @property
    def link(self) -> str:
        """The address of its timeline.json, relative to the report."""
        return f"{quote(self.run.row.key)}/timeline.json"


def slowest_runs(view: WorkloadView) -> list[SlowestRun]:
    """The slowest run of each strategy but serial, which exchanges nothing, in the order of the sweep.

    On the clock of the view, at its shape; of strategies that were not run at it, at their largest one.
    Of many strategies, those that take longest. A strategy without times has one of its runs here, since a
    report says why it is missing.
    """
    strategies: dict[str, list[Group]] = {}
    for group in one_per_split(view.groups):
        if not group.serial:
            strategies.setdefault(group.strategy_label, []).append(group)
    found = [_slowest(view, groups) for groups in strategies.values()]
    faster = sorted(filter(_time, found), key=_time, reverse=True)[MOST:]
    return [run for run in found if run not in faster]


def strategies_of(view: WorkloadView) -> int:
    """The number of strategies that `slowest_runs` chooses from."""
    return len({group.strategy_label for group in one_per_split(view.groups) if not group.serial})


def _slowest(view: WorkloadView, groups: list[Group]) -> SlowestRun:
    shapes = {group.shape for group in groups}
    shape = view.shape
    if shape not in shapes:
        shape = max(shapes, key=lambda each: (each.ranks, each.nodes))
    runs = [SlowestRun(group, row) for group in groups if group.shape == shape for row in group.ok_rows]
    return max(runs, key=_time)


def _time(run: SlowestRun) -> float:
    return run.row.train_s or 0.0


def with_timelines(paths: SweepPaths, comparison: Comparison) -> Comparison:
    """Write the timelines that are drawn, unless they are up to date. Raises OSError."""
    found: dict[str, Windows | NoClusterTime] = {}
    for workload in comparison.workloads:
        for run in slowest_runs(comparison.view(workload)):
            key = run.row.key
            time = comparison.clusters.get(key, NO_TRACES)
            found[key] = (
                time
                if isinstance(time, NoClusterTime)
                else windows_of(paths.run(key), run.row.wall_result, time.cluster)
            )
    return replace(comparison, windows=found)


def timelines_of(
    view: WorkloadView, windows: Mapping[str, Windows | NoClusterTime]
) -> tuple[list[Timeline], dict[str, list[str]]]:
    """The timelines of a workload; and by reason, the names of the strategies without one."""
    shown, missing = [], dict[str, list[str]]()
    for run in slowest_runs(view):
        found = windows.get(run.row.key, NO_TRACES)
        if isinstance(found, NoClusterTime):
            missing.setdefault(found.reason, []).append(run.group.strategy_label)
        else:
            shown.append(Timeline(run, found))
    return shown, missing

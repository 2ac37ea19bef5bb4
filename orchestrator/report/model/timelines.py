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
from orchestrator.report.model.split_points import one_per_split
from orchestrator.results.store import SweepPaths

MOST = 16  # timelines of a workload: those of the strategies that take longest
NO_TRACES = NoClusterTime("the run recorded no traces")


@dataclass(frozen=True)
class Timeline:
    """What is drawn of a run. group: this run alone."""

    group: Group
    windows: Windows

    @property
    def window(self) -> Window:
        """The window on the clock on which the run is compared."""
        return self.windows.wall if self.group.first.clock == "wall" else self.windows.replayed

    @property
    def name(self) -> str:
        """`all_reduce over gloo, 4 nodes, seed 1`."""
        return f"{self.group.name}, {self.group.shape.label}, seed {self.group.first.seed}"

    @property
    def link(self) -> str:
        """The address of its timeline.json, relative to the report."""
        return f"{quote(self.group.first.key)}/timeline.json"


def slowest_runs(view: WorkloadView) -> list[Group]:
    """The run of each strategy that took longest, as a group, in the order of the sweep; none of serial.

    On the clock of the view, at its shape; of strategies that were not run at it, at their largest one.
    Of many strategies, those that take longest. A strategy without times has one of its runs here, since a
    report says why it is missing. Serial runs exchange nothing.
    """
    found = [_slowest(view, groups) for groups in _strategies(view).values()]
    faster = [id(group) for group in sorted(filter(_time, found), key=_time, reverse=True)[MOST:]]
    return [group for group in found if id(group) not in faster]


def strategies_of(view: WorkloadView) -> int:
    """The number of strategies that `slowest_runs` chooses from."""
    return len(_strategies(view))


def _strategies(view: WorkloadView) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in one_per_split(view.groups):
        if not group.serial:
            found.setdefault(group.strategy_label, []).append(group)
    return found


def _slowest(view: WorkloadView, groups: list[Group]) -> Group:
    shape = max(
        {group.shape for group in groups}, key=lambda each: (each == view.shape, each.ranks, each.nodes)
    )
    rows = [(group, row) for group in groups if group.shape == shape for row in group.ok_rows]
    return max((replace(group, rows=(row,)) for group, row in rows), key=_time)


def _time(run: Group) -> float:
    return run.first.train_s or 0.0


def with_timelines(paths: SweepPaths, comparison: Comparison) -> Comparison:
    """Write the timelines that are drawn, unless they are up to date. Raises OSError."""
    found: dict[str, Windows | NoClusterTime] = {}
    for view in map(comparison.view, comparison.workloads):
        for row in (group.first for group in slowest_runs(view)):
            time = comparison.clusters.get(row.key, NO_TRACES)
            found[row.key] = (
                time
                if isinstance(time, NoClusterTime)
                else windows_of(paths.run(row.key), row.wall_result, time.cluster)
            )
    return replace(comparison, windows=found)


def timelines_of(
    view: WorkloadView, windows: Mapping[str, Windows | NoClusterTime]
) -> tuple[list[Timeline], dict[str, list[str]]]:
    """The timelines of a workload; and by reason, the names of the strategies without one."""
    shown, missing = [], dict[str, list[str]]()
    for group in slowest_runs(view):
        found = windows.get(group.first.key, NO_TRACES)
        if isinstance(found, NoClusterTime):
            missing.setdefault(found.reason, []).append(group.strategy_label)
        else:
            shown.append(Timeline(group, found))
    return shown, missing

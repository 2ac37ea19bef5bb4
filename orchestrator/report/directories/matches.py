"""The configurations that results directories have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.report.formats import first_few
from orchestrator.report.metrics.clock import least_claimed
from orchestrator.report.model.comparison import Comparison, read_comparison
from orchestrator.report.model.groups import Group, config_of
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Clock
from orchestrator.report.render.environments import environments
from orchestrator.report.render.workloads import workload_names
from orchestrator.results.store import SweepPaths


@dataclass(frozen=True)
class Match:
    """A configuration of the reference directory that another directory has, too.

    name: its workload, strategy and nodes, as text. directory: the other. reference, other: its runs, with
    times on one clock. At least one side has a finished run.
    """

    name: str
    directory: str
    reference: Group
    other: Group

    @property
    def clock(self) -> Clock:
        return self.other.first.clock


@dataclass(frozen=True)
class Matches:
    """Several results directories. The first is the reference.

    directories: their names. found: what a directory has in common with the reference. alone: by directory,
    the configurations that it does not share; for the reference, those that no other has. missing: by
    directory, the configurations that finished in the reference and are not in it. environments: by name,
    the facts of machine and software in which they differ, one value per directory. errors: by workload,
    the largest error of cluster time in one of them.
    """

    directories: tuple[str, ...]
    found: tuple[Match, ...]
    alone: dict[str, list[str]]
    missing: dict[str, list[str]]
    environments: dict[str, tuple[str, ...]]
    errors: dict[Workload, float]


def read_matches(directories: Sequence[Path]) -> Matches:
    """Read results directories, the reference first. Raises InputError if no other has runs of it."""
    names = [str(directory) for directory in directories]
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise InputError(f"{', '.join(names)}: a directory is named twice")
    comparisons = [read_comparison(SweepPaths(directory)) for directory in directories]
    reference, *others = [_configurations(comparison) for comparison in comparisons]
    found = [
        Match(reference[config][0], name, *_on_one_clock(reference[config][1], other[config][1]))
        for name, other in zip(names[1:], others, strict=True)
        for config in reference
        if config in other and (reference[config][1].ok or other[config][1].ok)
    ]
    if not found:
        raise InputError(
            f"{names[0]} has no finished configuration in common with {first_few(names[1:])}; a "
            "configuration is a run without its seed"
        )
    shared = {config for other in others for config in other}
    alone = {names[0]: [name for config, (name, _) in reference.items() if config not in shared]}
    for name, other in zip(names[1:], others, strict=True):
        alone[name] = [label for config, (label, _) in other.items() if config not in reference]
    missing = {
        name: [label for config, (label, group) in reference.items() if group.ok and config not in other]
        for name, other in zip(names[1:], others, strict=True)
    }
    return Matches(
        tuple(names),
        tuple(found),
        {name: labels for name, labels in alone.items() if labels},
        missing,
        _different(
            [dict(fact for _, facts in environments(each) for fact in facts) for each in comparisons]
        ),
        _errors(comparisons),
    )


def _configurations(comparison: Comparison) -> dict[str, tuple[str, Group]]:
    """By what defines it, each configuration's name and runs."""
    workloads = workload_names(comparison.workloads)
    found = {}
    for group in comparison.groups:
        parts = [
            group.strategy_label if group.serial else f"{group.strategy_label} over {group.transport}",
            group.partitioner_label,
            group.shape.label,
            workloads.of(group.workload) if group.first.trains else "",
            group.first.location,
            group.first.faults_label,
        ]
        config = json.dumps([config_of(group.first), group.first.location], sort_keys=True)
        found[config] = (", ".join(filter(None, parts)), group)
    return found


def _on_one_clock(one: Group, other: Group) -> tuple[Group, Group]:
    """Both on the clock that they have in common: their own, or else the wall clock."""
    if one.first.clock == other.first.clock:
        return one, other
    return Group(tuple(row.wall for row in one.rows)), Group(tuple(row.wall for row in other.rows))


def _errors(comparisons: Sequence[Comparison]) -> dict[Workload, float]:
    found: dict[Workload, float] = {}
    for comparison in comparisons:
        for view in map(comparison.view, comparison.workloads):
            found[view.workload] = max(found.get(view.workload, 0.0), least_claimed(view))
    return found


def _different(facts: Sequence[dict[str, str]]) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(name for each in facts for name in each)
    values = {name: tuple(each.get(name, "–") for each in facts) for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}

"""Split points: groups that differ only in the blocks before which their model is split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import component_label


@dataclass(frozen=True)
class TwoStageSplits:
    """A model in two stages that was run with several split points.

    by_block: the groups by the first block of their second stage, in the order of the model's blocks.
    default: the default split point, if it was run and is the same with all seeds.
    representative: the group that `one_per_split` keeps.
    """

    by_block: dict[str, Group]
    default: str | None
    representative: Group

    @property
    def name(self) -> str:
        """`pipeline over gloo`, without its split point."""
        label = component_label(self.representative.first.run, "strategy", but=("split_points",))
        return f"{label} over {self.representative.transport}"


def two_stage_splits(groups: Sequence[Group]) -> TwoStageSplits | None:
    """The two-stage configuration of these ok groups with the most split points; None if there is none.

    A split point that was run both by name and as the default counts once, by its name.
    """
    found = []
    for family in _families(groups):
        by_point = {at[0]: group for group in family if len(at := _actual(group)) == 1}
        blocks = [block for block in family[0].first.run.model.names if block in by_point]
        if blocks:
            default = None if _requested(family[0]) else next(iter(_actual(family[0])), None)
            found.append(TwoStageSplits({each: by_point[each] for each in blocks}, default, family[0]))
    return max(found, key=lambda each: len(each.by_block), default=None)


def one_per_split(groups: Sequence[Group]) -> list[Group]:
    """The groups, with one for each set that differs only in `split_points`: the default, or the first."""
    chosen = {id(family[0]) for family in _families(groups)}
    return [group for group in groups if id(group) in chosen]


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that differ only in `split_points`, together: the default first."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=_requested):
        found.setdefault(group.first.configuration("strategy.split_points"), []).append(group)
    return [*found.values()]


def _requested(group: Group) -> bool:
    return bool(getattr(group.first.run.strategy, "split_points", None))


def _actual(group: Group) -> list[str]:
    """The split points that were used; empty if seeds differ, since defaults follow from measured times."""
    found = {tuple(row.split_points) for row in group.ok_rows}
    return [*found.pop()] if len(found) == 1 else []

"""Where a model was cut: the groups that differ by nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.metrics.model_partition import split_points
from orchestrator.report.model.groups import Group, cell_of
from orchestrator.report.model.labels import component_label


@dataclass(frozen=True)
class Halves:
    """A model in two parts that was tried with several cuts.

    by_cut: its groups by the block with which the second stage begins, in the order of the model's blocks.
    default: the cut that it has if none is asked for, if that was tried and is one.
    stand_in: see `one_of_each`.
    """

    by_cut: dict[str, Group]
    default: str | None
    stand_in: Group

    @property
    def name(self) -> str:
        """`pipeline over gloo`, whatever the cut."""
        label = component_label(self.stand_in.first.run, "strategy", but=("split_points",))
        return f"{label} over {self.stand_in.transport}"


def halves(groups: Sequence[Group]) -> Halves | None:
    """Of all ways to hold a model in two parts the one that was tried with most cuts; None without any.

    groups: ok. A cut that was tried both by its name and as the default is there once, by its name.
    """
    found = []
    for family in _families(groups):
        places = {cut[0]: group for group in _default_first(family) if len(cut := _where(group)) == 1}
        blocks = family[0].first.run.model.names
        if by_cut := {block: places[block] for block in blocks if block in places}:
            defaults = [_where(group) for group in family if not _asked_for(group)]
            default = next((cut[0] for cut in defaults if cut), None)
            found.append(Halves(by_cut, default, _default_first(family)[0]))
    return max(found, key=lambda each: len(each.by_cut), default=None)


def one_of_each(groups: Sequence[Group]) -> list[Group]:
    """The groups; of those that differ in the field `cuts` alone that with the default, or the first."""
    chosen = {id(_default_first(family)[0]) for family in _families(groups)}
    return [group for group in groups if id(group) in chosen]


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        cell = cell_of(group.first)
        strategy = {name: value for name, value in cell["strategy"].items() if name != "split_points"}
        alike = json.dumps([{**cell, "strategy": strategy}, group.first.where], sort_keys=True)
        found.setdefault(alike, []).append(group)
    return list(found.values())


def _default_first(family: Sequence[Group]) -> list[Group]:
    return sorted(family, key=lambda group: bool(_asked_for(group)))


def _asked_for(group: Group) -> list[str] | None:
    asked: list[str] | None = getattr(group.first.run.strategy, "split_points", None)
    return asked


def _where(group: Group) -> list[str]:
    """Where the model really was cut, by the blocks with which its parts but the first begin.

    Empty where that was not the same with all seeds: a default follows from times that are measured.
    """
    found = {tuple(split_points(row)) for row in group.ok_rows}
    return [*found.pop()] if len(found) == 1 else []

"""Many nodes: until how many of them time falls, and what that costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.report.figures.axes import LOG_FROM
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.topics.speed import by_line, timed_serial
from orchestrator.report.topics.topic import Findings, Topic


@dataclass(frozen=True)
class _Line:
    """A strategy on several numbers of nodes, the fewest first.

    Attributes:
        steps: the time on each number of nodes but the first, compared with that on the number before.
        times, accuracies: those on each number of nodes, compared with the reference.
    """

    groups: Sequence[Group]
    steps: Sequence[Compared]
    times: Sequence[Compared]
    accuracies: Sequence[Compared]

    @property
    def compared(self) -> list[Compared]:
        return [*self.steps, *self.times, *self.accuracies]

    @property
    def complete(self) -> bool:
        """Whether all have enough seeds, and an accuracy."""
        enough = all(each.verdict != "too_few_seeds" for each in self.compared)
        return enough and len(self.times) == len(self.accuracies)

    @property
    def falls_until(self) -> Group | None:
        """The largest group that is faster than the one before, unless that is within the tolerance."""
        faster = [step.left for step in self.steps if step.left_is_better and not step.within_tolerance]
        return faster[-1] if faster else None

    @property
    def kept_until(self) -> Group | None:
        """The largest group that is faster than the reference and keeps its accuracy; None if none is."""
        kept = [
            time.left
            for time, accuracy in zip(self.times, self.accuracies, strict=True)
            if time.left_is_better and accuracy.keeps
        ]
        return kept[-1] if kept else None


def many_nodes(view: WorkloadView) -> Findings:
    """Until how many nodes each strategy becomes faster, and its accuracy there.

    The reference is serial, or without it the fewest nodes of the strategy.
    """
    lines = [groups for groups in by_line(view) if _spans_many(groups)]
    serial = timed_serial(view, [group for groups in lines for group in groups])
    answers = yield [ask for groups in lines for ask in _asks(groups, serial or groups[0])]
    compared = iter([answer.compared for answer in answers])
    compared_lines = [_Line(groups, next(compared), next(compared), next(compared)) for groups in lines]
    found = [line for line in compared_lines if line.complete]
    if not found:
        return
    yield Finding(
        "many_nodes",
        evidence([serial, *(group for line in found for group in line.groups)]),
        {
            "clock": view.clock,
            "reference": "serial" if serial else "fewest",
            "saves_time": _by_nodes(view, [(line, line.falls_until) for line in found]),
            "keeps_accuracy": _by_nodes(view, [(line, line.kept_until) for line in found]),
            "strategies": [_data(view, line) for line in found],
            "compared": compared_data(each for line in found for each in line.compared),
        },
    )


def _spans_many(groups: Sequence[Group]) -> bool:
    """Whether node counts are so far apart that figures have a logarithmic axis for them."""
    return groups[-1].shape.ranks >= LOG_FROM * groups[0].shape.ranks


def _asks(groups: Sequence[Group], reference: Group) -> list[Ask]:
    """The fields of a line, as questions."""
    others = [(group, reference) for group in groups if group is not reference]
    return [
        Ask.of(Q.train_s, [(more, fewer) for fewer, more in pairwise(groups)]),
        Ask.of(Q.train_s, others),
        Ask.of(Q.accuracy, others),
    ]


def _by_nodes(view: WorkloadView, ends: Sequence[tuple[_Line, Group | None]]) -> dict[str, list[str]]:
    """The strategies by the number of nodes that they reach, the most first."""
    names: dict[str, list[str]] = {}
    for line, end in sorted(ends, key=lambda each: -each[1].shape.ranks if each[1] else 0):
        names.setdefault(end.shape.label if end else "none", []).append(view.name(line.groups[0]))
    return names


def _data(view: WorkloadView, line: _Line) -> dict[str, Any]:
    falls, kept, end = line.falls_until, line.kept_until, line.falls_until or line.groups[-1]
    pairs = zip(line.times, line.accuracies, strict=True)
    return {
        "strategy": view.name(line.groups[0]),
        "ranks": [group.shape.ranks for group in line.groups],
        "falls_until": falls.shape.ranks if falls else None,
        "kept_until": kept.shape.ranks if kept else None,
        "end": view.name_on(end),
        "train_s": Q.train_s.mean_of(end),
        "accuracy": Q.accuracy.mean_of(end),
        "to_reference": next((compared_data(pair) for pair in pairs if pair[0].left is end), None),
    }


TOPIC = Topic(rules=(many_nodes,))

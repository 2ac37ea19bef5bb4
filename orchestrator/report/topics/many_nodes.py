"""Many nodes: until how many of them time falls, and what that costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from orchestrator.report.figures.axes import LOG_FROM
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.topics.speed import by_line, timed_serial
from orchestrator.report.topics.topic import Findings, Topic


def many_nodes(view: WorkloadView) -> Findings:
    """Until how many nodes each strategy becomes faster, and its accuracy there.

    The reference is serial, or without it the fewest nodes of the strategy.
    """
    far_apart = [line for line in by_line(view) if line[-1].shape.ranks >= LOG_FROM * line[0].shape.ranks]
    serial = timed_serial(view, [group for line in far_apart for group in line])
    answers = iter((yield [ask for line in far_apart for ask in _asks(line, serial or line[0])]))
    found, groups, all_compared = [], [serial], list[Compared]()
    for line in far_apart:
        steps, times, accuracies = (next(answers).compared for _ in range(3))
        compared = [*steps, *times, *accuracies]
        enough_seeds = all(each.verdict != "too_few_seeds" for each in compared)
        if enough_seeds and len(times) == len(accuracies):
            found.append(_until(view, line, steps, [*zip(times, accuracies, strict=True)]))
            groups += line
            all_compared += compared
    if found:
        yield Finding.of(
            "many_nodes",
            groups,
            all_compared,
            clock=view.clock,
            reference="serial" if serial else "fewest",
            strategies=found,
        )


def _asks(line: Sequence[Group], reference: Group) -> list[Ask]:
    """Each number of nodes with the one before in time, and with the reference in time and accuracy."""
    others = [(group, reference) for group in line if group is not reference]
    steps = [(more, fewer) for fewer, more in pairwise(line)]
    return [Ask.of(Q.train_s, steps), Ask.of(Q.train_s, others), Ask.of(Q.accuracy, others)]


def _until(
    view: WorkloadView,
    line: Sequence[Group],
    steps: Sequence[Compared],
    to_reference: Sequence[tuple[Compared, Compared]],
) -> dict[str, Any]:
    """The most nodes that are faster than the next fewer, and that are faster than the reference.

    Not by a time within the tolerance, and not at the cost of accuracy beyond it.
    """
    faster = [step.left for step in steps if step.left_is_better and not step.within_tolerance]
    kept = [time.left for time, accuracy in to_reference if time.left_is_better and accuracy.keeps]
    end = faster[-1] if faster else line[-1]
    return {
        "strategy": view.name(line[0]),
        "falls_until": _nodes(faster),
        "kept_until": _nodes(kept),
        "end": view.name_on(end),
        "train_s": Q.train_s.mean_of(end),
        "accuracy": Q.accuracy.mean_of(end),
        "to_reference": next((compared_data(pair) for pair in to_reference if pair[0].left is end), None),
    }


def _nodes(groups: Sequence[Group]) -> tuple[int, str]:
    """The ranks of the last group, and their name."""
    return (groups[-1].shape.ranks, groups[-1].shape.label) if groups else (0, "none")


TOPIC = Topic(rules=(many_nodes,))

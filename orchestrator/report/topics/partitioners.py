"""Partitioners: their effect on coverage, overlap and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from statistics import fmean
from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import INTERVAL, FigureKind, Point, Subject
from orchestrator.report.figures.maps import Map, grid
from orchestrator.report.figures.sentences import Shown
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask
from orchestrator.report.formats import ABSENT, points
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.data_partition import SKEWED_BITS
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.topics.topic import Findings, Topic

UNEQUAL = 1.1  # largest part / smallest part, beyond which their sizes are reported
MIN_COMPARED = 2  # strategies with several partitioners; fewer are compared by other figures
MAX_COLUMNS = 7  # more columns have no room for their names
WORST = 0.3  # loss of accuracy at full colour


def partitioner_loss(view: WorkloadView) -> Findings:
    """The strategy that loses most under a partitioner, and the strategy that recovers most of it."""
    reference, *others = view.partitioners or [""]
    known = [group for group in view.candidates if Q.accuracy.sample(group)]
    # Compared whatever was lost, since what is compared may not depend on what is decided.
    among = [
        Ask.among(Q.accuracy, [group for group in known if group.partitioner_label == label])
        for label in others
    ]
    answers = [*(yield [*_against_reference(view), *among])]
    for label, lost, same in zip(others, answers, answers[len(others) :], strict=False):
        losing = [each for each in lost.compared if each.verdict == "less"]
        if not losing:
            continue
        worst = min(losing, key=lambda each: each.values[0] - each.values[1])
        better = [each.swapped for each in same.of(worst.left) if each.right_is_better]
        best = max(better, key=lambda each: each.values[0], default=None)
        shown = [worst, best] if best else [worst]
        yield Finding.of(
            "partitioner_loss",
            [group for each in shown for group in (each.left, each.right)],
            shown,
            nodes=view.shape.label,
            partitioner=label,
            reference=reference,
            strategies=[each.left.name for each in shown],
        )


def partitioner_effect(view: WorkloadView) -> Findings:
    """The effect of each partitioner on every strategy."""
    for label, answer in zip(view.partitioners[1:], (yield _against_reference(view)), strict=True):
        pairs = [(each.left, each.right) for each in answer.compared]
        if not pairs:
            continue
        mine, theirs = map(list, zip(*pairs, strict=True))
        yield Finding.of(
            "partitioner_effect",
            [*mine, *theirs],
            answer.compared,
            partitioner=label,
            reference=view.partitioners[0],
            strategies=[group.name for group in mine],
            used=[_used(mine), _used(theirs)],
            nodes=view.shape.label,
            train_s={
                one.name: (Q.train_s.mean_of(one), Q.train_s.mean_of(other))
                for one, other in pairs
                if Q.train_s.sample(one) and Q.train_s.sample(other)
            },
        )


def _against_reference(view: WorkloadView) -> list[Ask]:
    """Each partitioner but the reference with every strategy, compared with the reference."""
    return [
        Ask.of(
            Q.accuracy,
            [
                (other, one)
                for one, other in permutations(view.candidates, 2)
                if (one.partitioner_label, other.partitioner_label) == (view.partitioners[0], label)
                and one.line[:2] == other.line[:2]
            ],
        )
        for label in view.partitioners[1:]
    ]


def _used(groups: Sequence[Group]) -> dict[str, Any]:
    """What the groups trained on in epoch 1; skew and sizes only where they are notable.

    Where some ranks are absent from a round, the samples of an epoch say nothing about the parts.
    """
    full = [group for group in groups if group.first.run.strategy.rounds is None]
    skew = _mean(Q.js_divergence_mean_bits, full or groups)
    samples = [part.samples for row in evidence(full) for part in row.parts] or [0]
    return {
        "coverage": _mean(Q.coverage, full or groups),
        "overlap": _mean(Q.overlap, full or groups),
        "skew_bits": skew if skew and skew >= SKEWED_BITS else None,
        "sizes": (min(samples), max(samples)) if max(samples) > UNEQUAL * min(samples) else None,
    }


def _mean(quantity: Quantity, groups: Sequence[Group]) -> float | None:
    """Over all runs of the groups."""
    known = [value for row in evidence(groups) if (value := quantity.of(row)) is not None]
    return fmean(known) if known else None


def partitioners_by_strategy(subject: Subject) -> Chart | None:
    """Accuracy of the strategies that were run with several partitioners; None for fewer than two of them.

    A strategy per row; with many partitioners, a partitioner per row.
    """
    view = subject.view
    cells = {
        (point["series"], point["partitioner"]): point
        for point in subject.points(view.candidates, Q.accuracy)
        if point["partitioner"]
    }
    number = Counter(name for name, _ in cells)
    compared = [name for name in number if number[name] > 1]
    if len(compared) < MIN_COMPARED:
        return None
    labels = [label for label in view.partitioners if any((name, label) in cells for name in compared)]
    records = [_cell(cells, name, label, labels[0]) for name in compared for label in labels]
    row, column = "series", "partitioner"
    rows, columns = compared, labels
    if len(labels) > max(MAX_COLUMNS, len(compared)):
        row, column, rows, columns = column, row, columns, rows
    tips = {"series": "strategy", "partitioner": "partitioner", "written": "test accuracy", **INTERVAL}
    return grid(
        Map(
            [{**record, "row": record[row], "column": record[column]} for record in records],
            rows,
            columns,
            WORST,
            "loss",
            {**tips, "change": f"against {labels[0]}"},
        ),
        f"Test accuracy by partitioner, {view.shape.label}",
        f"The darker, the lower than with {labels[0]}",
    )


def _cell(cells: Mapping[tuple[str, str], Point], name: str, label: str, reference: str) -> Point:
    point, best = cells.get((name, label)), cells.get((name, reference))
    change = point["mean"] - best["mean"] if point and best else None
    shown = point or {"series": name, "partitioner": label, "written": ABSENT, "interval": ""}
    return {**shown, "amount": max(0.0, -(change or 0.0)), "change": points(change)}


def _none_shown(shown: Shown) -> str:
    return f"No partitioner is likely to cost accuracy against {shown.view.partitioners[0]}."


TOPIC = Topic(
    rules=(partitioner_loss, partitioner_effect),
    figures=(
        FigureKind(
            "partitioners",
            "partitioners",
            "Means over seeds. Darker cells lose more against the first partitioner, strategy by "
            "strategy. Not shown are strategies with one partitioner.",
            partitioners_by_strategy,
            shows=("partitioner_loss",),
            otherwise=_none_shown,
            links_matter=False,
        ),
    ),
)

"""Partitioners: their effect on coverage, overlap and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import INTERVAL, FigureKind, Point, Subject
from orchestrator.report.figures.maps import Map, grid
from orchestrator.report.figures.sentences import Shown
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.formats import ABSENT, points
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.data_partition import SKEWED_BITS
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.topic import Findings, Topic

UNEQUAL = 1.1  # largest part / smallest part, beyond which their sizes are reported


MIN_COMPARED = 2  # strategies with several partitioners; fewer are compared by other figures
MAX_COLUMNS = 7  # more columns have no room for their names
WORST = 0.3  # loss of accuracy at full colour


def partitioner_loss(view: WorkloadView) -> Findings:
    """The strategy that loses most under a partitioner, and the strategy that recovers most of it."""
    others = view.partitioners[1:]
    same = [
        [each for each in view.candidates if each.partitioner_label == label and Q.accuracy.sample(each)]
        for label in others
    ]
    # Compared whatever was lost, since what is compared may not depend on what is decided.
    among = [Ask.among(Q.accuracy, groups) for groups in same]
    answers = [*(yield [*_against_reference(view), *among])]
    for label, lost, ranking in zip(others, answers, answers[len(others) :], strict=False):
        losing = [each for each in lost.compared if each.verdict == "less"]
        if not losing:
            continue
        worst = min(losing, key=lambda each: each.values[0] - each.values[1])
        data: dict[str, Any] = {
            "nodes": view.shape.label,
            "partitioner": label,
            "reference": view.partitioners[0],
            "strategy": worst.left.name,
            "loss": worst.values[1] - worst.values[0],
            "best": None,
        }
        better = [each.swapped for each in ranking.of(worst.left) if each.right_is_better]
        compared = [worst]
        if better:
            best = max(better, key=lambda each: each.values[0])
            compared.append(best)
            data["best"] = best.left.name
        data["compared"] = compared_data(compared)
        groups = [group for each in compared for group in (each.left, each.right)]
        yield Finding("partitioner_loss", evidence(groups), data)


def partitioner_effect(view: WorkloadView) -> Findings:
    """The effect of each partitioner on every strategy."""
    answers = yield _against_reference(view)
    for label, answer in zip(view.partitioners[1:], answers, strict=True):
        reference, found = view.partitioners[0], answer.compared
        if not found:
            continue
        mine, theirs = [each.left for each in found], [each.right for each in found]
        yield Finding(
            "partitioner_effect",
            evidence([*mine, *theirs]),
            {
                "partitioner": label,
                "reference": reference,
                "accuracy": {each.left.name: each.values for each in found},
                "coverage": _mean_coverage(mine),
                "overlap": _mean_overlap(mine),
                "nodes": view.shape.label,
                "used": {label: _used(mine), reference: _used(theirs)},
                "train_s": {each.left.name: times for each in found if (times := _measured(each))},
                "compared": compared_data(found),
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


def _mean_coverage(groups: Sequence[Group]) -> float | None:
    coverage = Spread.of(Q.coverage.of(row) for group in groups for row in group.ok_rows)
    return coverage.mean if coverage else None


def _mean_overlap(groups: Sequence[Group]) -> float | None:
    overlap = Spread.of(Q.overlap.of(row) for group in groups for row in group.ok_rows)
    return overlap.mean if overlap else None


def _used(groups: Sequence[Group]) -> dict[str, Any]:
    """What the groups trained on in epoch 1; skew and sizes only where they are notable."""
    full = [group for group in groups if group.first.run.strategy.rounds is None] or groups
    skew = Spread.of(Q.js_divergence_mean_bits.of(row) for group in full for row in group.ok_rows)
    return {
        "coverage": _mean_coverage(full),
        "overlap": _mean_overlap(full),
        "skew_bits": skew.mean if skew and skew.mean >= SKEWED_BITS else None,
        "sizes": _sizes(full),
    }


def _measured(pair: Compared) -> tuple[float, float] | None:
    """The times of two groups that were compared in accuracy, in seconds; None if they do not compare."""
    if not (Q.train_s.sample(pair.left) and Q.train_s.sample(pair.right)):
        return None
    return Q.train_s.mean_of(pair.left), Q.train_s.mean_of(pair.right)


def _sizes(groups: Sequence[Group]) -> tuple[int, int] | None:
    """The samples of the smallest and the largest part; None if the parts are of about equal size."""
    # Where some ranks are absent, the samples of an epoch say nothing about the parts.
    rows = [row for group in groups for row in group.ok_rows if row.run.strategy.rounds is None]
    samples = [part.samples for row in rows for part in row.parts]
    if not samples or max(samples) <= UNEQUAL * min(samples):
        return None
    return min(samples), max(samples)


def partitioners_by_strategy(subject: Subject) -> Chart | None:
    """Accuracy of the strategies that were run with several partitioners; None for fewer than two of them.

    A strategy per row; with many partitioners, a partitioner per row.
    """
    view = subject.view
    known = [point for point in subject.points(view.candidates, Q.accuracy) if point["partitioner"]]
    number = Counter(point["series"] for point in known)
    compared = [name for name in number if number[name] > 1]
    cells = {(point["series"], point["partitioner"]): point for point in known}
    labels = [label for label in view.partitioners if any((name, label) in cells for name in compared)]
    if len(compared) < MIN_COMPARED:
        return None
    sides, names = ("row", "column"), (compared, labels)
    if len(labels) > max(MAX_COLUMNS, len(compared)):
        sides = sides[::-1]
    records = [
        {**dict(zip(sides, (name, label), strict=True)), **_cell(cells, name, label, labels[0])}
        for name in compared
        for label in labels
    ]
    rows, columns = names if sides[0] == "row" else names[::-1]
    tips = {"written": "test accuracy", **INTERVAL, "change": f"against {labels[0]}"}
    of_sides = dict(zip(sides, ("strategy", "partitioner"), strict=True))
    return grid(
        Map(records, rows, columns, WORST, "loss", of_sides | tips),
        f"Test accuracy by partitioner, {view.shape.label}",
        f"The darker, the lower than with {labels[0]}",
    )


def _cell(cells: Mapping[tuple[str, str], Point], name: str, label: str, reference: str) -> Point:
    point, best = cells.get((name, label)), cells.get((name, reference))
    change = point["mean"] - best["mean"] if point and best else None
    shown = point or {"series": name, "written": ABSENT, "interval": ""}
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

"""Findings about partitioners: what they do to the split, to accuracy, and who makes up for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.report.findings.base import REMARKS, Finding, Verdict, evidence, verdict
from orchestrator.report.formats import JOIN, listed, percent, points
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Spread

NOTABLE = 0.01  # change of accuracy, from which it is worth a sentence
FEW = 3  # partitioners that are told one by one, whatever they change
# Verdicts on a difference that is more than the spread of seeds, as far as that is known.
TELLING = ("beyond", "once")
SKEWED_BITS = 0.02  # mean divergence of the nodes' labels from which it is worth a word


def partitioners(scene: WorkloadView) -> Iterator[Finding]:
    """What another way to share out the samples does to coverage, overlap and accuracy."""
    reference, *others = scene.partitioners or [""]
    harmless: dict[str, list[tuple[Group, Group]]] = {}
    for label in others:
        pairs = _pairs(scene, reference, label)
        effects = _effects(pairs)
        if not effects:
            continue
        if len(others) > FEW and all(abs(change) < NOTABLE for change in _changes(pairs)):
            harmless[label] = pairs
            continue
        yield Finding(
            "finding",
            f"At {scene.shape.label} {_held(label, [other for _, other in pairs])}; "
            f"{_held(reference, [one for one, _ in pairs])}. "
            f"Accuracy with {label} rather than {reference}: {effects}.",
            evidence(group for pair in pairs for group in pair),
        )
    if harmless:
        yield Finding(
            "finding",
            f"At {scene.shape.label} no strategy's accuracy changed by {_number(NOTABLE)} points or more "
            f"with {listed([*harmless], 'or')} rather than {reference}.",
            evidence(group for pairs in harmless.values() for pair in pairs for group in pair),
        )


def _changes(pairs: Sequence[tuple[Group, Group]]) -> list[float]:
    """By how much accuracy changed, pair by pair."""
    spreads = [(one.accuracy, other.accuracy) for one, other in pairs]
    return [right.mean - left.mean for left, right in spreads if left and right]


def recovery(scene: WorkloadView) -> Iterator[Finding]:
    """Which strategy suffers most under a partitioner, and how much of that another one wins back."""
    reference, *others = scene.partitioners or [""]
    for label in others:
        losses = [
            (before.mean - after.mean, one, other)
            for one, other in _pairs(scene, reference, label)
            if (before := one.accuracy)
            and (after := other.accuracy)
            and before.mean - after.mean >= NOTABLE
            and verdict(before, after) in TELLING
        ]
        if not losses:
            continue
        loss, one, worst = max(losses, key=lambda item: item[0])
        better = [
            (found.mean - left.mean, group)
            for group in scene.rivals
            if group.partitioner_label == label
            and (found := group.accuracy)
            and (left := worst.accuracy)
            and verdict(found, left) in TELLING
        ]
        gain, best = max(better, key=lambda item: item[0], default=(0.0, None))
        told = [one, worst]
        text = (
            f"Under {label}, {_plain_name(worst)} loses {_number(loss)} points against {reference} "
            f"at {scene.shape.label}"
        )
        if best and gain > 0:
            told.append(best)
            won = "all of them" if gain >= loss else f"{_number(gain)} of them"
            text += f"; {_plain_name(best)} recovers {won}"
        remark = "" if all(group.repeated for group in told) else REMARKS["once"]
        yield Finding("finding", f"{text}{remark}.", evidence(told))


def _pairs(scene: WorkloadView, reference: str, label: str) -> list[tuple[Group, Group]]:
    """Groups that differ in nothing but the partitioner: the reference, and this one."""
    return [
        (one, other)
        for one in scene.rivals
        for other in scene.rivals
        if (one.partitioner_label, other.partitioner_label) == (reference, label)
        and one.line[:2] == other.line[:2]
    ]


def _plain_name(group: Group) -> str:
    return f"{group.strategy_label} over {group.transport}"


def _number(share: float) -> str:
    return points(share).partition(JOIN)[0].removeprefix("+")


def _held(label: str, groups: list[Group]) -> str:
    """`random_sampling used 68.4% of the training set in epoch 1, 26.1% of it on several nodes`."""
    rows = [row for group in groups for row in group.ok_rows]
    coverage = Spread.of(row.coverage for row in rows)
    overlap = Spread.of(row.overlap for row in rows)
    skew = Spread.of(row.js_mean for row in rows)
    if not coverage or not overlap or not skew:
        return f"{label} has no certificate"
    several = f"{percent(overlap.mean)} on several nodes" if overlap.mean else "none on several nodes"
    labels = f", with labels {skew.mean:.2f} bits from the whole set's" if skew.mean >= SKEWED_BITS else ""
    return f"{label} used {percent(coverage.mean)} of the training set in epoch 1, {several}{labels}"


def _effects(pairs: Sequence[tuple[Group, Group]]) -> str:
    """What changed in accuracy, differences that may be chance last and named as such."""
    told: dict[Verdict, list[str]] = {}
    for one, other in pairs:
        left, right = one.accuracy, other.accuracy
        if left and right:
            effect = f"{other.strategy_label} over {other.transport} {points(right.mean - left.mean)}"
            told.setdefault(verdict(left, right), []).append(effect)
    named: dict[Verdict, str] = {
        "beyond": "",
        "once": " (not repeated often enough to tell from chance)",
        "within": " (within the spread of seeds)",
        "equal": "",
    }
    return "; ".join(f"{listed(told[key])}{remark}" for key, remark in named.items() if key in told)

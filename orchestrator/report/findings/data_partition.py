"""Findings about partitioners: their effect on coverage, overlap and accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.report.findings.base import REMARKS, Finding, evidence
from orchestrator.report.formats import JOIN, listed, percent, points
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.spread import Spread, Verdict, compare_spreads

NOTABLE = 0.01  # change of accuracy that is reported as a loss
FEW = 3  # up to this many partitioners are reported one by one, however small their effect
MORE_THAN_RANGE = (
    "beyond_range",
    "single_seed",
)  # verdicts that do not attribute a difference to the range over seeds
SKEWED_BITS = 0.02  # mean divergence of labels that is reported


def partitioner_loss(view: WorkloadView) -> Iterator[Finding]:
    """The strategy that loses most under a partitioner, and the strategy that recovers most of it."""
    reference, *others = view.partitioners or [""]
    for label in others:
        losses = [
            (before.mean - after.mean, one, other)
            for one, other in _pairs(view, reference, label)
            if (before := one.accuracy)
            and (after := other.accuracy)
            and before.mean - after.mean >= NOTABLE
            and compare_spreads(before, after) in MORE_THAN_RANGE
        ]
        if not losses:
            continue
        loss, one, worst = max(losses, key=lambda item: item[0])
        better = [
            (found.mean - left.mean, group)
            for group in view.candidates
            if group.partitioner_label == label
            and (found := group.accuracy)
            and (left := worst.accuracy)
            and compare_spreads(found, left) in MORE_THAN_RANGE
        ]
        gain, best = max(better, key=lambda item: item[0], default=(0.0, None))
        data: dict[str, Any] = {"partitioner": label, "strategy": _name(worst), "loss": loss}
        groups = [one, worst]
        text = (
            f"With {label} instead of {reference}, {_name(worst)} loses {_number(loss)} points "
            f"at {view.shape.label}"
        )
        if best and gain > 0:
            groups.append(best)
            data |= {"best": _name(best), "recovered": gain}
            recovered = "all of them" if gain >= loss else f"{_number(gain)} of them"
            text += f"; {_name(best)} recovers {recovered}"
        remark = "" if all(group.repeated for group in groups) else REMARKS["single_seed"]
        data["repeated"] = not remark
        yield Finding("partitioner_loss", f"{text}{remark}.", evidence(groups), data)


def partitioner_effect(view: WorkloadView) -> Iterator[Finding]:
    """The effect of each partitioner; those of many that change little are reported together."""
    reference, *others = view.partitioners or [""]
    harmless: dict[str, list[tuple[Group, Group]]] = {}
    for label in others:
        pairs = _pairs(view, reference, label)
        effects = _effects(pairs)
        if not effects:
            continue
        changes = _changes(pairs)
        if len(others) > FEW and all(abs(change) < NOTABLE for change in changes.values()):
            harmless[label] = pairs
            continue
        yield Finding(
            "partitioner_effect",
            f"At {view.shape.label}, {_held(label, [other for _, other in pairs])}; "
            f"{_held(reference, [one for one, _ in pairs])}. "
            f"Accuracy with {label} instead of {reference}: {effects}.",
            evidence(group for pair in pairs for group in pair),
            {
                "partitioner": label,
                "reference": reference,
                "changes": changes,
                "coverage": _mean_coverage([other for _, other in pairs]),
                "overlap": _mean_overlap([other for _, other in pairs]),
            },
        )
    if harmless:
        yield Finding(
            "partitioners_harmless",
            f"At {view.shape.label} no strategy's accuracy changed by {_number(NOTABLE)} points or more "
            f"with {listed([*harmless], 'or')} instead of {reference}.",
            evidence(group for pairs in harmless.values() for pair in pairs for group in pair),
            {"partitioners": [*harmless], "reference": reference},
        )


def _pairs(view: WorkloadView, reference: str, label: str) -> list[tuple[Group, Group]]:
    """Groups that differ only in the partitioner: (reference, label)."""
    return [
        (one, other)
        for one in view.candidates
        for other in view.candidates
        if (one.partitioner_label, other.partitioner_label) == (reference, label)
        and one.line[:2] == other.line[:2]
    ]


def _changes(pairs: Sequence[tuple[Group, Group]]) -> dict[str, float]:
    """The change of mean accuracy by strategy."""
    return {
        _name(other): right.mean - left.mean
        for one, other in pairs
        if (left := one.accuracy) and (right := other.accuracy)
    }


def _name(group: Group) -> str:
    return f"{group.strategy_label} over {group.transport}"


def _number(share: float) -> str:
    return points(share).partition(JOIN)[0].removeprefix("+")


def _mean_coverage(groups: Sequence[Group]) -> float | None:
    coverage = Spread.of(row.coverage for group in groups for row in group.ok_rows)
    return coverage.mean if coverage else None


def _mean_overlap(groups: Sequence[Group]) -> float | None:
    overlap = Spread.of(row.overlap for group in groups for row in group.ok_rows)
    return overlap.mean if overlap else None


def _held(label: str, groups: Sequence[Group]) -> str:
    """`random_sampling used 68.4% of the training set in epoch 1, 26.1% on several nodes`."""
    coverage, overlap = _mean_coverage(groups), _mean_overlap(groups)
    skew = Spread.of(row.js_mean for group in groups for row in group.ok_rows)
    if coverage is None or overlap is None or not skew:
        return f"{label} has no certificate"
    several = f"{percent(overlap)} on several nodes" if overlap else "none on several nodes"
    labels = f", with a label divergence of {skew.mean:.2f} bits" if skew.mean >= SKEWED_BITS else ""
    return f"{label} used {percent(coverage)} of the training set in epoch 1, {several}{labels}"


def _effects(pairs: Sequence[tuple[Group, Group]]) -> str:
    """The changes of accuracy, grouped by verdict."""
    effects: dict[Verdict, list[str]] = {}
    for one, other in pairs:
        left, right = one.accuracy, other.accuracy
        if left and right:
            effect = f"{_name(other)} {points(right.mean - left.mean)}"
            effects.setdefault(compare_spreads(left, right), []).append(effect)
    remarks: dict[Verdict, str] = {
        "beyond_range": "",
        "single_seed": " (from a single seed)",
        "within_range": " (within the range over seeds)",
        "equal": "",
    }
    return "; ".join(f"{listed(effects[key])}{remark}" for key, remark in remarks.items() if key in effects)

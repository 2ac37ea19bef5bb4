"""Findings about partitioners: their effect on coverage, overlap and accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, Ranking, compared_data
from orchestrator.report.findings.compared import Compared
from orchestrator.report.formats import listed, percent, seconds, whole
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import ACCURACY, COVERAGE, JS_MEAN, OVERLAP, TRAIN_S
from orchestrator.report.statistics.spread import Spread

SKEWED_BITS = 0.02  # mean divergence of labels that is reported
UNEQUAL = 1.1  # largest part / smallest part, beyond which their sizes are reported


def partitioner_loss(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The strategy that loses most under a partitioner, and the strategy that recovers most of it."""
    reference, *others = view.partitioners or [""]
    lost = _against_reference(view, claims)
    same = {
        label: [
            group
            for group in view.candidates
            if group.partitioner_label == label and ACCURACY.sample(group)
        ]
        for label in others
    }
    # Compared whatever was lost, since what is compared may not depend on what is decided.
    among = claims.pairs(ACCURACY, [pair for groups in same.values() for pair in combinations(groups, 2)])
    for label in others:
        losing = [each for each in lost if each.left.partitioner_label == label and each.verdict == "less"]
        ranking = Ranking(same[label], [each for each in among if each.left.partitioner_label == label])
        if not losing:
            continue
        worst = min(losing, key=lambda each: each.values[0] - each.values[1])
        text = (
            f"At {view.shape.label}, {_name(worst.left)} reached {percent(worst.values[1])} with "
            f"{reference} and {percent(worst.values[0])} with {label}: {worst.written}"
        )
        data: dict[str, Any] = {
            "partitioner": label,
            "strategy": _name(worst.left),
            "loss": worst.values[1] - worst.values[0],
            "best": None,
        }
        better = [each.swapped for each in ranking.of(worst.left) if each.right_is_better]
        compared = [worst]
        if better:
            best = max(better, key=lambda each: each.values[0])
            compared.append(best)
            data["best"] = _name(best.left)
            text += (
                f". With {label}, {_name(best.left)} reached {percent(best.values[0])}, "
                f"{best.written} from {_name(worst.left)}"
            )
        data["compared"] = compared_data(compared)
        groups = [group for each in compared for group in (each.left, each.right)]
        yield Finding("partitioner_loss", f"{text}.", evidence(groups), data)


def partitioner_effect(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The effect of each partitioner on every strategy."""
    reference, *others = view.partitioners or [""]
    effects = _against_reference(view, claims)
    for label in others:
        found = [each for each in effects if each.left.partitioner_label == label]
        if not found:
            continue
        mine, theirs = [each.left for each in found], [each.right for each in found]
        parts = [
            f"{_name(each.left)} {percent(each.values[0])} and {percent(each.values[1])}{each.aside}"
            for each in found
        ]
        yield Finding(
            "partitioner_effect",
            f"At {view.shape.label}, {_both_held(label, mine, reference, theirs)}. "
            f"Accuracy with {label} and with {reference}: {'; '.join(parts)}.{_times(found)}",
            evidence([*mine, *theirs]),
            {
                "partitioner": label,
                "reference": reference,
                "accuracy": {_name(each.left): each.values for each in found},
                "coverage": _mean_coverage(mine),
                "overlap": _mean_overlap(mine),
                "train_s": {_name(each.left): times for each in found if (times := _measured(each))},
                "compared": compared_data(found),
            },
        )


def _against_reference(view: WorkloadView, claims: Claims) -> list[Compared]:
    """Every partitioner with every strategy, compared with the reference partitioner: one family."""
    reference, *others = view.partitioners or [""]
    pairs = [(other, one) for label in others for one, other in _pairs(view, reference, label)]
    return claims.pairs(ACCURACY, pairs)


def _pairs(view: WorkloadView, reference: str, label: str) -> list[tuple[Group, Group]]:
    """Groups that differ only in the partitioner: (reference, label)."""
    return [
        (one, other)
        for one in view.candidates
        for other in view.candidates
        if (one.partitioner_label, other.partitioner_label) == (reference, label)
        and one.line[:2] == other.line[:2]
    ]


def _name(group: Group) -> str:
    return f"{group.strategy_label} over {group.transport}"


def _mean_coverage(groups: Sequence[Group]) -> float | None:
    coverage = Spread.of(COVERAGE.of(row) for group in groups for row in group.ok_rows)
    return coverage.mean if coverage else None


def _mean_overlap(groups: Sequence[Group]) -> float | None:
    overlap = Spread.of(OVERLAP.of(row) for group in groups for row in group.ok_rows)
    return overlap.mean if overlap else None


def _both_held(one: str, mine: Sequence[Group], other: str, theirs: Sequence[Group]) -> str:
    """What both used, once if it is the same."""
    used, others = _held(mine), _held(theirs)
    return f"{one} and {other} {used}" if used == others else f"{one} {used}; {other} {others}"


def _held(groups: Sequence[Group]) -> str:
    """`used 68.4% of the training set in epoch 1, 26.1% on several nodes`."""
    coverage, overlap = _mean_coverage(groups), _mean_overlap(groups)
    skew = Spread.of(JS_MEAN.of(row) for group in groups for row in group.ok_rows)
    if coverage is None or overlap is None:
        return "did not report their samples"
    several = f"{percent(overlap)} on several nodes" if overlap else "none on several nodes"
    labels = [f"a label divergence of {skew.mean:.2f} bits"] if skew and skew.mean >= SKEWED_BITS else []
    uneven = [*labels, *_sizes(groups)]
    aside = f", with {listed(uneven)}" if uneven else ""
    return f"used {percent(coverage)} of the training set in epoch 1, {several}{aside}"


def _times(found: Sequence[Compared]) -> str:
    """What unequal parts cost in time, as a sentence; empty if parts are of about equal size."""
    measured = {_name(each.left): times for each in found if (times := _measured(each))}
    if not measured or not _sizes([each.left for each in found]):
        return ""
    parts = [f"{name} {seconds(one)} and {seconds(other)}" for name, (one, other) in measured.items()]
    return f" Parts are of unequal size; training was measured to take, in this order, {'; '.join(parts)}."


def _measured(pair: Compared) -> tuple[float, float] | None:
    """The times of two groups that were compared in accuracy, in seconds; None if they do not compare."""
    if not (TRAIN_S.sample(pair.left) and TRAIN_S.sample(pair.right)):
        return None
    return TRAIN_S.mean_of(pair.left), TRAIN_S.mean_of(pair.right)


def _sizes(groups: Sequence[Group]) -> list[str]:
    """`1,660 to 23,845 samples per rank`; nothing if the parts are of about equal size."""
    rows = [row for group in groups for row in group.ok_rows]
    samples = [part.samples for row in rows for part in row.parts]
    if not samples or max(samples) <= UNEQUAL * min(samples):
        return []
    return [f"{whole(min(samples))} to {whole(max(samples))} samples per rank"]

"""Findings about accuracy: what splitting costs, and which choice it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.report.comparison import Scene
from orchestrator.report.findings.base import REMARKS, Finding, Verdict, evidence, verdict
from orchestrator.report.formats import JOIN, listed, percent, points, size
from orchestrator.report.groups import Group, Spread
from orchestrator.report.labels import parameters
from orchestrator.report.rows import Row

NOTABLE_LOSS = 0.01  # of accuracy, from which it is worth a sentence
SKEWED_BITS = 0.02  # mean divergence of the nodes' labels from which it is worth a word


def _accuracy(row: Row) -> float | None:
    return row.accuracy


def _ranked(groups: Sequence[Group]) -> list[tuple[Spread, Group]]:
    """Groups with an accuracy, the best first."""
    ranked = [(spread, group) for group in groups if (spread := group.over(_accuracy))]
    return sorted(ranked, key=lambda item: -item[0].mean)


def best_and_worst(scene: Scene) -> Iterator[Finding]:
    """How near to serial the strategies come, and how far off the worst is."""
    ranked = _ranked(scene.rivals)
    if not ranked:
        return
    serial = scene.serial.over(_accuracy) if scene.serial else None
    best, group = ranked[0]
    text = (
        f"At {scene.shape.label} {scene.name(group)} reached "
        f"{'the best accuracy, ' if len(ranked) > 1 else 'an accuracy of '}{percent(best.mean)}"
        f"{_to_serial(best, serial, group)}."
    )
    rows = [group, scene.serial]
    if len(ranked) > 1:
        worst, last = ranked[-1]
        if verdict(best, worst) != "equal":
            text += (
                f" The worst was {scene.name(last)}: {percent(worst.mean)}"
                f"{_to_serial(worst, serial, last)}."
            )
            rows.append(last)
    yield Finding("finding", text, evidence(rows))


def _to_serial(spread: Spread, serial: Spread | None, group: Group) -> str:
    difference = group.over(lambda row: row.accuracy_difference)
    if not serial or not difference:
        return ""
    remark = REMARKS[verdict(spread, serial)]
    return f", {points(difference.mean)} from serial's {percent(serial.mean)}{remark}"


def fewer_steps(scene: Scene) -> Iterator[Finding]:
    """Why accuracy falls at equal epochs: every node takes fewer steps than serial does."""
    serial = scene.serial.over(lambda row: row.steps) if scene.serial else None
    steps = Spread.of(row.steps for group in scene.rivals for row in group.ok_rows)
    losing = [
        group
        for group in scene.rivals
        if scene.serial
        and (own := group.over(_accuracy))
        and (reference := scene.serial.over(_accuracy))
        and own.mean < reference.mean
        and not own.overlaps(reference)
    ]
    if not losing or not serial or not steps or steps.high >= serial.low:
        return
    yield Finding(
        "finding",
        f"Same samples, fewer steps: at {scene.shape.label} a rank took "
        f"{_whole(steps)} optimiser steps in the run where serial took {_whole(serial)}. "
        f"At equal epochs that alone can cost accuracy.",
        evidence([*losing, scene.serial]),
    )


def _whole(spread: Spread) -> str:
    return spread.range(lambda value: f"{value:,.0f}")


def averaging(scene: Scene) -> Iterator[Finding]:
    """What the average of the nodes' models is worth beside the models themselves."""
    for group in scene.rivals:
        own, gain = group.over(lambda row: row.own_accuracy), group.over(lambda row: row.averaging_gain)
        final = group.over(_accuracy)
        if not own or not gain or not final:
            continue
        if gain.low < 0 < gain.high:
            effect = f"changes that by {points(gain.mean)}, which is within the spread of seeds"
        elif points(gain.mean) == points(0.0):
            effect = "changes nothing"
        else:
            verb = "gains" if gain.mean > 0 else "loses"
            remark = "" if gain.seeds > 1 else " (not repeated)"
            effect = f"{verb} {points(abs(gain.mean)).removeprefix('+')}{remark}"
        yield Finding(
            "finding",
            f"{scene.name(group)} at {scene.shape.label}: the nodes' own models reached "
            f"{percent(own.mean)} on average. Averaging them {effect}: "
            f"{percent(final.mean)}.",
            evidence([group]),
        )


def variants(scene: Scene) -> Iterator[Finding]:
    """The same strategy with other parameters than the default, all else equal."""
    cells: dict[tuple[str | int, ...], list[Group]] = {}
    for group in scene.rivals:
        cells.setdefault((group.strategy, *group.line[1:]), []).append(group)
    for groups in cells.values():
        plain = next((group for group in groups if group.strategy_label == group.strategy), groups[0])
        for other in groups:
            left, right = plain.over(_accuracy), other.over(_accuracy)
            if plain.strategy_label == other.strategy_label or not left or not right:
                continue
            mine, others = _telling(plain, other)
            yield Finding(
                "finding",
                f"{plain.strategy} over {plain.transport}{scene.partitioner(plain)} at "
                f"{scene.shape.label} reached {percent(left.mean)} with {mine} and "
                f"{percent(right.mean)} with {others}: {points(right.mean - left.mean)}"
                f"{REMARKS[verdict(left, right)]}{_saving(plain, other)}.",
                evidence([plain, other]),
            )


def _saving(one: Group, other: Group) -> str:
    """What each sent, if that differs."""
    left, right = (group.over(lambda row: row.bytes_sent_per_rank) for group in (one, other))
    if not left or not right or left.mean == right.mean:
        return ""
    return f"; a rank sent {size(left.mean)} and {size(right.mean)}"


def _telling(one: Group, other: Group) -> tuple[str, str]:
    """The parameters in which two groups of one strategy differ."""
    mine, others = (parameters(group.first.run, "strategy") for group in (one, other))
    names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
    left, right = (", ".join(f"{name}={side.get(name)}" for name in names) for side in (mine, others))
    return left, right


def partitioners(scene: Scene) -> Iterator[Finding]:
    """What another way to share out the samples does to coverage, overlap and accuracy."""
    reference, *others = scene.partitioners or [""]
    for label in others:
        pairs = _pairs(scene, reference, label)
        effects = _effects(pairs)
        if not effects:
            continue
        yield Finding(
            "finding",
            f"At {scene.shape.label} {_held(label, [other for _, other in pairs])}; "
            f"{_held(reference, [one for one, _ in pairs])}. "
            f"Accuracy with {label} rather than {reference}: {effects}.",
            evidence(group for pair in pairs for group in pair),
        )


def recovery(scene: Scene) -> Iterator[Finding]:
    """Which strategy suffers most under a partitioner, and how much of that another one wins back."""
    reference, *others = scene.partitioners or [""]
    for label in others:
        losses = [
            (before.mean - after.mean, one, other)
            for one, other in _pairs(scene, reference, label)
            if (before := one.over(_accuracy))
            and (after := other.over(_accuracy))
            and verdict(before, after) == "beyond"
        ]
        if not losses:
            continue
        loss, one, worst = max(losses, key=lambda item: item[0])
        better = [
            (found.mean - left.mean, group)
            for group in scene.rivals
            if group.partitioner_label == label
            and (found := group.over(_accuracy))
            and (left := worst.over(_accuracy))
            and verdict(found, left) == "beyond"
        ]
        gain, best = max(better, key=lambda item: item[0], default=(0.0, worst))
        if loss < NOTABLE_LOSS:
            continue
        text = (
            f"Under {label}, {_plain_name(worst)} loses {_number(loss)} points against {reference} "
            f"at {scene.shape.label}"
        )
        if gain > 0:
            won = "all of them" if gain >= loss else f"{_number(gain)} of them"
            text += f"; {_plain_name(best)} recovers {won}"
        yield Finding("finding", text + ".", evidence([one, worst, *([best] if gain > 0 else [])]))


def _pairs(scene: Scene, reference: str, label: str) -> list[tuple[Group, Group]]:
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
        left, right = one.over(_accuracy), other.over(_accuracy)
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

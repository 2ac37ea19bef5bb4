"""Findings about accuracy: what splitting costs, and which choice it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import percent, points, size, whole
from orchestrator.report.metrics.learning import as_many_epochs, target_reached
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Spread
from orchestrator.report.model.labels import PACE, parameters


def _ranked(groups: Sequence[Group]) -> list[tuple[Spread, Group]]:
    """Groups with an accuracy, the best first; not of runs that ended where they had reached a target."""
    ranked = [(spread, group) for group in groups if (spread := group.accuracy) and not _ended(group)]
    return sorted(ranked, key=lambda item: -item[0].mean)


def _ended(group: Group) -> bool:
    return any(target_reached(row) for row in group.ok_rows)


def best_and_worst(scene: WorkloadView) -> Iterator[Finding]:
    """How near to serial the strategies come, and how far off the worst is."""
    ranked = _ranked(scene.rivals)
    if not ranked:
        return
    serial = scene.serial.accuracy if scene.serial else None
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


def fewer_steps(scene: WorkloadView) -> Iterator[Finding]:
    """Why accuracy falls at equal epochs: every node takes fewer steps than serial does."""
    serial = scene.serial.over(lambda row: row.steps) if scene.serial else None
    losing = [
        group
        for group in scene.rivals
        if scene.serial
        and as_many_epochs([*group.ok_rows, *scene.serial.ok_rows])
        and (own := group.accuracy)
        and (reference := scene.serial.accuracy)
        and own.mean < reference.mean
        and not own.overlaps(reference)
    ]
    steps = Spread.of(row.steps for group in losing for row in group.ok_rows)
    if not serial or not steps or steps.high >= serial.low:
        return
    yield Finding(
        "finding",
        f"Same samples, fewer steps: at {scene.shape.label} a rank took "
        f"{_whole(steps)} optimiser steps in the run where serial took {_whole(serial)}. "
        f"At equal epochs that alone can cost accuracy.",
        evidence([*losing, scene.serial]),
    )


def _whole(spread: Spread) -> str:
    return spread.range(whole)


def averaging(scene: WorkloadView) -> Iterator[Finding]:
    """What the average of the nodes' models is worth beside the models themselves."""
    for group in scene.in_lines:
        if group not in scene.rivals:
            continue
        own, gain = group.over(lambda row: row.local_accuracy), group.over(lambda row: row.averaging_gain)
        final = group.accuracy
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


def variants(scene: WorkloadView) -> Iterator[Finding]:
    """The same strategy with other parameters than the default, all else equal."""
    cells: dict[tuple[str | int, ...], list[Group]] = {}
    for group in scene.rivals:
        cells.setdefault((group.strategy, *group.line[1:]), []).append(group)
    for groups in cells.values():
        plain = next((group for group in groups if group.strategy_label == group.strategy), groups[0])
        for other in groups:
            left, right = plain.accuracy, other.accuracy
            if plain.strategy_label == other.strategy_label or not left or not right:
                continue
            if (
                plain.first.run.strategy.partitions_model
            ):  # what a copy learns is the same, however it is cut
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
    mine, others = (
        {**parameters(run, "strategy"), **{name: str(getattr(run, name)) for name in PACE}}
        for run in (one.first.run, other.first.run)
    )
    names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
    left, right = (", ".join(f"{name}={side.get(name)}" for name in names) for side in (mine, others))
    return left, right

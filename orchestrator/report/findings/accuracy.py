"""Findings about accuracy: its distance to serial, and the choices it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.report.findings.base import REMARKS, Finding, evidence
from orchestrator.report.formats import percent, points, size, whole
from orchestrator.report.metrics.learning import same_epochs, target_reached
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import LR_SCHEDULE_FIELDS, parameters
from orchestrator.report.statistics.spread import Spread, compare_spreads


def _ranked(groups: Sequence[Group]) -> list[tuple[Spread, Group]]:
    """Groups by accuracy, the best first; without runs that ended at a target accuracy."""
    ranked = [(spread, group) for group in groups if (spread := group.accuracy) and not _ended_early(group)]
    return sorted(ranked, key=lambda item: -item[0].mean)


def _ended_early(group: Group) -> bool:
    return any(target_reached(row) for row in group.ok_rows)


def best_accuracy(view: WorkloadView) -> Iterator[Finding]:
    """The best and the worst accuracy, and their differences to serial."""
    ranked = _ranked(view.candidates)
    if not ranked:
        return
    serial = view.serial.accuracy if view.serial else None
    best, group = ranked[0]
    data: dict[str, Any] = {"best": view.name(group), "accuracy": best.mean}
    if serial:
        data |= {"serial_accuracy": serial.mean, "verdict": compare_spreads(best, serial)}
    text = (
        f"At {view.shape.label}, {view.name(group)} reached "
        f"{'the best accuracy,' if len(ranked) > 1 else 'an accuracy of'} {percent(best.mean)}"
        f"{_from_serial(best, serial, group)}."
    )
    rows = [group, view.serial]
    if len(ranked) > 1:
        worst, last = ranked[-1]
        if compare_spreads(best, worst) != "equal":
            data |= {"worst": view.name(last), "worst_accuracy": worst.mean}
            text += (
                f" The worst was {view.name(last)}: {percent(worst.mean)}"
                f"{_from_serial(worst, serial, last)}."
            )
            rows.append(last)
    yield Finding("best_accuracy", text, evidence(rows), data)


def _from_serial(spread: Spread, serial: Spread | None, group: Group) -> str:
    difference = group.over(lambda row: row.accuracy_difference)
    if not serial or not difference:
        return ""
    remark = REMARKS[compare_spreads(spread, serial)]
    return f" ({points(difference.mean)} from serial's {percent(serial.mean)}{remark})"


def fewer_steps(view: WorkloadView) -> Iterator[Finding]:
    """A reason for lost accuracy at equal epochs: each rank takes fewer steps than serial."""
    serial = view.serial.over(lambda row: row.steps) if view.serial else None
    losing = [
        group
        for group in view.candidates
        if view.serial
        and same_epochs([*group.ok_rows, *view.serial.ok_rows])
        and (accuracy := group.accuracy)
        and (reference := view.serial.accuracy)
        and accuracy.mean < reference.mean
        and not accuracy.overlaps(reference)
    ]
    steps = Spread.of(row.steps for group in losing for row in group.ok_rows)
    if not serial or not steps or steps.high >= serial.low:
        return
    yield Finding(
        "fewer_steps",
        f"Same samples, fewer steps: at {view.shape.label} a rank of the strategies below serial took "
        f"{steps.range(whole)} optimizer steps, serial {serial.range(whole)}. "
        f"At equal epochs this alone can cost accuracy.",
        evidence([*losing, view.serial]),
        {"steps": (steps.low, steps.high), "serial_steps": (serial.low, serial.high)},
    )


def averaging(view: WorkloadView) -> Iterator[Finding]:
    """The accuracy of the averaged model against that of the nodes' local models."""
    for group in view.line_groups:
        if group not in view.candidates:
            continue
        local, gain = group.over(lambda row: row.local_accuracy), group.over(lambda row: row.averaging_gain)
        final = group.accuracy
        if not local or not gain or not final:
            continue
        if gain.low < 0 < gain.high:
            effect, verdict = (
                f"changes that by {points(gain.mean)}, within the range over seeds",
                "within_range",
            )
        elif points(gain.mean) == points(0.0):
            effect, verdict = "changes nothing", "equal"
        else:
            verb = "gains" if gain.mean > 0 else "loses"
            remark = "" if gain.seeds > 1 else " (not repeated)"
            effect, verdict = f"{verb} {points(abs(gain.mean)).removeprefix('+')}{remark}", verb
        yield Finding(
            "averaging",
            f"{view.name(group)} at {view.shape.label}: the nodes' local models reached "
            f"{percent(local.mean)} on average. Averaging them {effect}: {percent(final.mean)}.",
            evidence([group]),
            {
                "strategy": view.name(group),
                "local_accuracy": local.mean,
                "accuracy": final.mean,
                "gain": gain.mean,
                "effect": verdict,
            },
        )


def variants(view: WorkloadView) -> Iterator[Finding]:
    """A strategy with other parameters than the default, all else equal."""
    same: dict[tuple[str | int, ...], list[Group]] = {}
    for group in view.candidates:
        same.setdefault((group.strategy, *group.line[1:]), []).append(group)
    for groups in same.values():
        default = next((group for group in groups if group.strategy_label == group.strategy), groups[0])
        for other in groups:
            left, right = default.accuracy, other.accuracy
            if default.strategy_label == other.strategy_label or not left or not right:
                continue
            if default.first.run.strategy.partitions_model:  # equal mathematics however it is partitioned
                continue
            mine, others = _differing_parameters(default, other)
            verdict = compare_spreads(left, right)
            yield Finding(
                "variant",
                f"{default.strategy} over {default.transport}{view.partitioner(default)} at "
                f"{view.shape.label} reached {percent(left.mean)} with {_pairs(mine)} and "
                f"{percent(right.mean)} with {_pairs(others)}: {points(right.mean - left.mean)}"
                f"{REMARKS[verdict]}{_sent(default, other)}.",
                evidence([default, other]),
                {
                    "strategy": default.strategy,
                    "parameters": (mine, others),
                    "accuracy": (left.mean, right.mean),
                    "bytes_sent": tuple(
                        sent.mean if (sent := group.over(lambda row: row.bytes_sent_per_rank)) else None
                        for group in (default, other)
                    ),
                    "verdict": verdict,
                },
            )


def _sent(one: Group, other: Group) -> str:
    """The bytes that each group sent, if they differ."""
    left, right = (group.over(lambda row: row.bytes_sent_per_rank) for group in (one, other))
    if not left or not right or left.mean == right.mean:
        return ""
    return f"; a rank sent {size(left.mean)} and {size(right.mean)}"


def _differing_parameters(one: Group, other: Group) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """The parameters in which two groups of one strategy differ."""
    mine, others = (
        {**parameters(run, "strategy"), **{name: str(getattr(run, name)) for name in LR_SCHEDULE_FIELDS}}
        for run in (one.first.run, other.first.run)
    )
    names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
    return {name: mine.get(name) for name in names}, {name: others.get(name) for name in names}


def _pairs(values: dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())

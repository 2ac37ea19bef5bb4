"""Findings about models that several nodes hold: what that saves, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import listed, percent, seconds, size
from orchestrator.report.metrics.model_partition import (
    LESS,
    balance,
    bubble,
    bubble_formula,
    cut_bytes_per_step,
    divides,
    memory_bytes,
    step_s,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Spread
from orchestrator.report.model.split_points import halves

FEWEST = 3  # cuts of which one is worth being called the best
WHOLE = "all_reduce"  # every node has all of the model, and the mathematics is the same


def least_memory(scene: WorkloadView) -> Iterator[Finding]:
    """The strategy whose fullest rank keeps least, and what a step takes there and elsewhere."""
    kept = [(spread, group) for group in scene.usual if (spread := group.over(memory_bytes))]
    if not kept or not divides(scene.groups):
        return
    least, best = min(kept, key=lambda item: (item[0].mean, _step(item[1])))
    serial = scene.serial.over(memory_bytes) if scene.serial else None
    most = serial or max((spread for spread, _ in kept), key=lambda spread: spread.mean)
    if least.mean >= LESS * most.mean:
        return
    whose = "serial's" if serial else "the most of any strategy's"
    text = (
        f"At {scene.shape.label} {scene.name(best)} asked least of a node: its fullest rank kept "
        f"{size(least.mean)} of weights, gradient, optimizer state and activations, "
        f"{percent(least.mean / most.mean)} of {whose} {size(most.mean)}."
    )
    others = [group for group in scene.usual if group.strategy_label == WHOLE and group is not best]
    rivals = [group for group in [*others[:1], scene.serial] if group and _comparable(group)]
    mine = best.over(step_s) if _comparable(best) else None
    told = [
        f"{seconds(theirs.mean)} in {scene.name(group)}{_aside(REMARKS[verdict(mine, theirs)])}"
        for group in rivals
        if mine and (theirs := group.over(step_s))
    ]
    if mine and told:
        text += f" A step took {seconds(mine.mean)}, against {listed(told)}."
    yield Finding("finding", text, evidence([best, *rivals, scene.serial]))


def _step(group: Group) -> float:
    spread = group.over(step_s)
    return spread.mean if spread else float("inf")


def _aside(remark: str) -> str:
    """A remark in brackets: it stands inside a list."""
    return f" ({remark.removeprefix(', ')})" if remark else ""


def idle_stages(scene: WorkloadView) -> Iterator[Finding]:
    """How long stages stood idle, against the formula: where that says least and where it says most."""
    idle = [
        (formula, measured, group)
        for group in scene.rivals
        if _comparable(group)
        and (formula := group.over(bubble_formula))
        and formula.mean > 0
        and (measured := group.over(bubble))
    ]
    if not idle:
        return
    idle.sort(key=lambda item: (item[0].mean, item[1].mean))
    shown = idle[:1] if idle[0][0].mean == idle[-1][0].mean else [idle[0], idle[-1]]
    told = [_idle(scene, *each) for each in shown]
    groups = [group for _, _, group in shown]
    above = "" if not all(m.mean > f.mean for f, m, _ in shown) else _why(groups)
    yield Finding(
        "finding",
        f"Stages stood idle and waited, as a share of training time at {scene.shape.label}: {listed(told)}."
        f"{above}",
        evidence(groups),
    )


def _idle(scene: WorkloadView, formula: Spread, measured: Spread, group: Group) -> str:
    return f"{percent(measured.mean)} in {scene.name(group)} ({percent(formula.mean)} by the formula)"


def _why(groups: list[Group]) -> str:
    text = " The formula takes all stages for equally long and sending for free"
    if any(group.first.shares_cores for group in groups):
        text += "; here they shared cores, so a stage also waited for one whose core was taken"
    return f"{text}."


def best_cut(scene: WorkloadView) -> Iterator[Finding]:
    """Of several cuts in two the fastest, the slowest, and the one that is made if none is asked for."""
    tried = halves(scene.groups)
    if not tried or len(tried.by_cut) < FEWEST:
        return
    timed = [
        (spread, block, group)
        for block, group in tried.by_cut.items()
        if _comparable(group) and (spread := group.over(step_s))
    ]
    if len(timed) < FEWEST:
        return
    timed.sort(key=lambda item: item[0].mean)
    (best_s, best, fastest), (worst_s, worst, slowest) = timed[0], timed[-1]
    text = (
        f"Of {len(timed)} cuts of {tried.name} in two, the one before {best} was the fastest: "
        f"{seconds(best_s.mean)} per step{_how(fastest)}. The slowest was before {worst}: "
        f"{seconds(worst_s.mean)}{_how(slowest)}{REMARKS[verdict(best_s, worst_s)]}."
    )
    shown = [fastest, slowest]
    for spread, block, group in timed[1:]:
        if block == tried.default:
            text += (
                f" The default is before {block}: {seconds(spread.mean)}"
                f"{_how(group)}{REMARKS[verdict(best_s, spread)]}."
            )
            shown.append(group)
    if best == tried.default:
        text += " That is the default."
    yield Finding("finding", text, evidence(shown))


def _how(group: Group) -> str:
    even, sent = group.over(balance), group.over(cut_bytes_per_step)
    told = [f"balance {percent(even.mean)}"] if even else []
    told += [f"{size(sent.mean)} over the cut"] if sent else []
    return f" ({', '.join(told)})" if told else ""


def _comparable(group: Group) -> bool:
    return group.first.result.times_compare

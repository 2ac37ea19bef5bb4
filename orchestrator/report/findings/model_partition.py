"""Findings about model partitioning: memory saved, pipeline bubbles, and where to split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.formats import listed, percent, seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import two_stage_splits
from orchestrator.report.quantities import (
    BUBBLE,
    BUBBLE_FORMULA,
    LOAD_BALANCE,
    SPLIT_POINT_BYTES_PER_STEP,
    STEP_S,
)
from orchestrator.report.quantities.model_partition import NOTABLY_LESS, is_partitioned, memory_bytes
from orchestrator.report.statistics.spread import Spread

MIN_SPLIT_POINTS = 3  # among fewer, the fastest is not reported
DATA_PARALLEL = "all_reduce"  # the whole model on every node, with equal mathematics


def least_memory(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The strategy that needs least memory on any rank, and its time per step beside other strategies."""
    kept = [(spread, group) for group in view.reference_candidates if (spread := group.over(memory_bytes))]
    if not kept or not is_partitioned(view.groups):
        return
    least, best = min(kept, key=lambda item: (item[0].mean, _step(item[1])))
    serial = view.serial.over(memory_bytes) if view.serial else None
    most = serial or max((spread for spread, _ in kept), key=lambda spread: spread.mean)
    if least.mean >= NOTABLY_LESS * most.mean:
        return
    names = [view.name(group) for spread, group in kept if spread.mean == least.mean]
    whose = "serial's" if serial else "the largest strategy's"
    text = (
        f"At {view.shape.label}, by the sizes of their tensors, {listed(names)} kept least per node: the "
        f"fullest rank had "
        f"{size(least.mean)} of weights, gradient, optimizer state and activations, "
        f"{percent(least.mean / most.mean)} of {whose} {size(most.mean)}."
    )
    data: dict[str, Any] = {
        "strategy": view.name(best),
        "strategies": names,
        "bytes": least.mean,
        "compared_with": "serial" if serial else "the most of any strategy",
        "compared_bytes": most.mean,
    }
    others = [
        group
        for group in view.reference_candidates
        if group.strategy_label == DATA_PARALLEL and group is not best
    ]
    # Steps of other batches are other work.
    compared = [
        group
        for group in [*others[:1], view.serial]
        if group and _comparable(group) and _steps(group) == _steps(best)
    ]
    pairs = [(best, group) for group in compared if STEP_S.sample(best) and STEP_S.sample(group)]
    if steps := claims.pairs(STEP_S, pairs if _comparable(best) else []):
        parts = [
            f"{seconds(each.values[1])} in {view.name(each.right)}, {each.written}"
            for each in steps
            if each.right
        ]
        text += f" A step took {seconds(steps[0].values[0])}, against {listed(parts)}."
        data["compared"] = compared_data(steps)
    yield Finding("least_memory", text, evidence([best, *compared, view.serial]), data)


def _steps(group: Group) -> Spread | None:
    return group.over(lambda row: row.steps)


def _step(group: Group) -> float:
    return STEP_S.mean_of(group) if STEP_S.sample(group) else float("inf")


def bubble_fractions(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Measured bubbles beside the formula, at its smallest and at its largest value."""
    known = [
        (formula, measured, group)
        for group in view.candidates
        if _comparable(group)
        and (formula := BUBBLE_FORMULA.over(group))
        and formula.mean > 0
        and (measured := BUBBLE.over(group))
    ]
    if not known:
        return
    known.sort(key=lambda item: (item[0].mean, item[1].mean))
    shown = known[:1] if known[0][0].mean == known[-1][0].mean else [known[0], known[-1]]
    parts = [
        f"{percent(measured.mean)} in {view.name(group)} (formula: {percent(formula.mean)})"
        for formula, measured, group in shown
    ]
    groups = [group for _, _, group in shown]
    above = all(measured.mean > formula.mean for formula, measured, _ in shown)
    yield Finding(
        "bubble",
        f"Pipeline bubble, the share of {view.clock} time that stages wait, at {view.shape.label}: "
        f"{listed(parts)}.{_reason(groups) if above else ''}",
        evidence(groups),
        {
            "bubble": {view.name(group): measured.mean for _, measured, group in shown},
            "formula": {view.name(group): formula.mean for formula, _, group in shown},
            "shared_cores": above and _share_cores(groups),
        },
    )


def _share_cores(groups: list[Group]) -> bool:
    return any(group.first.shares_cores for group in groups)


def _reason(groups: list[Group]) -> str:
    text = " The formula assumes stages of equal length and free communication"
    if _share_cores(groups):
        text += "; here stages shared cores, so a stage also waited for stages whose core was taken"
    return f"{text}."


def split_point(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The fastest, the slowest and the default of several split points of a two-stage model."""
    splits = two_stage_splits(view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return
    blocks = {
        id(group): block
        for block, group in splits.by_block.items()
        if _comparable(group) and STEP_S.sample(group)
    }
    groups = [group for group in splits.by_block.values() if id(group) in blocks]
    if len(groups) < MIN_SPLIT_POINTS:
        return
    groups.sort(key=STEP_S.mean_of)
    ranking = claims.all_pairs(STEP_S, groups)
    fastest, slowest = groups[0], groups[-1]
    best, worst = blocks[id(fastest)], blocks[id(slowest)]
    claimed = "was the fastest" if ranking.best is fastest else "had the shortest step"
    text = (
        f"Of {len(groups)} split points of {splits.name} in two stages, the one before {best} {claimed}: "
        f"{seconds(STEP_S.mean_of(fastest))}{_details(fastest)}. "
        f"The step of the one before {worst} took {seconds(STEP_S.mean_of(slowest))}{_details(slowest)}: "
        f"{ranking.between(slowest, fastest).written}."
    )
    shown = [fastest, slowest]
    for group in groups[1:]:
        if blocks[id(group)] == splits.default:
            text += (
                f" The default is before {splits.default}: {seconds(STEP_S.mean_of(group))}"
                f"{_details(group)}, {ranking.between(group, fastest).written}."
            )
            shown.append(group)
    if best == splits.default:
        text += " It is the default."
    data = {
        "best": best,
        "worst": worst,
        "default": splits.default,
        "fastest": ranking.best is fastest,
        "step_s": {blocks[id(group)]: STEP_S.mean_of(group) for group in groups},
        "compared": compared_data(ranking.comparisons),
    }
    yield Finding("split_point", text, evidence(shown), data)


def _details(group: Group) -> str:
    balance, sent = LOAD_BALANCE.over(group), SPLIT_POINT_BYTES_PER_STEP.over(group)
    parts = [f"load balance {percent(balance.mean)}"] if balance else []
    parts += [f"{size(sent.mean)} of traffic"] if sent else []
    return f" ({', '.join(parts)})" if parts else ""


def _comparable(group: Group) -> bool:
    return group.first.times_compare

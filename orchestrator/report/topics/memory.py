"""Memory: what the fullest rank of each strategy holds."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from orchestrator.report.figures.axes import SIZE_AXIS
from orchestrator.report.figures.bars import Bar, part_scale, stacked_bars
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.model_partition import (
    NOTABLY_LESS,
    is_partitioned,
    memory_by_kind,
    memory_bytes,
)
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.topic import Findings, Topic

DATA_PARALLEL = "all_reduce"  # the whole model on every node, with equal mathematics


MEMORY = ("weights", "gradient", "optimizer", "activations")  # in the order of the stack


def least_memory(view: WorkloadView) -> Findings:
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
    data: dict[str, Any] = {
        "nodes": view.shape.label,
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
        if group and group.first.times_compare and _steps(group) == _steps(best)
    ]
    pairs = [(best, group) for group in compared]
    (answer,) = yield [Ask.of(Q.step_s, pairs if best.first.times_compare else [])]
    if steps := answer.compared:
        data |= {"names": [view.name(each.right) for each in steps], "compared": compared_data(steps)}
    yield Finding("least_memory", evidence([best, *compared, view.serial]), data)


def _steps(group: Group) -> Spread | None:
    return group.over(lambda row: row.steps)


def _step(group: Group) -> float:
    return Q.step_s.mean_of(group) if Q.step_s.sample(group) else float("inf")


def memory_per_rank(subject: Subject) -> Chart | None:
    """Stacked bars of each strategy's fullest rank, serial first, then by size.

    None if all ranks of all strategies keep the same amount, or none recorded it.
    """
    view = subject.view
    shown = [group for group in view.reference_candidates if _memory(group)]
    if not shown or not is_partitioned(shown):
        return None
    shown.sort(key=lambda group: sum(_memory(group).values()))
    serial = [view.serial] if view.serial and _memory(view.serial) else []
    kinds = [(group, _memory(group)) for group in [*serial, *shown]]
    bars = [Bar(group, amounts, size(sum(amounts.values()))) for group, amounts in kinds]
    axis = {"title": "bytes, mean over seeds", "labelExpr": SIZE_AXIS, "tickCount": 4}
    title = f"Memory of the fullest rank, {view.shape.label}"
    return stacked_bars(bars, part_scale(MEMORY, MEMORY), axis, size, title)


def _memory(group: Group) -> dict[str, float]:
    """Bytes of each kind, mean over seeds."""
    rows = [kinds for row in group.ok_rows if (kinds := memory_by_kind(row))]
    return {kind: fmean(each.get(kind, 0) for each in rows) for kind in MEMORY} if rows else {}


TOPIC = Topic(
    rules=(least_memory,),
    figures=(
        FigureKind(
            "memory",
            "model",
            "Of the rank that keeps most, mean over seeds: weights, gradient and optimizer state from "
            "step to step, activations from the forward to the backward pass. Samples, the interpreter "
            "and torch are not included.",
            memory_per_rank,
            shows=("least_memory",),
            otherwise=measured(Quantity(size, memory_bytes, "Memory of the fullest rank")),
            partitioners="first",
            links_matter=False,
        ),
    ),
)

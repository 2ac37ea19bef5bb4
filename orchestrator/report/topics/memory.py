"""Memory: what the fullest rank of each strategy holds."""

from __future__ import annotations

from math import inf
from statistics import fmean

from orchestrator.report.figures.axes import SIZE_AXIS
from orchestrator.report.figures.bars import Bar, of_groups, part_scale, stacked_bars
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
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
from orchestrator.report.topics.topic import Findings, Topic

DATA_PARALLEL = "all_reduce"  # the whole model on every node, with equal mathematics
FULLEST = Quantity(size, memory_bytes, "Memory of the fullest rank")
MEMORY = ("weights", "gradient", "optimizer", "activations")  # in the order of the stack


def least_memory(view: WorkloadView) -> Findings:
    """The strategy that needs least memory on any rank, and its time per step beside other strategies."""
    kept = [group for group in view.reference_candidates if FULLEST.sample(group)]
    if not kept or not is_partitioned(view.groups):
        return
    best = min(kept, key=lambda group: (FULLEST.mean_of(group), _step(group)))
    serial = view.serial if view.serial and FULLEST.sample(view.serial) else None
    least, most = FULLEST.mean_of(best), FULLEST.mean_of(serial or max(kept, key=FULLEST.mean_of))
    if least >= NOTABLY_LESS * most:
        return
    replicated = [group for group in view.reference_candidates if group.strategy_label == DATA_PARALLEL]
    others = [group for group in replicated if group is not best][:1]
    # Steps of other batches are other work.
    compared = [
        group
        for group in [*others, view.serial]
        if group and group.first.times_compare and Q.steps.over(group) == Q.steps.over(best)
    ]
    pairs = [(best, group) for group in compared if best.first.times_compare]
    (answer,) = yield [Ask.of(Q.step_s, pairs)]
    yield Finding.of(
        "least_memory",
        [best, *compared, view.serial],
        answer.compared,
        nodes=view.shape.label,
        strategies=[view.name(group) for group in kept if FULLEST.mean_of(group) == least],
        bytes=least,
        compared_with="serial" if serial else "the most of any strategy",
        compared_bytes=most,
        names=[view.name(each.right) for each in answer.compared],
    )


def _step(group: Group) -> float:
    return Q.step_s.mean_of(group) if Q.step_s.sample(group) else inf


def memory_per_rank(subject: Subject) -> Chart | None:
    """Stacked bars of each strategy's fullest rank, serial first, then by size.

    None if all ranks of all strategies keep the same amount, or none recorded it.
    """
    view = subject.view
    groups = [*([view.serial] if view.serial else []), *view.reference_candidates]
    kinds = [(group, _memory(group)) for group in groups]
    bars = [Bar(group, amounts, size(sum(amounts.values()))) for group, amounts in kinds if amounts]
    if not is_partitioned([bar.group for bar in bars if not bar.group.serial]):
        return None
    bars.sort(key=lambda bar: (not bar.group.serial, bar.total))
    axis = {"title": "bytes, mean over seeds", "labelExpr": SIZE_AXIS, "tickCount": 4}
    title = f"Memory of the fullest rank, {view.shape.label}"
    return stacked_bars(of_groups(bars), part_scale(MEMORY, MEMORY), axis, size, title)


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
            otherwise=measured(FULLEST),
            partitioners="first",
            links_matter=False,
        ),
    ),
)

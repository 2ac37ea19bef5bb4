"""Split points: where a model of two stages is split best."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import Column, dots
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import seconds
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.split_points import two_stage_splits
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.model_partition import busy_s
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.topics.topic import Findings, Topic

MIN_SPLIT_POINTS = 3  # among fewer, the fastest is not reported


def split_point(view: WorkloadView) -> Findings:
    """The fastest, the slowest and the default of several split points of a two-stage model."""
    splits = two_stage_splits(view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return
    blocks = {
        id(group): block
        for block, group in splits.by_block.items()
        if group.first.times_compare and Q.step_s.sample(group)
    }
    groups = [group for group in splits.by_block.values() if id(group) in blocks]
    if len(groups) < MIN_SPLIT_POINTS:
        return
    groups.sort(key=Q.step_s.mean_of)
    (ranking,) = yield [Ask.best(Q.step_s, groups)]
    fastest, slowest = groups[0], groups[-1]
    best, worst = blocks[id(fastest)], blocks[id(slowest)]
    default = next((group for group in groups if blocks[id(group)] == splits.default), None)
    shown = [fastest, slowest, *([default] if default not in (None, fastest) else [])]
    yield Finding(
        "split_point",
        evidence(shown),
        {
            "model": splits.name,
            "best": best,
            "worst": worst,
            "default": splits.default,
            "fastest": ranking.best is fastest,
            "step_s": {blocks[id(group)]: Q.step_s.mean_of(group) for group in groups},
            "load_balance": Q.load_balance.means(groups, lambda group: blocks[id(group)]),
            "traffic": Q.split_point_bytes_per_step_max.means(groups, lambda group: blocks[id(group)]),
            "to_best": {
                blocks[id(group)]: ranking.between(group, fastest).data() for group in shown[1:] if group
            },
            "compared": compared_data(ranking.compared),
        },
    )


def split_points_figure(subject: Subject) -> Chart | None:
    """Time per step, busy time of each stage, and traffic by split point; None with few split points."""
    splits = two_stage_splits(subject.view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return None
    rows = [
        (f"{block}, the default" if block == splits.default else block, group)
        for block, group in splits.by_block.items()
    ]
    first, second = map(_busy, (0, 1))
    columns = [
        Column(Q.step_s, "time per step, s"),
        Column(first, "busy time per step, s", second),
        Column(Q.load_balance, "load balance"),
        Column(Q.split_point_bytes_per_step_max, "traffic per step"),
    ]
    return dots(
        subject,
        rows,
        columns,
        f"Split points of {splits.name}, by the first block of stage 1",
        "Busy time: point, stage 0; vertical mark, stage 1",
    )


def _busy(stage: int) -> Quantity:
    return Quantity(seconds, lambda row: busy_s(row)[stage], f"stage {stage}")


TOPIC = Topic(
    rules=(split_point,),
    figures=(
        FigureKind(
            "split_points",
            "model",
            "The model in two stages, split before each of these blocks, all else equal; means with 95% "
            "intervals. The load balance is the mean / the maximum busy time. With several pipelines, the "
            "one with most split points.",
            split_points_figure,
            shows=("split_point",),
            otherwise=measured(Q.step_s),
        ),
    ),
)

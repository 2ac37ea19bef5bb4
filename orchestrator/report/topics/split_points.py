"""Split points: where a model of two stages is split best."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import Column, dots
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import percent, seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
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
    claimed = "was the fastest" if ranking.best is fastest else "had the shortest step"
    text = (
        f"Of {len(groups)} split points of {splits.name} in two stages, the one before {best} {claimed}: "
        f"{seconds(Q.step_s.mean_of(fastest))}{_details(fastest)}. "
        f"The step of the one before {worst} took {seconds(Q.step_s.mean_of(slowest))}{_details(slowest)}: "
        f"{ranking.between(slowest, fastest).written}."
    )
    shown = [fastest, slowest]
    for group in groups[1:]:
        if blocks[id(group)] == splits.default:
            text += (
                f" The default is before {splits.default}: {seconds(Q.step_s.mean_of(group))}"
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
        "step_s": {blocks[id(group)]: Q.step_s.mean_of(group) for group in groups},
        "compared": compared_data(ranking.compared),
    }
    yield Finding("split_point", text, evidence(shown), data)


def _details(group: Group) -> str:
    balance, sent = Q.load_balance.over(group), Q.split_point_bytes_per_step_max.over(group)
    parts = [f"load balance {percent(balance.mean)}"] if balance else []
    parts += [f"{size(sent.mean)} of traffic"] if sent else []
    return f" ({', '.join(parts)})" if parts else ""


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
            "intervals. Load balance: mean / maximum busy time. With several pipelines, the one with most "
            "split points.",
            split_points_figure,
            shows=("split_point",),
            otherwise=measured(Q.step_s),
        ),
    ),
)

"""Split points: where a model of two stages is split best."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import Column, dots
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
from orchestrator.report.formats import seconds
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
    timed = [
        group
        for group in (splits.by_block.values() if splits else ())
        if group.first.times_compare and Q.step_s.sample(group)
    ]
    if not splits or len(timed) < MIN_SPLIT_POINTS:
        return
    groups = sorted(timed, key=Q.step_s.mean_of)
    (ranking,) = yield [Ask.best(Q.step_s, groups)]
    fastest, *others, slowest = groups
    shown = [slowest, *(group for group in others if _block(group) == splits.default)]
    yield Finding.of(
        "split_point",
        [fastest, *shown],
        ranking.compared,
        model=splits.name,
        best=_block(fastest),
        worst=_block(slowest),
        default=splits.default,
        fastest=ranking.best is fastest,
        step_s=Q.step_s.means(groups, _block),
        load_balance=Q.load_balance.means(groups, _block),
        traffic=Q.split_point_bytes_per_step_max.means(groups, _block),
        to_best={_block(group): ranking.between(group, fastest).data() for group in shown},
    )


def _block(group: Group) -> str:
    """The first block of its second stage."""
    return group.ok_rows[0].split_points[0]


def split_points_figure(subject: Subject) -> Chart | None:
    """Time per step, busy time of each stage, and traffic by split point; None with few split points."""
    splits = two_stage_splits(subject.view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return None
    rows = [
        (f"{block}, the default" if block == splits.default else block, group)
        for block, group in splits.by_block.items()
    ]
    columns = [
        Column(Q.step_s, "time per step, s"),
        Column(_busy(0), "busy time per step, s", _busy(1)),
        Column(Q.load_balance, "load balance"),
        Column(Q.split_point_bytes_per_step_max, "traffic per step"),
    ]
    title = f"Split points of {splits.name}, by the first block of stage 1"
    return dots(subject, rows, columns, title, "Busy time: point, stage 0; vertical mark, stage 1")


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

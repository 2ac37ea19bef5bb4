"""Split points: where a model of two stages is split best."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from orchestrator.report.figures.axes import SIZE_AXIS
from orchestrator.report.figures.bars import top_legend
from orchestrator.report.figures.chart import WIDTH, Chart, chart_of, data_of, layered
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.sentences import measured
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.split_points import two_stage_splits
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.model_partition import busy_s
from orchestrator.report.topics.topic import Findings, Topic

MIN_SPLIT_POINTS = 3  # among fewer, the fastest is not reported


FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
STAGE_TOKENS = {"stage 0": "compute", "stage 1": "communicate"}


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


def split_points_figure(view: WorkloadView, style: Style) -> Chart | None:
    """Time per step, busy time of each stage, and traffic by split point; None with few split points."""
    splits = two_stage_splits(view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return None
    blocks = list(splits.by_block)
    records = [_split(block, group) for block, group in splits.by_block.items()]
    token = style.look(splits.representative).colour
    behind = [_default(splits.default)] if splits.default else []
    panels = [_times(records, token, behind), _busy(records, behind), _traffic(records, behind)]
    drawn = [
        panel.encode(x=_blocks(blocks, last=panel is panels[-1])).properties(width=WIDTH, height=height)
        for panel, height in zip(panels, (120, 120, 80), strict=True)
    ]
    note = f"Dashed line: {splits.default}, the default" if splits.default else ""
    title = alt.TitleParams(f"Split points of {splits.name}", subtitle=note)
    return Chart.of(
        alt.vconcat(*drawn, spacing=18).resolve_scale(color="independent").properties(title=title)
    )


def _blocks(blocks: Sequence[str], last: bool) -> alt.X:
    axis = alt.Axis(title="first block of stage 1" if last else None, labels=last, labelAngle=0)
    scale = alt.Scale(type="band", domain=list(blocks), paddingInner=0.3, paddingOuter=0.15)
    return alt.X("block:N", sort=list(blocks), axis=axis, scale=scale)


def _default(block: str) -> alt.Chart:
    """A line at the default, behind the other marks."""
    rule = alt.MarkDef(type="rule", strokeDash=[3, 3], color=colour("axis"), aria=False)
    return alt.Chart(data_of([{"block": block}]), mark=rule)


def _split(block: str, group: Group) -> dict[str, Any]:
    spread = Q.step_s.over(group)
    stages = [fmean(seconds) for seconds in zip(*map(busy_s, group.ok_rows), strict=True)]
    return {
        "block": block,
        "step": spread.mean if spread else None,
        "low": spread.low if spread else None,
        "high": spread.high if spread else None,
        "written": seconds(spread.mean if spread else None),
        "stages": stages,
        "balance": _mean(group, Q.load_balance.of),
        "bytes": _mean(group, Q.split_point_bytes_per_step_max.of),
    }


def _times(records: Sequence[dict[str, Any]], token: str, behind: Sequence[alt.Chart]) -> alt.LayerChart:
    base = chart_of(records)
    axis = alt.Axis(title="s", tickCount=4, grid=True)
    band = base.mark_area(color=token, opacity=0.15, aria=False).encode(
        y=alt.Y("low:Q", axis=axis, scale=alt.Scale(zero=True)), y2="high:Q"
    )
    line = base.mark_line(color=token, aria=False).encode(y="step:Q")
    points = base.mark_circle(color=token, size=60, opacity=1).encode(
        y="step:Q", tooltip=["block:N", alt.Tooltip("written:N", title="time per step")]
    )
    return layered(*behind, band, line, points).properties(title="time per step")


def _busy(records: Sequence[dict[str, Any]], behind: Sequence[alt.Chart]) -> alt.LayerChart:
    """The busy time of both stages side by side, with their load balance above."""
    stages = [
        {"block": each["block"], "stage": stage, "busy": busy, "written": seconds(busy)}
        for each in records
        for stage, busy in zip(STAGE_TOKENS, each["stages"], strict=True)
    ]
    most = [
        {"block": each["block"], "busy": max(each["stages"]), "of": each["balance"]} for each in records
    ]
    scale = alt.Scale(domain=list(STAGE_TOKENS), range=[colour(token) for token in STAGE_TOKENS.values()])
    axis = alt.Axis(title="s", tickCount=4, grid=True)
    top = alt.Scale(domain=[0, 1.15 * max(each["busy"] for each in most) or 1], nice=False)
    bars = (
        chart_of(stages)
        .mark_bar()
        .encode(
            y=alt.Y("busy:Q", axis=axis, scale=top),
            xOffset="stage:N",
            color=alt.Color("stage:N", scale=scale, legend=top_legend()),
            tooltip=["block:N", "stage:N", alt.Tooltip("written:N", title="busy per step")],
        )
    )
    balance = (
        chart_of(most).mark_text(dy=-7, fontSize=11).encode(y="busy:Q", text=alt.Text("of:Q", format=".0%"))
    )
    title = "busy time of each stage per step, and load balance"
    return layered(*behind, bars, balance).properties(title=title)


def _traffic(records: Sequence[dict[str, Any]], behind: Sequence[alt.Chart]) -> alt.LayerChart:
    amounts = [
        {"block": each["block"], "bytes": each["bytes"], "written": size(each["bytes"])} for each in records
    ]
    values = [each["bytes"] for each in records]
    log = min(values) > 0 and max(values) > FAR_APART * min(values)
    scale = (
        alt.Scale(type="log", domain=[min(values) / 4, 3 * max(values)], nice=False) if log else alt.Scale()
    )
    axis = alt.Axis(title=None, labelExpr=SIZE_AXIS, tickCount=3, grid=True)
    base = chart_of(amounts).encode(y=alt.Y("bytes:Q", axis=axis, scale=scale))
    tooltip = ["block:N", alt.Tooltip("written:N", title="traffic per step")]
    mark = (
        base.mark_circle(color=colour("compute"), size=70, opacity=1)  # a bar has no zero on this axis
        if log
        else base.mark_bar(color=colour("compute"), width={"band": 0.6})
    )
    title = "traffic over the split point per step" + (", log scale" if log else "")
    return layered(*behind, mark.encode(tooltip=tooltip)).properties(title=title)


def _mean(group: Group, metric: Metric) -> float:
    spread = group.over(metric)
    return spread.mean if spread else 0.0


TOPIC = Topic(
    rules=(split_point,),
    figures=(
        FigureKind(
            "split_points",
            "model",
            "The model in two stages, split before each of these blocks, all else equal; mean over seeds; "
            "the band is the range over seeds. Percent: load balance, mean / maximum busy time. With "
            "several pipelines, the one with most split points.",
            lambda subject: split_points_figure(subject.view, subject.style),
            shows=("split_point",),
            otherwise=measured(Q.step_s),
        ),
    ),
)

"""Figures of model partitioning: memory of the fullest rank, pipeline bubbles, and split points."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from orchestrator.report import formats
from orchestrator.report.figures.bars import (
    Bar,
    bar_names,
    fold,
    name_axis,
    stacked_bars,
    step_of,
    top_legend,
    width_beside,
)
from orchestrator.report.figures.chart import WIDTH, Chart, chart_of, data_of, layered
from orchestrator.report.figures.style import Style, series_name, short_name
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.split_points import one_per_split, two_stage_splits
from orchestrator.report.quantities import (
    BUBBLE,
    BUBBLE_FORMULA,
    LOAD_BALANCE,
    SPLIT_POINT_BYTES_PER_STEP,
    STEP_S,
)
from orchestrator.report.quantities.model_partition import busy_s, is_partitioned, memory_by_kind

MIN_SPLIT_POINTS = 3  # fewer are shown by the table alone
FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
MEMORY = ("weights", "gradient", "optimizer", "activations")  # in the order of the stack
STAGE_TOKENS = {"stage 0": "compute", "stage 1": "communicate"}
# Labels of an axis of bytes, as formats.size writes them.
SIZE_AXIS = (
    "datum.value < 1000 ? format(datum.value, 'd') + ' B' : "
    "format(datum.value / pow(1000, floor(log(datum.value * 1.000001) / log(1000))), '.3~r') + ' ' + "
    "['B', 'kB', 'MB', 'GB', 'TB'][floor(log(datum.value * 1.000001) / log(1000))]"
)


def memory_per_rank(view: WorkloadView) -> Chart | None:
    """Stacked bars of each strategy's fullest rank, serial first, then by size.

    None if all ranks of all strategies keep the same amount, or none recorded it.
    """
    shown = [(group, _memory(group)) for group in view.reference_candidates]
    shown = [(group, kinds) for group, kinds in shown if kinds]
    if not shown or not is_partitioned([group for group, _ in shown]):
        return None
    shown.sort(key=lambda item: sum(item[1].values()))
    if view.serial and (whole := _memory(view.serial)):
        shown.insert(0, (view.serial, whole))
    names = bar_names([group for group, _ in shown])
    bars = [
        Bar(series_name(group), name, kinds, formats.size(sum(kinds.values())))
        for (group, kinds), name in zip(shown, names, strict=True)
    ]
    scale = alt.Scale(domain=list(MEMORY), range=[colour(kind) for kind in MEMORY])
    axis = alt.Axis(
        title="bytes, mean over seeds", labelExpr=SIZE_AXIS, tickCount=4, grid=True, labelFlush=False
    )
    title = alt.TitleParams(f"Memory of the fullest rank, {view.shape.label}")
    return Chart.of(stacked_bars(bars, scale, axis, formats.size, title))


def _memory(group: Group) -> dict[str, float]:
    """Bytes of each kind, mean over seeds."""
    rows = [kinds for row in group.ok_rows if (kinds := memory_by_kind(row))]
    return {kind: fmean(each.get(kind, 0) for each in rows) for kind in MEMORY} if rows else {}


def bubbles(view: WorkloadView, style: Style) -> Chart | None:
    """The measured bubble and the formula for each pipeline of every size; None for a single one."""
    known = [group for group in one_per_split(view.groups) if BUBBLE.over(group)]
    shown = sorted(known, key=_formula)
    if len(shown) < 2:
        return None
    names = [fold(f"{short_name(group)}, {group.shape.label}") for group in shown]
    records = [_bubble(group, name) for group, name in zip(shown, names, strict=True)]
    axis = alt.Axis(
        title=f"share of {view.clock} time that stages wait", format=".0%", tickCount=5, grid=True
    )
    most = max(max(record["high"], record["formula"]) for record in records)
    scale = alt.Scale(domain=[0, 1.06 * most or 1], nice=False)
    base = chart_of(records).encode(
        y=name_axis(names),
        tooltip=[
            alt.Tooltip("name:N", title="strategy"),
            alt.Tooltip("measured:Q", format=".1%"),
            alt.Tooltip("formula:Q", format=".1%"),
            alt.Tooltip("range:N", title="over seeds"),
        ],
    )
    colours = alt.Color("series:N", scale=style.colours(shown), legend=None)
    spans = base.mark_rule(strokeWidth=5, opacity=0.35, strokeCap="round").encode(
        x=alt.X("low:Q", axis=axis, scale=scale), x2="high:Q", color=colours
    )
    formulas = base.mark_tick(thickness=2, height=20, color=colour("ink")).encode(x="formula:Q")
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(
        x="measured:Q",
        color=colours,
        shape=alt.Shape("series:N", scale=style.shapes(shown), legend=None),
    )
    title = alt.TitleParams("Pipeline bubble", subtitle="Point: measured. Vertical mark: formula")
    drawn = layered(spans, formulas, dots).properties(
        title=title, width=width_beside(names), height=alt.Step(step_of(names))
    )
    return Chart.of(drawn)


def _bubble(group: Group, name: str) -> dict[str, Any]:
    measured = BUBBLE.over(group)
    if measured is None:
        raise ValueError(f"{name}: no bubble was measured")
    return {
        "series": series_name(group),
        "name": name,
        "measured": measured.mean,
        "low": measured.low,
        "high": measured.high,
        "range": measured.range(formats.percent),
        "formula": _formula(group),
    }


def _formula(group: Group) -> float:
    formula = BUBBLE_FORMULA.over(group)
    return formula.mean if formula else 0.0


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
    spread = STEP_S.over(group)
    stages = [fmean(seconds) for seconds in zip(*map(busy_s, group.ok_rows), strict=True)]
    return {
        "block": block,
        "step": spread.mean if spread else None,
        "low": spread.low if spread else None,
        "high": spread.high if spread else None,
        "written": formats.seconds(spread.mean if spread else None),
        "stages": stages,
        "balance": _mean(group, LOAD_BALANCE.of),
        "bytes": _mean(group, SPLIT_POINT_BYTES_PER_STEP.of),
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
        {"block": each["block"], "stage": stage, "busy": busy, "written": formats.seconds(busy)}
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
        {"block": each["block"], "bytes": each["bytes"], "written": formats.size(each["bytes"])}
        for each in records
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

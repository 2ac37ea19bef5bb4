"""Pipeline bubbles: the time that stages wait, measured and by the formula."""

from __future__ import annotations

from typing import Any

from orchestrator.report.figures.bars import fold, name_axis, step_of, width_beside
from orchestrator.report.figures.chart import Chart, chart_of, layered
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.sentences import measured
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.formats import percent
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic


def bubble_fractions(view: WorkloadView) -> Findings:
    """Measured bubbles beside the formula, at its smallest and at its largest value."""
    known = [
        (formula, measured, group)
        for group in view.candidates
        if group.first.times_compare
        and (formula := Q.bubble_share_formula.over(group))
        and formula.mean > 0
        and (measured := Q.bubble_share.over(group))
    ]
    if not known:
        return
    known.sort(key=lambda item: (item[0].mean, item[1].mean))
    shown = known[:1] if known[0][0].mean == known[-1][0].mean else [known[0], known[-1]]
    groups = [group for _, _, group in shown]
    above = all(measured.mean > formula.mean for formula, measured, _ in shown)
    yield Finding(
        "bubble",
        evidence(groups),
        {
            "clock": view.clock,
            "nodes": view.shape.label,
            "bubble": {view.name(group): measured.mean for _, measured, group in shown},
            "formula": {view.name(group): formula.mean for formula, _, group in shown},
            "above": above,
            "shared_cores": above and any(group.first.shares_cores for group in groups),
        },
    )


def bubbles(view: WorkloadView, style: Style) -> Chart | None:
    """The measured bubble and the formula for each pipeline of every size; None for a single one."""
    known = [group for group in one_per_split(view.groups) if Q.bubble_share.over(group)]
    shown = sorted(known, key=_formula)
    if len(shown) < 2:
        return None
    names = [fold(f"{group.first.series}, {group.shape.label}") for group in shown]
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
        x="measured:Q", color=colours, shape=alt.Shape("series:N", scale=style.shapes(shown), legend=None)
    )
    title = alt.TitleParams("Pipeline bubble", subtitle="Point: measured. Vertical mark: formula")
    drawn = layered(spans, formulas, dots).properties(
        title=title, width=width_beside(names), height=alt.Step(step_of(names))
    )
    return Chart.of(drawn)


def _bubble(group: Group, name: str) -> dict[str, Any]:
    measured = Q.bubble_share.over(group)
    if measured is None:
        raise ValueError(f"{name}: no bubble was measured")
    return {
        "series": group.series,
        "name": name,
        "measured": measured.mean,
        "low": measured.low,
        "high": measured.high,
        "range": measured.range(percent),
        "formula": _formula(group),
    }


def _formula(group: Group) -> float:
    formula = Q.bubble_share_formula.over(group)
    return formula.mean if formula else 0.0


TOPIC = Topic(
    rules=(bubble_fractions,),
    figures=(
        FigureKind(
            "bubbles",
            "model",
            "Share of training time that pipeline stages wait, mean over ranks; the pale bar is the range "
            "over seeds. The formula assumes stages of equal length and free communication. Stages that "
            "share cores wait longer.",
            lambda subject: bubbles(subject.view, subject.style),
            shows=("bubble",),
            otherwise=measured(Q.bubble_share),
        ),
    ),
)

"""Pipeline bubbles: the time that stages wait, measured and by the formula."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import Column, dots
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.model.comparison import WorkloadView
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


def bubbles(subject: Subject) -> Chart | None:
    """The measured bubble and the formula for each pipeline of every size; None for a single one."""
    known = [group for group in one_per_split(subject.view.groups) if Q.bubble_share.over(group)]
    if len(known) < 2:
        return None
    known.sort(key=lambda group: spread.mean if (spread := Q.bubble_share_formula.over(group)) else 0.0)
    rows = [(f"{group.first.series}, {group.shape.label}", group) for group in known]
    title = f"share of {subject.view.clock} time that stages wait"
    column = Column(Q.bubble_share, title, Q.bubble_share_formula)
    return dots(subject, rows, [column], "Pipeline bubble", "Point: measured. Vertical mark: formula")


TOPIC = Topic(
    rules=(bubble_fractions,),
    figures=(
        FigureKind(
            "bubbles",
            "model",
            "Share of training time that pipeline stages wait, mean over ranks, with 95% intervals. "
            "The formula assumes stages of equal length and free communication. Stages that share cores "
            "wait longer.",
            bubbles,
            shows=("bubble",),
            otherwise=measured(Q.bubble_share),
        ),
    ),
)

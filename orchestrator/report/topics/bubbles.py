"""Pipeline bubbles: the time that stages wait, measured and by the formula."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import Column, dots
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic


def _by_formula(group: Group) -> float:
    return Q.bubble_share_formula.mean_of(group) if Q.bubble_share_formula.sample(group) else 0.0


def bubble_fractions(view: WorkloadView) -> Findings:
    """Measured bubbles beside the formula, at its smallest and at its largest value."""
    known = [
        group
        for group in view.candidates
        if group.first.times_compare and Q.bubble_share.sample(group) and _by_formula(group) > 0
    ]
    if not known:
        return
    known.sort(key=lambda group: (_by_formula(group), Q.bubble_share.mean_of(group)))
    groups = known[:1] if _by_formula(known[0]) == _by_formula(known[-1]) else [known[0], known[-1]]
    bubble, formula = (each.means(groups, view.name) for each in (Q.bubble_share, Q.bubble_share_formula))
    above = all(bubble[name] > formula[name] for name in bubble)
    yield Finding.of(
        "bubble",
        groups,
        clock=view.clock,
        nodes=view.shape.label,
        bubble=bubble,
        formula=formula,
        above=above,
        shared_cores=above and any(group.first.shares_cores for group in groups),
    )


def bubbles(subject: Subject) -> Chart | None:
    """The measured bubble and the formula for each pipeline of every size; None for a single one."""
    known = [group for group in one_per_split(subject.view.groups) if Q.bubble_share.sample(group)]
    if len(known) < 2:
        return None
    rows = [
        (f"{group.first.series}, {group.shape.label}", group) for group in sorted(known, key=_by_formula)
    ]
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

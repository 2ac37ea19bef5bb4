"""A kind of figure for each quantity that is drawn over the number of nodes."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.glance import has_overview
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.lines import Scaling, lines_over_nodes
from orchestrator.report.figures.sentences import measured


def over_nodes(
    scaling: Scaling, question: str, caption: str, shows: tuple[str, ...] = (), links_matter: bool = True
) -> FigureKind:
    """The kind of figure that draws a quantity over the number of nodes."""

    def draw(subject: Subject) -> Chart | None:
        view = subject.view
        counts = {group.shape.ranks for group in view.line_groups if not group.serial}
        if not counts or scaling.only_on not in (None, view.clock):
            return None
        in_overview = len(counts) == 1 and scaling.in_overview
        if in_overview and (view.workload.link or has_overview(view)):
            return None
        return lines_over_nodes(view.line_groups, subject.style, scaling)

    return FigureKind(
        scaling.name,
        question,
        caption,
        draw,
        shows,
        measured(scaling.quantity),
        partitioners="few",
        links_matter=links_matter,
    )

"""The figures of a report, as Vega-Lite specifications."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.spec import Spec
from orchestrator.report.figures.style import Style
from orchestrator.report.findings.decide import Claims
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.topics import FIGURES


@dataclass(frozen=True)
class Plot:
    """A figure of one workload.

    name: its file name without .svg. note: what it leaves out; may be empty. timelines: those drawn, to
    link their files.
    """

    name: str
    kind: FigureKind
    note: str
    workload: Workload
    chart: Chart
    timelines: tuple[Timeline, ...] = ()

    @property
    def spec(self) -> Spec:
        """The specification for a page, which shows the heading above the figure."""
        return self.chart.without_heading

    @property
    def heading(self) -> str:
        return self.chart.heading


def draw(comparison: Comparison, claims: Claims) -> list[Plot]:
    """All figures for which there is data, workload by workload."""
    style = Style(comparison.groups)
    over_links = comparison.over_links().values()
    # What links do not change is drawn over that link over which most was run.
    fullest = {max(views, key=lambda view: len(view.groups)).workload for views in over_links}
    plots = []
    for number, workload in enumerate(comparison.workloads, 1):
        subject = Subject(comparison.view(workload), comparison, style, claims)
        for kind in FIGURES.values():
            if not kind.links_matter and not workload.faults and workload not in fullest:
                continue
            if chart := kind.draw(subject):
                file = f"{kind.name}-{number}" if len(comparison.workloads) > 1 else kind.name
                timelines = tuple(kind.timelines(subject))
                plots.append(Plot(file, kind, kind.notes(subject), workload, chart, timelines))
    return plots

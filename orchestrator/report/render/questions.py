"""The page by question: each with its figures, and with the findings on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.report.figures.sentences import figure_sentence
from orchestrator.report.findings.base import QUESTIONS, Finding
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.plots import Plot
from orchestrator.report.render.figure_data import FigureData, figure_data
from orchestrator.report.render.workloads import WorkloadNames


@dataclass(frozen=True)
class Figure:
    """A plot on the page.

    sentence: what it shows; may be empty. notes: what a reader must know to read it. alt: text for
    screen readers. timelines: those whose files are linked. log_axis: whether an axis may be
    linear or logarithmic.
    """

    name: str
    title: str
    sentence: str
    notes: str
    alt: str
    wide: bool
    timelines: Sequence[Timeline]
    data: list[FigureData]
    log_axis: bool


@dataclass(frozen=True)
class Part:
    """Findings on one workload, by topic. workload: empty if they concern all, or if there is only one."""

    workload: str
    topics: dict[str, list[Finding]]


@dataclass(frozen=True)
class Question:
    """A question with its figures, by workload, and its findings."""

    key: str
    heading: str
    figures: list[tuple[str, list[Figure]]]
    findings: list[Part]

    @property
    def finding_count(self) -> int:
        return sum(len(found) for part in self.findings for found in part.topics.values())


def questions(
    comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot], names: WorkloadNames
) -> list[Question]:
    """Those that the sweep says something about, in order."""
    found = []
    for key, heading in QUESTIONS.items():
        figures = []
        for workload in comparison.workloads:
            drawn = [plot for plot in plots if plot.workload == workload and plot.kind.question == key]
            if drawn:
                of_workload = [_figure(plot, comparison, findings) for plot in drawn]
                figures.append((names.of(workload), _each_sentence_once(of_workload)))
        about = [
            finding for finding in findings if not finding.caution and _question_of(finding, plots) == key
        ]
        if figures or about:
            found.append(Question(key, heading, figures, parts(about, names)))
    return found


def _question_of(finding: Finding, plots: Sequence[Plot]) -> str:
    """The key of the question that a finding answers; partitioners have one if they have a figure."""
    compared = finding.question != "partitioners" or any(plot.kind.name == "partitioners" for plot in plots)
    return finding.question if compared else "data"


def parts(findings: Sequence[Finding], names: WorkloadNames) -> list[Part]:
    """The findings by workload and topic."""
    found: dict[Workload | None, Part] = {}
    for finding in findings:
        label = names.of(finding.workload) if finding.workload else ""
        part = found.setdefault(finding.workload, Part(label, {}))
        part.topics.setdefault(finding.topic, []).append(finding)
    return list(found.values())


def _each_sentence_once(figures: Sequence[Figure]) -> list[Figure]:
    """Figures of one question, without the sentence that one above has."""
    said: set[str] = set()
    shown = []
    for figure in figures:
        shown.append(replace(figure, sentence="") if figure.sentence in said else figure)
        said.add(figure.sentence)
    return shown


def interactive(plots: Sequence[Plot]) -> dict[str, dict[str, Any]]:
    """What the page needs to draw each figure anew, by name. All have the same configuration."""
    return {
        plot.name: {
            "spec": {name: value for name, value in plot.spec.items() if name != "config"},
            "log": plot.chart.log_axis,
        }
        for plot in plots
    }


def _figure(plot: Plot, comparison: Comparison, findings: Sequence[Finding]) -> Figure:
    kind, title = plot.kind, plot.heading
    sentence = figure_sentence(kind.shows, kind.otherwise, comparison.view(plot.workload), findings)
    return Figure(
        name=plot.name,
        title=title,
        sentence=sentence,
        notes=" ".join(filter(None, [kind.caption, plot.note])),
        alt=" ".join(filter(None, [f"{title}.", sentence, plot.note])),
        wide=plot.chart.wide,
        timelines=plot.timelines,
        data=figure_data(plot.chart.spec),
        log_axis=bool(plot.chart.log_axis),
    )

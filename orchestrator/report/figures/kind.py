"""FigureKind: a figure that a report has for each workload with the data for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.sentences import Shown, no_sentence
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.timelines import Timeline


@dataclass(frozen=True)
class Subject:
    """What a figure is about: a workload, in its comparison. style: that of all figures of a report."""

    view: WorkloadView
    comparison: Comparison
    style: Style


def _no_timelines(subject: Subject) -> Sequence[Timeline]:
    return ()


@dataclass(frozen=True)
class FigureKind:
    """A figure that a report has for each workload with the data for it.

    Attributes:
        name: the name of its file, without the number of the workload.
        question: a key of QUESTIONS, under which a report shows it.
        caption: what a reader must know to read it.
        draw: the figure; None if the workload lacks the data.
        shows: the kinds of findings that it shows, the most telling first. It is shown with the first
            sentence of one.
        otherwise: the sentence if there is no such finding.
        partitioners: those that are drawn: all, all unless these are too many for lines, or the first.
        links_matter: whether links change it. Otherwise it is drawn once for workloads that differ in
            their links.
        note: what it leaves out.
        timelines: those whose files are linked beside it.
    """

    name: str
    question: str
    caption: str
    draw: Callable[[Subject], Chart | None]
    shows: tuple[str, ...] = ()
    otherwise: Callable[[Shown], str] = no_sentence
    partitioners: Literal["all", "few", "first"] = "all"
    links_matter: bool = True
    note: Callable[[Subject], str] = lambda subject: ""
    timelines: Callable[[Subject], Sequence[Timeline]] = _no_timelines

    def left_out(self, subject: Subject) -> str:
        """What it leaves out, as sentences; empty if that is nothing."""
        view = subject.view
        shown = {"all": view.candidates, "few": view.ranked_candidates, "first": view.reference_candidates}
        if len(shown[self.partitioners]) < len(view.candidates):
            return f"Only with {view.partitioners[0]}."
        return self.note(subject)

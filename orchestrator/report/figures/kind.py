"""FigureKind: a figure that a report has for each workload with the data for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.sentences import Shown, no_sentence
from orchestrator.report.figures.style import Style
from orchestrator.report.findings.decide import Claims, speedup_interval, time_interval
from orchestrator.report.formats import count, percent
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.statistics.spread import span

Point = dict[str, Any]
# What a point shows under the pointer: accuracy beside a time, since a fast run may learn nothing.
INTERVAL = {"interval": "95% interval"}
ACCURACY = {"accuracy": "test accuracy"}


@dataclass(frozen=True)
class Subject:
    """What a figure is about: a workload, in its comparison. style: that of all figures of a report."""

    view: WorkloadView
    comparison: Comparison
    style: Style
    claims: Claims

    def point(self, group: Group, quantity: Quantity) -> Point | None:
        """The record of a configuration's mean, with its interval; None if it has no value."""
        spread = quantity.over(group)
        if spread is None:
            return None
        low, high = bounds = self._interval(group, quantity) or (spread.mean, spread.mean)
        seeds = f"{count(spread.seeds, 'seed')}{', dropped' if group.dropped else ''}"
        interval = f"{span(*bounds, quantity.write)}, {seeds}" if low < high else seeds
        return {
            "series": group.series,
            "partitioner": group.partitioner_label,
            "serial": group.serial,
            "dropped": bool(group.dropped),
            "nodes": group.shape.ranks,
            "mean": spread.mean,
            "low": low,
            "high": high,
            "written": quantity.write(spread.mean),
            "interval": interval,
            "accuracy": percent(accuracy.mean if (accuracy := Q.accuracy.over(group)) else None),
        }

    def points(self, groups: Sequence[Group], quantity: Quantity) -> list[Point]:
        """The points of the groups that have the quantity."""
        return [point for group in groups if (point := self.point(group, quantity))]

    def _interval(self, group: Group, quantity: Quantity) -> Bounds | None:
        if quantity is Q.speedup:
            return speedup_interval(self.claims, self.view.serial, group)
        return quantity.interval(group) or time_interval(quantity, group, self.claims)


Draw = Callable[[Subject], Chart | None]


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
        note: what else there is to know of one workload's, such as what it leaves out.
        timelines: those whose files are linked beside it.
    """

    name: str
    question: str
    caption: str
    draw: Draw
    shows: tuple[str, ...] = ()
    otherwise: Callable[[Shown], str] = no_sentence
    partitioners: Literal["all", "few", "first"] = "all"
    links_matter: bool = True
    note: Callable[[Subject], str] = lambda subject: ""
    timelines: Callable[[Subject], Sequence[Timeline]] = lambda subject: ()

    def notes(self, subject: Subject) -> str:
        """What there is to know of this workload's; may be empty."""
        view = subject.view
        shown = {"all": view.candidates, "few": view.ranked_candidates, "first": view.reference_candidates}
        fewer = len(shown[self.partitioners]) < len(view.candidates)
        only = f"Only with {view.partitioners[0]}." if fewer else ""
        return " ".join(filter(None, [only, self.note(subject)]))

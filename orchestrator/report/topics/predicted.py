"""Predicted: what more nodes would do, as `predict --report` has stored it beside the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.report.figures.axes import axis_of, count_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Point, Subject
from orchestrator.report.figures.lines import Lines
from orchestrator.report.figures.over_nodes import shaded_from
from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import span
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.predictions import Prediction, Predictions, stops_paying


@dataclass(frozen=True)
class Line:
    """A measured configuration with its predictions. group: the one with most nodes."""

    group: Group
    found: Sequence[Prediction]


def predicted(view: WorkloadView, predictions: Predictions | None) -> list[Line]:
    """The configurations of a workload that have predictions, the fewest nodes first."""
    by_run: dict[str, list[Prediction]] = {}
    for each in predictions.forecasts if predictions else ():
        for key in each.runs:
            by_run.setdefault(key, []).append(each)
    found: dict[tuple[str, ...], Line] = {}
    for group in sorted(view.groups, key=lambda group: group.shape.ranks):
        if of_group := by_run.get(group.ok_rows[0].key):
            found[tuple(of_group[0].runs)] = Line(group, of_group)
    return [*found.values()]


def fastest(comparison: Comparison) -> Findings:
    """What is predicted to be the fastest on each number of nodes, and where more of them do not pay."""
    for view in map(comparison.view, comparison.workloads):
        lines = predicted(view, comparison.predictions)
        if not lines or not comparison.predictions:
            continue
        by_nodes: dict[int, list[tuple[Prediction, str]]] = {}
        ends: dict[int, list[str]] = {}
        for line in lines:
            name = view.name(line.group)
            for each in line.found:
                by_nodes.setdefault(each.nodes, []).append((each, name))
            if nodes := stops_paying(line.found):
                ends.setdefault(nodes, []).append(name)
        yield Finding.of(
            "predicted",
            [line.group for line in lines],
            workload=view.workload if view.one_of_many else None,
            link=comparison.predictions.asked.link,
            on=[_on(found) for _, found in sorted(by_nodes.items(), reverse=True)],
            stops_paying=dict(sorted(ends.items())),
        )


def _on(found: Sequence[tuple[Prediction, str]]) -> Mapping[str, Any]:
    """The fastest on a number of nodes, and the others whose intervals overlap with its own."""
    (best, name), *others = sorted(found, key=lambda pair: pair[0].seconds)
    return {
        "nodes": best.nodes,
        "strategy": name,
        "alone": not others,
        "interval": [best.low_s, best.high_s],
        "seconds": best.seconds,
        "speedup": best.speedup,
        "close": [other for each, other in others if each.low_s <= best.high_s],
    }


def unusable(comparison: Comparison) -> Findings:
    """Why stored predictions are not shown."""
    if comparison.predictions_unusable:
        yield Finding("predictions_unusable", data={"reason": comparison.predictions_unusable})


def _draw(subject: Subject) -> Chart | None:
    view, predictions = subject.view, subject.comparison.predictions
    lines = predicted(view, predictions)
    if not predictions or not lines:
        return None
    link, measured = predictions.asked.link, []
    if link is None and predictions.asked.node_speed == 1:
        drawn = {line.group.line for line in lines}
        measured = subject.points([group for group in view.groups if group.line in drawn], Q.train_s)
    most = max((point["nodes"] for point in measured), default=0)
    beyond = [
        _point(subject, line.group, each) for line in lines for each in line.found if each.nodes > most
    ]
    if not beyond:
        return None
    points = [*({**point, "how": "measured"} for point in measured), *beyond]
    points.sort(key=lambda point: point["nodes"])
    x = count_axis([point["nodes"] for point in points], "nodes", "nodes")
    return Lines(
        title=f"Predicted {view.clock} time{f', over links of {link}' if link else ''}",
        records=points,
        style=subject.style,
        x=x,
        y=axis_of(Q.train_s, points, f"{view.clock} time, s", log=True),
        tips={"name": "strategy", "nodes": "nodes", "written": f"{view.clock} time", "interval": "interval"}
        | {"how": "time is"},
        behind=shaded_from(most, x, "")[:1] if measured else [],
    ).chart()


def _point(subject: Subject, group: Group, each: Prediction) -> Point:
    return {
        **(subject.point(group, Q.train_s) or {}),
        "dropped": False,
        "nodes": each.nodes,
        "mean": each.seconds,
        "low": each.low_s,
        "high": each.high_s,
        "written": Q.train_s.write(each.seconds),
        "interval": f"90%: {span(each.low_s, each.high_s, Q.train_s.write)}",
        "how": "predicted",
    }


TOPIC = Topic(
    sweep_rules=(fastest, unusable),
    figures=(
        FigureKind(
            "predicted",
            "predicted",
            "Points on grey are predicted, and those before them measured. Without grey, all are "
            "predicted, for other links or nodes than the measured ones. Bands: 90% intervals of a run; "
            "between measured points, 95% intervals of the mean. Each node keeps its batch size, so more "
            "nodes are another training, whose accuracy is not predicted.",
            _draw,
            ("predicted",),
        ),
    ),
)

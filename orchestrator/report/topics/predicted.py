"""Predicted: what more nodes would do, as `predict --report` has stored it beside the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.figures.axes import axis_of, count_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Point, Subject
from orchestrator.report.figures.lines import Lines
from orchestrator.report.figures.over_nodes import shaded_from
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import span
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.predictions import Prediction, Predictions, stops_paying

Line = tuple[Group, Sequence[Prediction]]  # the measured group with most nodes, and what follows from it


def predicted(view: WorkloadView, predictions: Predictions) -> list[Line]:
    """The configurations of a workload that have predictions, each with its own, the fewest nodes first."""
    by_run: dict[str, list[Prediction]] = {}
    for each in predictions.forecasts:
        for key in each.runs:
            by_run.setdefault(key, []).append(each)
    found: dict[tuple[str, ...], Line] = {}
    for group in sorted(view.groups, key=lambda group: group.shape.ranks):
        of_group = by_run.get(group.ok_rows[0].key, [])
        if of_group:
            found[tuple(of_group[0].runs)] = group, sorted(of_group, key=lambda each: each.nodes)
    return [*found.values()]


def fastest(comparison: Comparison) -> Findings:
    """What is predicted to be the fastest on each number of nodes, and where more of them do not pay."""
    if comparison.predictions is None:
        return
    for view in map(comparison.view, comparison.workloads):
        lines = predicted(view, comparison.predictions)
        if not lines:
            continue
        found = [(each, view.name(group)) for group, of in lines for each in of]
        counts = sorted({each.nodes for each, _ in found}, reverse=True)
        yield Finding(
            "predicted",
            evidence(group for group, _ in lines),
            {
                "link": comparison.predictions.asked.link,
                "on": [_on(nodes, [pair for pair in found if pair[0].nodes == nodes]) for nodes in counts],
                "stops_paying": _stops_paying(view, lines),
                "predictions": [_data(view, *line) for line in lines],
            },
            view.workload if view.one_of_many else None,
        )


def _on(nodes: int, found: Sequence[tuple[Prediction, str]]) -> Mapping[str, Any]:
    """The fastest on a number of nodes, and the others whose intervals overlap with its own."""
    (best, name), *others = sorted(found, key=lambda pair: pair[0].seconds)
    return {
        "nodes": nodes,
        "strategy": name,
        "alone": not others,
        "interval": [best.low_s, best.high_s],
        "seconds": best.seconds,
        "speedup": best.speedup,
        "close": [other for each, other in others if each.low_s <= best.high_s],
    }


def _stops_paying(view: WorkloadView, lines: Sequence[Line]) -> Mapping[int, Sequence[str]]:
    """The strategies by the number of nodes from which on more of them do not pay."""
    ends: dict[int, list[str]] = {}
    for group, found in lines:
        if (nodes := stops_paying(found)) is not None:
            ends.setdefault(nodes, []).append(view.name(group))
    return dict(sorted(ends.items()))


def _data(view: WorkloadView, group: Group, found: Sequence[Prediction]) -> Mapping[str, Any]:
    return {
        "strategy": view.name(group),
        "nodes": [each.nodes for each in found],
        "seconds": [each.seconds for each in found],
        "intervals": [(each.low_s, each.high_s) for each in found],
    }


def unusable(comparison: Comparison) -> Findings:
    """Why stored predictions are not shown."""
    if comparison.predictions_unusable:
        yield Finding("predictions_unusable", data={"reason": comparison.predictions_unusable})


def _draw(subject: Subject) -> Chart | None:
    view, predictions = subject.view, subject.comparison.predictions
    if predictions is None or not (lines := predicted(view, predictions)):
        return None
    asked = predictions.asked
    as_measured = asked.link is None and asked.node_speed == 1
    measured = {group.line: group for group, _ in lines}
    groups = sorted(
        (group for group in view.groups if group.line in measured), key=lambda group: group.shape.ranks
    )
    known = subject.points(groups, Q.train_s) if as_measured else []
    most = max((point["nodes"] for point in known), default=0)
    beyond = [_point(subject, group, each) for group, found in lines for each in found if each.nodes > most]
    if not beyond:
        return None
    points = [*({**point, "how": "measured"} for point in known), *beyond]
    x = count_axis(sorted({each["nodes"] for each in points}), "nodes", "nodes")
    return Lines(
        title=f"Predicted {view.clock} time{f', over links of {asked.link}' if asked.link else ''}",
        records=points,
        style=subject.style,
        x=x,
        y=axis_of(Q.train_s, points, f"{view.clock} time, s", log=True),
        tips={"name": "strategy", "nodes": "nodes", "written": f"{view.clock} time", "interval": "interval"}
        | {"how": "time is"},
        behind=shaded_from(most, x, "")[:1] if as_measured else [],
    ).chart()


def _point(subject: Subject, group: Group, each: Prediction) -> Point:
    interval = f"90%: {span(each.low_s, each.high_s, Q.train_s.write)}"
    numbers = {"mean": each.seconds, "low": each.low_s, "high": each.high_s, "interval": interval}
    written = {"written": Q.train_s.write(each.seconds), "how": "predicted", "dropped": False}
    return {**(subject.point(group, Q.train_s) or {}), "nodes": each.nodes, **numbers, **written}


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

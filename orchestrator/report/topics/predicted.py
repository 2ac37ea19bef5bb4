"""Predicted: what more nodes would do, as `predict --report` has stored it beside the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.figures.axes import Axis, amount_axis, count_axis
from orchestrator.report.figures.chart import Chart, chart_of
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.lines import points_of, record, tooltip
from orchestrator.report.figures.named_lines import Lines, Record
from orchestrator.report.figures.theme import colour
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import Spread
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
    same = {group.line for group, _ in lines}
    groups = [group for group in view.groups if group.line in same]
    link = predictions.asked.link
    as_measured = link is None and predictions.asked.node_speed == 1
    most = max(group.shape.ranks for group in groups) if as_measured else 0
    records: list[Record] = []
    for group, spread in points_of(groups, subject.style, Q.train_s):
        if as_measured:
            records.append({**record(group, spread, Q.train_s.write, groups), "how": "measured"})
        found = next((found for last, found in lines if last is group), ())
        records += [_record(group, each, groups) for each in found if each.nodes > most]
    if not any(each["how"] == "predicted" for each in records):
        return None
    x = count_axis(sorted({each["nodes"] for each in records}), "nodes", "nodes")
    values = [value for each in records for value in (each["low"], each["high"])]
    lines_of = Lines(
        title=f"Predicted {view.clock} time{f', over links of {link}' if link else ''}",
        records=records,
        groups=groups,
        style=subject.style,
        x=x,
        y=amount_axis(values, "mean", f"{view.clock} time (s)", log=True),
        tooltip=[*tooltip(f"{view.clock} time", ("nodes", "nodes")), alt.Tooltip("how:N", title="time is")],
        behind=[_beyond(most, x)] if as_measured else [],
        log_axis="y",
    )
    return lines_of.chart()


def _record(group: Group, each: Prediction, groups: Sequence[Group]) -> Record:
    spread = Spread(each.seconds, each.low_s, each.high_s, 0)
    return {
        **record(group, spread, Q.train_s.write, groups),
        "nodes": each.nodes,
        "range": f"90% interval {spread.range(Q.train_s.write)}",
        "accuracy": "",
        "how": "predicted",
    }


def _beyond(measured: int, x: Axis) -> alt.Chart:
    """The numbers of nodes that were not measured, shaded."""
    base = chart_of([{"series": "", x.field: measured}])
    shade: alt.Chart = base.mark_rect(color=colour("shade"), aria=False)
    return shade.encode(x=x.x, x2=alt.value("width"))


TOPIC = Topic(
    sweep_rules=(fastest, unusable),
    figures=(
        FigureKind(
            "predicted",
            "predicted",
            "Points on grey are predicted, and those before them measured. Without grey, all are "
            "predicted, for other links or nodes than the measured ones. Bands: 90% intervals of a run; "
            "between measured points, the range over seeds. Each node keeps its batch size, so more nodes "
            "are another training, whose accuracy is not predicted.",
            _draw,
            ("predicted",),
        ),
    ),
)

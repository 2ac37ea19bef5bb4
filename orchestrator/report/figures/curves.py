"""Accuracy against time, for each configuration and over training."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.figures.axes import amount_axis, share_axis
from orchestrator.report.figures.chart import Chart, chart_of
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.lines import record, tooltip
from orchestrator.report.figures.named_lines import Lines, Record
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.formats import percent, seconds
from orchestrator.report.metrics.curves import curve, has_local_models
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.quantities import Q

LEAST_CONFIGURATIONS = 2  # on several nodes
MOST_NAMED = 24  # lines that one plot over the whole page has names for


def accuracy_and_time(groups: Sequence[Group], style: Style) -> Chart | None:
    """A point for each configuration; a line joins those that differ in their number of nodes.

    None with fewer than two configurations on several nodes.
    """
    points = [
        (group, group.accuracy, took.mean)
        for group in groups
        if group.accuracy and group.first.times_compare and (took := Q.train_s.over(group))
    ]
    if sum(not group.serial for group, _, _ in points) < LEAST_CONFIGURATIONS:
        return None
    order = style.order(groups)
    points.sort(key=lambda each: (order.index(each[0].series), each[0].line, each[0].shape.ranks))
    shown = [group for group, _, _ in points]
    records = [
        {**record(group, reached, percent, shown), "train_s": took, "when": seconds(took)}
        for group, reached, took in points
    ]
    clock = shown[0].first.clock
    ranges = [(point["low"], point["high"]) for point in records]
    x = amount_axis([point["train_s"] for point in records], "train_s", f"{clock} time, s")
    y = share_axis([point["mean"] for point in records], "mean", "test accuracy", ranges)
    numbers = chart_of([point for point in records if not point["serial"]]).encode(x=x.x, y=y.y)
    return Lines(
        title=f"Accuracy and {clock} time of each configuration",
        records=records,
        groups=shown,
        style=style,
        x=x,
        y=y,
        tooltip=tooltip("test accuracy", ("when", f"{clock} time")),
        remarks=[numbers.mark_text(dx=8, dy=-8, color=colour("soft"), aria=False).encode(text="nodes:N")],
        log_axis="x",
        band=False,
        most_together=MOST_NAMED,
    ).chart()


def accuracy_over_time(groups: Sequence[Group], style: Style, shape: ClusterShape) -> Chart | None:
    """Serial and all groups of `shape`; None if no epoch was evaluated.

    The line of a group with local models is their mean. Its last point is the averaged model.
    """
    order = style.order(groups)
    shown = [group for group in groups if (group.serial or group.shape == shape) and curve(group)]
    shown.sort(key=lambda group: (order.index(group.series), group.partitioner_label))
    if not shown:
        return None
    records = [point for group in shown for point in _records(group, shown)]
    clock = shown[0].first.clock
    times = [point["train_s"] for point in records]
    accuracies = [point["mean"] for point in records]
    target = shown[0].first.run.target_accuracy
    ranges = [(point["low"], point["high"]) for point in records]
    values = [*accuracies, *([target] if target is not None else [])]
    y = share_axis(values, "mean", "test accuracy", ranges)
    epoch = ("when", f"{clock} time")
    return Lines(
        title=f"Accuracy against {clock} time, {shape.label}",
        records=records,
        groups=shown,
        style=style,
        x=amount_axis(times, "train_s", f"{clock} time, s"),
        y=y,
        tooltip=tooltip("test accuracy", epoch),
        behind=_target(target, y.y) if target is not None else [],
        log_axis="x",
    ).chart()


def _records(group: Group, shown: Sequence[Group]) -> list[Record]:
    """The curve of a group. With local models, the step to their average is the last point."""
    points = curve(group)
    local = has_local_models(group)
    drawn = [
        (point.train_s, point.accuracy, f"{seconds(point.train_s)}, epoch {point.epoch}")
        for point in points
    ]
    final, train_s = group.accuracy, Q.train_s.over(group)
    if local and final and train_s:
        at = max(train_s.mean, points[-1].train_s)
        drawn.append((at, final, f"{seconds(at)}, average of the local models"))
    return [
        {**record(group, accuracy, percent, shown), "train_s": at, "when": when}
        for at, accuracy, when in drawn
    ]


def _target(target: float, y: alt.Y) -> list[alt.Chart]:
    base = chart_of([{"series": "target", "mean": target}]).encode(y=y)
    rule = base.mark_rule(color=colour("axis"), strokeDash=[4, 3], aria=False)
    text = base.mark_text(
        text=f"target, {percent(target)}", color=colour("soft"), align="left", dx=4, dy=-7
    )
    return [rule, text.encode(x=alt.value(0))]

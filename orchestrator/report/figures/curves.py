"""Accuracy against time, for each configuration and over training."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.report.figures.axes import amount_axis, share_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import INTERVAL, Point, Subject
from orchestrator.report.figures.lines import Lines
from orchestrator.report.figures.spec import Spec, layer
from orchestrator.report.figures.theme import colour
from orchestrator.report.formats import percent, seconds
from orchestrator.report.metrics.curves import curve, has_local_models
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import span

LEAST_CONFIGURATIONS = 2  # on several nodes
MOST_NAMED = 24  # lines that one plot over the whole page has names for


def accuracy_and_time(subject: Subject) -> Chart | None:
    """A point for each configuration; a line joins those that differ in their number of nodes.

    None with fewer than two configurations on several nodes.
    """
    view = subject.view
    points = []
    for group in sorted(view.line_groups, key=lambda group: group.shape.ranks):
        point, took = subject.point(group, Q.accuracy), subject.point(group, Q.train_s)
        if point and took and group.first.times_compare:
            points.append({**point, "train_s": took["mean"], "when": took["written"]})
    if sum(not point["serial"] for point in points) < LEAST_CONFIGURATIONS:
        return None
    lines = _lines(subject, f"Accuracy and {view.clock} time of each configuration", points)
    on_axes = [point for point in points if not point["serial"] and not lines.y.outside(point["mean"])]
    numbers = layer(
        "text",
        {"dx": 8, "dy": -8, "color": colour("soft")},
        records=on_axes,
        x=lines.x.channel,
        y=lines.y.channel,
        text="nodes:N",
    )
    return replace(lines, remarks=[numbers], band=False, most_together=MOST_NAMED).chart()


def accuracy_over_time(subject: Subject) -> Chart | None:
    """Serial and all groups of the view's shape; None if no epoch was evaluated.

    The line of a group with local models is their mean. Its last point is the averaged model.
    """
    view = subject.view
    groups = [group for group in view.line_groups if group.serial or group.shape == view.shape]
    points = [point for group in groups for point in _over_time(subject, group)]
    if not points:
        return None
    target = view.workload.target_accuracy
    lines = _lines(subject, f"Accuracy against {view.clock} time, {view.shape.label}", points, target)
    return replace(lines, behind=_target(target, lines.y.channel)).chart()


def _lines(subject: Subject, title: str, points: list[Point], target: float | None = None) -> Lines:
    """target: an accuracy that is on the axis, too."""
    clock = f"{subject.view.clock} time"
    bounds = [(point["low"], point["high"]) for point in points]
    values = [*(point["mean"] for point in points), *([] if target is None else [target])]
    return Lines(
        title=title,
        records=points,
        style=subject.style,
        x=amount_axis([point["train_s"] for point in points], "train_s", f"{clock}, s"),
        y=share_axis(values, "mean", "test accuracy", bounds),
        tips={"name": "strategy", "nodes": "nodes", "when": clock, "written": "test accuracy", **INTERVAL},
        log_axis="x",
    )


def _over_time(subject: Subject, group: Group) -> list[Point]:
    """The curve of a group. With local models, the step to their average is the last point."""
    points, final, took = curve(group), subject.point(group, Q.accuracy), Q.train_s.over(group)
    if not points or final is None:
        return []
    found = []
    for point in points:
        mean = point.accuracy
        low, high = point.interval or (mean, mean)
        written = {"written": percent(mean), "interval": span(low, high, percent) if low < high else ""}
        at = {"train_s": point.train_s, "when": f"{seconds(point.train_s)}, epoch {point.epoch}"}
        found.append({**final, "mean": mean, "low": low, "high": high, **written, **at})
    if has_local_models(group) and took:
        end = max(took.mean, points[-1].train_s)
        found.append({**final, "train_s": end, "when": f"{seconds(end)}, average of the local models"})
    return found


def _target(target: float | None, y: Spec) -> list[Spec]:
    if target is None:
        return []
    at = [{"series": "target", "mean": target}]
    style = {"text": f"target, {percent(target)}", "color": colour("soft"), "align": "left"}
    return [
        layer("rule", {"color": colour("axis"), "strokeDash": [4, 3]}, records=at, y=y),
        layer("text", {**style, "dx": 4, "dy": -7}, records=at, x={"value": 0}, y=y),
    ]

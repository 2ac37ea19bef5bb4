"""Quantities over the number of nodes: one line per strategy, transport, partitioner and ranks per node.

If nodes have several ranks, the x axis counts ranks, which determine the ideal speedup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report import formats
from orchestrator.report.figures.axes import Axis, axis_of, count_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.dots import has_overview
from orchestrator.report.figures.kind import ACCURACY, INTERVAL, FigureKind, Subject
from orchestrator.report.figures.lines import Lines
from orchestrator.report.figures.sentences import measured
from orchestrator.report.figures.spec import Spec, layer
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Clock
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.results.limits import counted

Explained = Sequence[Spec]  # a mark and its text
MOST_NOTES = 6  # lines under the title
VISIBLE_IDEAL = 1.2  # an axis that ends below has no room for ideal speedup


def over_nodes(
    name: str,
    quantity: Quantity,
    question: str,
    caption: str,
    *,
    only_on: Clock | None = None,
    in_overview: bool = True,
    **fields: Any,
) -> FigureKind:
    """The kind of figure that draws a quantity over the number of nodes.

    Args:
        only_on: the clock on which it is shown.
        in_overview: whether the overview has its points, if there is one number of nodes.
        fields: of the FigureKind.
    """

    def draw(subject: Subject) -> Chart | None:
        view = subject.view
        if quantity is Q.train_s and view.workload.target_accuracy is not None:
            return time_to_target(subject)
        counts = {group.shape.ranks for group in view.line_groups if not group.serial}
        shown_above = len(counts) == 1 and in_overview and (view.workload.link or has_overview(view))
        if not counts or shown_above or only_on not in (None, view.clock):
            return None
        title = quantity.title if quantity.title[:2].isupper() else quantity.title.lower()
        return lines_over_nodes(subject, quantity, f"{view.clock} time" if quantity.timed else title)

    fields = {"otherwise": measured(quantity), "partitioners": "few", **fields}
    return FigureKind(name, question, caption, draw, **fields)


def lines_over_nodes(
    subject: Subject, quantity: Quantity, what: str, notes: Sequence[str] = ()
) -> Chart | None:
    """Means with intervals, against ranks; None if no group has the quantity.

    Args:
        what: the title and, with the unit of times, the y axis.
        notes: lines under the title.
    """
    view = subject.view
    shown = [group for group in view.line_groups if quantity.over(group)]
    if not shown:
        return None
    shown.sort(key=lambda group: group.shape.ranks)
    points = subject.points(shown, quantity)
    counts = sorted({point["nodes"] for point in points})
    x = count_axis(counts, "nodes", "ranks" if any(group.shape.per_node for group in shown) else "nodes")
    # Both axes are logarithmic over many nodes, so that ideal scaling remains a straight line.
    many = counts[-1] >= 16 * counts[0] and quantity.ratio
    unit = ", s" if quantity.write is formats.seconds else ""
    y = axis_of(quantity, points, f"{what}{unit}", log=many)
    timed = quantity.timed or quantity is Q.speedup
    explained = [*(_cores(shown, x) if timed else ()), *_ideal(quantity, x, y)]
    return Lines(
        title=what[0].upper() + what[1:],
        records=points,
        style=subject.style,
        x=x,
        y=y,
        tips={
            "name": "strategy",
            "nodes": x.title,
            "written": what,
            **INTERVAL,
            **(ACCURACY if unit else {}),
        },
        behind=[*explained[::2], *_serial(points, y)],
        remarks=explained[1::2],
        subtitle=notes,
    ).chart()


def time_to_target(subject: Subject) -> Chart | None:
    """A point is the mean over the seeds that reached the target; None if no run did.

    Strategies that did not reach it have no time: they are named under the title.
    """
    view, missed = subject.view, dict[str, list[str]]()
    for group in view.line_groups:
        reached, seeds = seeds_at_target(group)
        if reached < seeds:
            at = f"{group.shape.label} ({reached} of {seeds} seeds)" if reached else group.shape.label
            missed.setdefault(group.series, []).append(at)
    notes = [f"{series}: {formats.first_few(shapes)}" for series, shapes in missed.items()]
    if notes:
        more = len(notes) - MOST_NOTES
        head = f"Not reached by all seeds in {formats.count(view.workload.epochs, 'epoch')}:"
        notes = [head, *notes[:MOST_NOTES], *([f"and {more} more"] if more > 0 else [])]
    title = f"{view.clock} time to {formats.percent(view.workload.target_accuracy)} test accuracy"
    return lines_over_nodes(subject, Q.time_to_target_s, title, notes)


def _serial(points: Sequence[dict[str, Any]], y: Axis) -> list[Spec]:
    """A line at the serial run's value, to compare all others with."""
    at = [{"series": point["series"], "mean": point["mean"]} for point in points if point["serial"]]
    style = {"color": colour("serial"), "opacity": 0.7, "clip": True}
    return [layer("rule", style, records=at[:1], y=y.channel)] if at else []


def _ideal(quantity: Quantity, x: Axis, y: Axis) -> Explained:
    """Linear speedup. It is cut off where it would flatten the other lines."""
    end = min(x.high, y.high)
    if quantity not in (Q.speedup, Q.cpu_time_speedup) or end < VISIBLE_IDEAL:
        return ()
    ends = [{"series": "ideal", x.field: at, y.field: at} for at in (max(x.low, y.low, 1), end)]
    at: Spec = {"x": x.channel, "y": y.channel}
    line = {"color": colour("axis"), "strokeDash": [3, 3], "strokeWidth": 1.2, "clip": True}
    text = {"text": "ideal", "color": colour("soft"), "align": "right", "dx": -8, "dy": 4}
    last = f"datum.{x.field} === {end}"
    return layer("line", line, records=ends, **at), layer("text", text, records=ends, where=last, **at)


def _cores(shown: Sequence[Group], x: Axis) -> Explained:
    """The numbers of ranks from which on all runs share cores, shaded."""
    unshared = max((group.shape.ranks for group in shown if not group.first.shares_cores), default=0)
    sharing = [group for group in shown if group.first.shares_cores and group.shape.ranks > unshared]
    if not sharing:
        return ()
    first = min(group.shape.ranks for group in sharing)
    left = unshared or first - 1
    start = (left * first) ** 0.5 if x.log else (left + first) / 2
    cores = counted(max(group.first.result.cores for group in sharing), "core")
    return shaded_from(max(start, x.low), x, f"nodes share {cores}")


def shaded_from(start: float, x: Axis, text: str) -> Explained:
    """All that lies to the right of a place, shaded, and what that is."""
    at = [{"series": "", x.field: start}]
    shade = layer("rect", {"color": colour("shade")}, records=at, x=x.channel, x2={"value": "width"})
    style = {"text": text, "color": colour("soft"), "align": "left", "dx": 5}
    return shade, layer("text", style, records=at, x=x.channel, y={"value": 9})

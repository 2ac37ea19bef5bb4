"""Exchange per step against model size, for sweeps with several models."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.report.figures.axes import Axis, amount_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.lines import record, tooltip
from orchestrator.report.figures.named_lines import Lines
from orchestrator.report.figures.style import Style, series_name
from orchestrator.report.formats import seconds
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.quantities import EXCHANGE_S_PER_STEP
from orchestrator.report.quantities.model_partition import model_size
from orchestrator.report.statistics.spread import Spread

Point = tuple[Group, int, Spread]  # parameters of the model, seconds


def models_alike(comparison: Comparison) -> list[Workload]:
    """The workloads that differ from the first one only in the model; none unless there are several."""
    workloads = comparison.workloads
    alike = [each for each in workloads if replace(each, model=workloads[0].model) == workloads[0]]
    return alike if len(alike) > 1 else []


def exchange_by_size(comparison: Comparison, style: Style) -> Chart | None:
    """One line per strategy and transport at the compared shape; None without several sizes."""
    workloads = models_alike(comparison)
    if not workloads:
        return None
    shape = comparison.view(workloads[0]).shape
    points: list[Point] = []
    for workload in workloads:
        view = comparison.view(workload)
        size = model_size(view.groups)
        for group in view.line_groups:
            spread = EXCHANGE_S_PER_STEP.over(group)
            if size and spread and spread.low > 0 and group.shape == shape:
                points.append((group, size, spread))
    if len({size for _, size, _ in points}) < 2:
        return None
    return _drawn(points, style, shape)


def _drawn(points: list[Point], style: Style, shape: ClusterShape) -> Chart:
    shown = [group for group, _, _ in points]
    order = style.order(shown)
    points = sorted(points, key=lambda point: (order.index(series_name(point[0])), point[1]))
    sizes = sorted({size for _, size, _ in points})
    values = [value for _, _, spread in points for value in (spread.low, spread.high)]
    title = f"Exchange per step against model size, {shape.label}"
    return Lines(
        title=title,
        records=[
            {**record(group, spread, seconds, shown), "parameters": size} for group, size, spread in points
        ],
        groups=shown,
        style=style,
        x=Axis("parameters", "parameters of the model", sizes[0], sizes[-1], True, tuple(sizes), ",d", 14),
        y=amount_axis(values, "mean", "exchange per step, s", log=True),
        tooltip=tooltip("exchange per step", ("parameters", "parameters"), with_accuracy=True),
        log_axis="y",
    ).chart()

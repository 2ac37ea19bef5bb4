"""The report's figures as SVG. Importing this loads matplotlib, which takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from orchestrator.report.figures.bars import time_by_phase
from orchestrator.report.figures.bubbles import bubbles
from orchestrator.report.figures.captions import CAPTIONS
from orchestrator.report.figures.curves import accuracy_over_time
from orchestrator.report.figures.glance import partitioners_by_strategy, strategies_at_a_glance
from orchestrator.report.figures.lines import QUANTITIES, lines_over_nodes
from orchestrator.report.figures.maps import Map, label_maps
from orchestrator.report.figures.memory import memory_per_rank
from orchestrator.report.figures.sizes import exchange_by_size
from orchestrator.report.figures.split_points import step_by_cut
from orchestrator.report.figures.stragglers import straggler_attribution
from orchestrator.report.figures.style import RC, WIDTH_IN, Style
from orchestrator.report.figures.svg import to_svg
from orchestrator.report.figures.target import time_to_target
from orchestrator.report.figures.textbook_optimizers import loss_curves
from orchestrator.report.metrics.data_partition import holders, representatives, survey_of
from orchestrator.report.metrics.textbook_optimizers import OptimizerPair, twins_of
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import Workload


@dataclass(frozen=True)
class Plot:
    """A figure. name: of its file, without .svg. svg: one element of XML. wide: it wants the whole page."""

    name: str
    title: str
    caption: str
    work: Workload
    svg: str
    wide: bool


def draw(comparison: Comparison) -> list[Plot]:
    """All figures for which there is data, work by work."""
    style = Style(comparison.groups)
    plots = []
    works = comparison.works
    with rc_context(RC):  # type: ignore[arg-type]  # its stub wants every key as a literal
        if figure := exchange_by_size(comparison, style):
            title, svg = "Exchange per step against model size", to_svg(figure, "exchange")
            plots.append(Plot("exchange", title, CAPTIONS["exchange"], works[0], svg, wide=False))
        textbook = {twins.textbook.work: twins for twins in twins_of(comparison)}
        for number, work in enumerate(works, 1):
            for name, title, figure in [
                *_by_hand(textbook.get(work)),
                *_figures(comparison.scene(work), style),
            ]:
                file = f"{name}-{number}" if len(works) > 1 else name
                wide = figure.get_figwidth() > WIDTH_IN
                plots.append(Plot(file, title, CAPTIONS[name], work, to_svg(figure, file), wide))
    return plots


def _by_hand(twins: OptimizerPair | None) -> Iterator[tuple[str, str, Figure]]:
    if twins:
        yield "by_hand", "Loss curves by hand and by the library", loss_curves(twins)


def _figures(scene: WorkloadView, style: Style) -> Iterator[tuple[str, str, Figure]]:
    """Name, title and figure, one after the other."""
    if figure := strategies_at_a_glance(scene, style):
        yield "strategies", "Strategies at a glance", figure
    if figure := partitioners_by_strategy(scene):
        yield "partitioners", "Accuracy by partitioner and strategy", figure
    if figure := time_to_target(scene.in_lines, style):
        yield "time_to_target", "Time to the target accuracy", figure
    for quantity in QUANTITIES if any(not group.serial for group in scene.groups) else ():
        if figure := lines_over_nodes(scene.in_lines, style, quantity):
            yield quantity.name, quantity.title, figure
    if figure := accuracy_over_time(scene.in_lines, style, scene.shape):
        yield "accuracy_over_time", "Accuracy against training time", figure
    if figure := time_by_phase(scene.in_lines, scene.shape):
        yield "phases", "Where the time went", figure
    if figure := straggler_attribution(scene):
        yield "waits", "Who waits for whom", figure
    if figure := memory_per_rank(scene):
        yield "memory", "What the fullest rank keeps", figure
    if figure := bubbles(scene, style):
        yield "bubbles", "Bubble", figure
    if figure := step_by_cut(scene, style):
        yield "split_points", "Where to cut", figure
    splits = [(row, survey_of(row)) for row in representatives(scene.groups)]
    maps = [Map(row.partitioner_label, row.shape, seen, holders(row)) for row, seen in splits if seen]
    if maps:
        yield "labels", "Samples per rank and label", label_maps(maps)

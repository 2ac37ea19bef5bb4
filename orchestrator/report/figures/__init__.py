"""The report's figures. Importing this loads Altair, which takes a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.report.figures.bars import time_by_phase
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.curves import accuracy_and_time, accuracy_over_time, loss_curves
from orchestrator.report.figures.glance import strategies_at_a_glance
from orchestrator.report.figures.lines import SCALINGS, lines_over_nodes
from orchestrator.report.figures.links import time_by_link
from orchestrator.report.figures.maps import LabelMap, label_maps
from orchestrator.report.figures.model_partition import bubbles, memory_per_rank, split_points_figure
from orchestrator.report.figures.partitioners import partitioners_by_strategy
from orchestrator.report.figures.sizes import exchange_by_size
from orchestrator.report.figures.stragglers import straggler_attribution
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.target import time_to_target
from orchestrator.report.figures.timelines import small_timelines
from orchestrator.report.figures.vega import Spec, heading_of, without_heading
from orchestrator.report.formats import listed
from orchestrator.report.metrics.textbook_optimizers import OptimizerPair, optimizer_pairs
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.timelines import Timeline, slowest_runs, strategies_of, timelines_of
from orchestrator.report.quantities.data_partition import (
    partition_summary_of,
    replica_ranks,
    representatives,
)

EXCHANGE_TITLE = "Exchange per step against model size"

# What a reader must know to read each figure.
CAPTIONS = {
    "strategies": (
        "Sorted by accuracy. Means over seeds; the pale bar is the range over seeds. Grey line: serial. "
        "An arrow is a value outside the axis. Colours are the same in all figures; the list of strategies "
        "below names the file of each."
    ),
    "links": (
        "Geometric means over seeds. Serial has no links. The finding below says which differences are "
        "shown."
    ),
    "exchange": (
        "All models of the sweep that are otherwise trained alike. Seconds of communication and waiting "
        "per step of the rank that took most steps, mean over ranks."
    ),
    "textbook_optimizers": (
        "Test loss after each epoch. Line: the library's optimizer. Crosses: the textbook implementation, "
        "from the same initial weights and samples. A colour is a seed."
    ),
    "partitioners": (
        "Means over seeds. Darker cells lose more against the first partitioner, strategy by strategy. Not "
        "shown are strategies with one partitioner."
    ),
    "time_to_target": (
        "Time to the end of the epoch in which the target accuracy was reached, without evaluation: "
        "mean over the seeds that reached it, with their range. If several consecutive epochs "
        "were required, the first of them counts."
    ),
    "time": "Grey line: serial. Shaded: nodes share cores.",
    "speedup": (
        "Relative to the serial run of the same workload and seed. Dashed: ideal speedup. Shaded: nodes "
        "share cores."
    ),
    "cpu_time_speedup": (
        "By the CPU time of the busiest rank: the speedup if every rank had a core of its own and "
        "communication were free. Pipeline stages still wait for each other."
    ),
    "accuracy": (
        "Of the final weights, on the whole test split. An arrow with a number is a value outside the axis."
    ),
    "staleness": (
        "Updates by other workers between a worker's pull of the weights and its push of a gradient, mean "
        "over all gradients. The number of nodes includes the server."
    ),
    "choice": (
        "A point for each configuration, with its number of nodes (ranks, if nodes have several); a line "
        "joins those that differ in nothing else. The bars are ranges over seeds."
    ),
    "accuracy_over_time": (
        "One point for each epoch that all seeds trained. If nodes train local models, points are their "
        "mean, and the last point is the averaged model. Evaluation is not included in the time."
    ),
    "phases": (
        "Every second of training belongs to one phase. Evaluation is not included. A serial bar more than "
        "three times as long as all others is left out."
    ),
    "stragglers": (
        "Share of its training time that each rank (row) waited for each other rank (column), mean over "
        "seeds: in a collective for the last rank to enter, in a receive for the sender. The runs with "
        "most waiting, at most six; colours compare between them."
    ),
    "timelines": (
        "The slowest run of each strategy, at the number of nodes at which strategies are compared, or at "
        "the strategy's largest. A line per rank, a scale per run; times are since training started. Shown "
        "are a few steps in the middle of the run, or one exchange if most steps have none. A line that "
        "stops early is that of a rank that had ended. Serial runs exchange nothing and are not shown."
    ),
    "memory": (
        "Of the rank that keeps most, mean over seeds: weights, gradient and optimizer state from step to "
        "step, activations from the forward to the backward pass. Samples, the interpreter and torch are "
        "not included."
    ),
    "bubbles": (
        "Share of training time that pipeline stages wait, mean over ranks; the pale bar is the range over "
        "seeds. The formula assumes stages of equal length and free communication. Stages that share cores "
        "wait longer."
    ),
    "split_points": (
        "The model in two stages, split before each of these blocks, all else equal; mean over seeds; the "
        "band is the range over seeds. Percent: load balance, mean / maximum busy time. With several "
        "pipelines, the one with most split points."
    ),
    "labels": (
        "The samples that nodes trained on, in the run of the lowest seed for each partitioner and number "
        "of nodes; of many maps, those of the number of nodes at which strategies are compared. Colours "
        "compare between maps of equally many nodes; an empty cell is no sample. JS divergence (bits) and "
        "EMD, the earth mover's distance (0 to 2), are between the labels of a node and of the whole set: "
        "mean and maximum over nodes."
    ),
}
MANY_MAPS = 8  # of labels; of more, those of the compared number of nodes are drawn
# Figures of what links do not change: drawn over that link over which most was run.
WITHOUT_LINKS = ("memory", "labels", "partitioners", "strategies", "accuracy")
# Figures over nodes whose points are in the overview, too, if there is one number of nodes.
IN_OVERVIEW = ("time", "speedup", "cpu_time_speedup", "accuracy")
# Figures of the runs with the first partitioner: with several, or with too many for lines.
WITH_ONE_PARTITIONER = ("stragglers", "memory")
WITH_FEW_PARTITIONERS = (
    *(scaling.name for scaling in SCALINGS),
    "time_to_target",
    "choice",
    "accuracy_over_time",
    "phases",
)


@dataclass(frozen=True)
class Plot:
    """A figure.

    name: its file name without .svg. note: what it leaves out; may be empty. timelines: those drawn, to
    link their files. spec: for a page, which shows the heading above it.
    """

    name: str
    title: str
    caption: str
    note: str
    workload: Workload
    chart: Chart
    timelines: Sequence[Timeline] = ()

    @property
    def spec(self) -> Spec:
        return without_heading(self.chart.spec)

    @property
    def heading(self) -> str:
        return heading_of(self.chart.spec)


def draw(comparison: Comparison) -> list[Plot]:
    """All figures for which there is data, workload by workload."""
    style = Style(comparison.groups)
    plots = []
    workloads = comparison.workloads
    if sizes := exchange_by_size(comparison, style):
        plots.append(_plot("exchange", "exchange", EXCHANGE_TITLE, sizes, "", workloads[0], ()))
    over_links = list(comparison.over_links().values())
    fullest = {max(views, key=lambda view: len(view.groups)).workload for views in over_links}
    by_link = [(views[0].workload, links) for views in over_links if (links := time_by_link(views))]
    for number, (workload, links) in enumerate(by_link, 1):
        file = f"links-{number}" if len(by_link) > 1 else "links"
        plots.append(_plot(file, "links", "Time by link", links, "", workload, ()))
    pairs = {pair.textbook.workload: pair for pair in optimizer_pairs(comparison)}
    paired = {group.workload for pair in pairs.values() for group in (pair.textbook, pair.library)}
    for number, workload in enumerate(workloads, 1):
        view = comparison.view(workload)
        timelines, missing = timelines_of(view, comparison.windows)
        drawn = [*_textbook(pairs.get(workload)), *_figures(view, style, timelines)]
        for name, title, figure in drawn:
            if name == "accuracy_over_time" and workload in paired:  # loss curves show more
                continue
            if name in WITHOUT_LINKS and not workload.faults and workload not in fullest:
                continue
            file = f"{name}-{number}" if len(workloads) > 1 else name
            linked = timelines if name == "timelines" else []
            note = _note(view, name, missing)
            plots.append(_plot(file, name, title, figure, note, workload, linked))
    return plots


def _plot(
    file: str,
    name: str,
    title: str,
    figure: Chart,
    note: str,
    workload: Workload,
    timelines: Sequence[Timeline],
) -> Plot:
    return Plot(file, title, CAPTIONS[name], note, workload, figure, timelines)


def _partitioner_note(view: WorkloadView, figure: str) -> str:
    """What a figure says if it leaves out the other partitioners of a workload; otherwise nothing."""
    shown = view.candidates
    if figure in WITH_ONE_PARTITIONER:
        shown = view.reference_candidates
    elif figure in WITH_FEW_PARTITIONERS:
        shown = view.ranked_candidates
    return f"Only with {view.partitioners[0]}." if len(shown) < len(view.candidates) else ""


def _note(view: WorkloadView, figure: str, missing: Mapping[str, Sequence[str]]) -> str:
    """What follows the caption of a figure. missing: by reason, the strategies without a timeline."""
    if figure != "timelines":
        return _partitioner_note(view, figure)
    notes = [f"Without a timeline: {listed([*names])} ({reason})." for reason, names in missing.items()]
    if faster := strategies_of(view) - len(slowest_runs(view)):
        notes.append(f"Faster strategies that are not shown: {faster}.")
    return " ".join(notes)


def _textbook(pair: OptimizerPair | None) -> Iterator[tuple[str, str, Chart]]:
    if pair:
        yield "textbook_optimizers", "Loss curves of textbook and library optimizers", loss_curves(pair)


def _figures(
    view: WorkloadView, style: Style, timelines: Sequence[Timeline]
) -> Iterator[tuple[str, str, Chart]]:
    """Name, title and figure of each."""
    figure: Chart | None
    # Faults cost more than the time of training; a target is the end of a run.
    ends_alike = not view.workload.faults and view.workload.target_accuracy is None
    if ends_alike and (figure := accuracy_and_time(view.line_groups, style)):
        yield "choice", f"Accuracy and {view.clock} time", figure
    overview = strategies_at_a_glance(view, style)
    if overview:
        yield "strategies", "Strategies at a glance", overview
    counts = {group.shape.ranks for group in view.line_groups if not group.serial}
    if figure := partitioners_by_strategy(view):
        yield "partitioners", "Accuracy by partitioner and strategy", figure
    if figure := time_to_target(view.line_groups, style):
        yield "time_to_target", "Time to target accuracy", figure
    for scaling in SCALINGS if any(not group.serial for group in view.groups) else ():
        if scaling.only_on not in (None, view.clock):
            continue
        if (overview or view.workload.link) and len(counts) == 1 and scaling.name in IN_OVERVIEW:
            continue
        if figure := lines_over_nodes(view.line_groups, style, scaling):
            yield scaling.name, scaling.title_on(view.clock), figure
    if figure := accuracy_over_time(view.line_groups, style, view.shape):
        yield "accuracy_over_time", f"Accuracy against {view.clock} time", figure
    if figure := time_by_phase(view.line_groups, view.shape):
        yield "phases", f"{view.clock.capitalize()} time by phase", figure
    if figure := straggler_attribution(view):
        yield "stragglers", "Straggler attribution", figure
    if figure := small_timelines(view, timelines):
        yield "timelines", f"Timelines in {view.clock} time", figure
    if figure := memory_per_rank(view):
        yield "memory", "Memory of the fullest rank", figure
    if figure := bubbles(view, style):
        yield "bubbles", "Pipeline bubble", figure
    if figure := split_points_figure(view, style):
        yield "split_points", "Split points", figure
    partitions = [(row, partition_summary_of(row)) for row in representatives(view.groups)]
    maps = [
        LabelMap(row.partitioner_label, row.shape, summary, replica_ranks(row), row.seed)
        for row, summary in partitions
        if summary
    ]
    if len(maps) > MANY_MAPS:
        maps = [each for each in maps if each.shape == view.shape] or maps
    if maps:
        yield "labels", "Samples per rank and label", label_maps(maps)

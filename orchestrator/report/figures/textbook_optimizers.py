"""Loss curves of an optimiser by hand over those of the library's."""

from __future__ import annotations

from matplotlib.figure import Figure

from orchestrator.report.figures.style import INK, STRATEGY_COLOURS, WIDTH_IN, Legend, set_title
from orchestrator.report.metrics.textbook_optimizers import OptimizerPair, losses

HEIGHT_IN = 2.6


def loss_curves(twins: OptimizerPair) -> Figure:
    """A line for each seed of the library's, and crosses of the same colour for ours."""
    mine, library = twins.names
    legend = Legend()
    legend.explain(library, color=INK)
    legend.explain(mine, color=INK, linestyle="none", marker="x")
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN + legend.height_in), layout="constrained")
    axes = figure.add_subplot()
    for (one, other), colour in zip(twins.pairs, STRATEGY_COLOURS, strict=False):
        for row, look in ((other, {"linewidth": 1.6}), (one, {"linestyle": "none", "marker": "x"})):
            curve = losses(row)
            axes.plot(range(1, len(curve) + 1), curve, color=colour, **look)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("test loss")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    set_title(figure, f"{mine} over {library}, batch {twins.textbook.first.run.batch_size:,}")
    legend.draw(figure)
    return figure

"""Time to the target accuracy over the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.lines import Scaling, lines_over_nodes
from orchestrator.report.figures.style import Style, series_name
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import TIME_TO_TARGET_S
from orchestrator.report.quantities.learning import seeds_at_target

MOST_NOTES = 6  # lines under the title


def time_to_target(groups: Sequence[Group], style: Style) -> Chart | None:
    """A point is the mean over the seeds that reached the target; None if no run did, or without a target.

    Strategies that did not reach it have no time: they are named under the title.
    """
    shown = [group for group in groups if group.ok and group.first.run.target_accuracy is not None]
    if not shown:
        return None
    target = formats.percent(shown[0].first.run.target_accuracy)
    title = f"{{Clock}} time to {target} test accuracy"
    scaling = Scaling("time_to_target", TIME_TO_TARGET_S, title, "{clock} time, s")
    return lines_over_nodes(shown, style, scaling, _notes(shown))


def _notes(shown: Sequence[Group]) -> list[str]:
    """The configurations of which some seeds missed the target, a line for each series."""
    missed: dict[str, list[str]] = {}
    for group in shown:
        reached, seeds = seeds_at_target(group)
        if reached < seeds:
            at = f"{group.shape.label} ({reached} of {seeds} seeds)" if reached else group.shape.label
            missed.setdefault(series_name(group), []).append(at)
    if not missed:
        return []
    notes = [f"{series}: {formats.first_few(shapes)}" for series, shapes in missed.items()]
    more = notes[MOST_NOTES:]
    head = f"Not reached by all seeds in {formats.count(shown[0].workload.epochs, 'epoch')}:"
    rest = [f"and {len(more)} more"] if more else []
    return [head, *notes[:MOST_NOTES], *rest]

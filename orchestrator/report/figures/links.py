"""The time of each strategy over each link, for sweeps over several links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Any

import altair as alt

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.grid import Grid, Side
from orchestrator.report.figures.style import series_name
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import TRAIN_S
from orchestrator.report.quantities.links import OWN_LINKS

MIN_LINKS = 2
SLOWEST = 10.0  # times as long as the fastest over the same link: full colour
TIPS = {
    "series": "strategy",
    "link": "links",
    "written": "time",
    "range": "over seeds",
    "slower": "of the fastest",
    "accuracy": "test accuracy",
}


def time_by_link(views: Sequence[WorkloadView]) -> Chart | None:
    """A strategy per row, serial first; a link per column. None for fewer than two links.

    Args:
        views: of one workload over several links.
    """
    records = [record for view in views for record in _records(view)]
    links = list(dict.fromkeys(record["link"] for record in records))
    names = list(dict.fromkeys(record["series"] for record in records))
    if len(links) < MIN_LINKS:
        return None
    clock, shape = views[0].clock, views[0].shape
    title = alt.TitleParams(
        f"{clock.capitalize()} time by link, {shape.label}",
        subtitle="The darker, the slower than the fastest distributed strategy over the same link",
    )
    grid = Grid(records, Side("series", names), Side("link", links), "shade", log(SLOWEST), TIPS)
    return grid.chart(title)


def _records(view: WorkloadView) -> Iterator[dict[str, Any]]:
    """The cells of one link; none if no distributed strategy has a time."""
    timed = [group for group in view.ranked_candidates if TRAIN_S.sample(group)]
    serial = [view.serial] if view.serial and TRAIN_S.sample(view.serial) else []
    if not timed:
        return
    fastest = min(map(TRAIN_S.mean_of, timed))
    for group in [*serial, *timed]:
        yield _record(group, view.workload.link or OWN_LINKS, TRAIN_S.mean_of(group) / fastest)


def _record(group: Group, link: str, slower: float) -> dict[str, Any]:
    spread = TRAIN_S.over(group)
    return {
        "series": series_name(group),
        "link": link,
        "written": formats.seconds(TRAIN_S.mean_of(group)),
        "range": spread.range_of_seeds(formats.seconds) if spread else "",
        "slower": f"{formats.ratio(slower)} times",
        "accuracy": formats.percent(group.accuracy.mean if group.accuracy else None),
        "shade": 0.0 if group.serial else log(slower),
    }

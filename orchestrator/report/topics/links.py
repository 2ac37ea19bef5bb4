"""Links: the fastest strategy over each, and links that were requested and not enforced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.grid import Grid, Side
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.lazy import alt
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Answer, Ask, compared_data
from orchestrator.report.formats import percent, ratio, seconds
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, one_per_work
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.links import OWN_LINKS, measured
from orchestrator.report.topics.speed import accuracy_of, timed
from orchestrator.report.topics.topic import Findings, Topic

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


def links(comparison: Comparison) -> Findings:
    """The fastest strategy over each link, where a workload was trained over several.

    Strategies are compared over the same link, with the comparisons of the workload's other findings.
    """
    over_links = comparison.over_links()
    compared = [view for views in over_links.values() for view in views]
    answers = yield [Ask.best(Q.train_s, timed(one_per_work(view.ranked_candidates))) for view in compared]
    rankings = {view.workload: answer for view, answer in zip(compared, answers, strict=True)}
    for base, views in over_links.items():
        of_views = [(view, rankings[view.workload]) for view in views]
        found = [_over_link(view, ranking) for view, ranking in of_views if len(ranking.groups) > 1]
        if len(found) < MIN_LINKS:
            continue
        yield Finding(
            "links",
            tuple(row for rows, _ in found for row in rows),
            {
                "links": [data for _, data in found],
                "compared": [compared for _, data in found for compared in data["compared"]],
            },
            base if len(comparison.workloads) > len(views) else None,
        )


def _over_link(view: WorkloadView, ranking: Answer) -> tuple[tuple[Row, ...], dict[str, Any]]:
    """What was found over one link, and the runs that it follows from."""
    groups = ranking.groups
    first, second = groups[:2]
    rows = evidence(groups)
    return evidence([first, second]), {
        "clock": view.clock,
        "link": view.workload.link,
        "enforced": not any(row.link_not_enforced for row in rows),
        "measured": measured(rows),
        "fastest": view.name(first) if ranking.best is first else None,
        "may_be_fastest": [view.name(group) for group in ranking.may_be_best if group is not first],
        "order": [view.name(group) for group in groups],
        "train_s": [Q.train_s.mean_of(group) for group in groups],
        "accuracy": [accuracy_of(group) for group in groups],
        "second": ranking.between(second, first).data(),
        "compared": compared_data(ranking.of(first)),
    }


def not_enforced(comparison: Comparison) -> Findings:
    """The runs whose wall time does not contain the links that they request."""
    rows = [row for row in comparison.rows if row.ok and row.link_not_enforced]
    if not rows:
        return
    yield Finding(
        "link_not_enforced",
        tuple(rows),
        {
            "runtimes": sorted({row.result.runtime for row in rows}),
            "runs": len(rows),
            "in_wall_time": [row.key for row in rows if row.clock == "wall"],
        },
    )


def time_by_link(views: Sequence[WorkloadView]) -> Chart | None:
    """A strategy per row, serial first; a link per column. None for fewer than two links.

    Args:
        views: the views of one workload over several links.
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
    timed = [group for group in view.ranked_candidates if Q.train_s.sample(group)]
    serial = [view.serial] if view.serial and Q.train_s.sample(view.serial) else []
    if not timed:
        return
    fastest = min(map(Q.train_s.mean_of, timed))
    for group in [*serial, *timed]:
        yield _record(group, view.workload.link or OWN_LINKS, Q.train_s.mean_of(group) / fastest)


def _record(group: Group, link: str, slower: float) -> dict[str, Any]:
    spread = Q.train_s.over(group)
    return {
        "series": group.series,
        "link": link,
        "written": seconds(Q.train_s.mean_of(group)),
        "range": spread.range_of_seeds(seconds) if spread else "",
        "slower": f"{ratio(slower)} times",
        "accuracy": percent(group.accuracy.mean if group.accuracy else None),
        "shade": 0.0 if group.serial else log(slower),
    }


def _once(subject: Subject) -> Chart | None:
    """The figure, at the first of the workloads that differ only in their links."""
    comparison, own = subject.comparison, subject.view.workload
    alike = [
        each for each in comparison.workloads if not each.faults and each.without_links == own.without_links
    ]
    if len(alike) < MIN_LINKS or alike[0] != own:
        return None
    return time_by_link([comparison.view(each) for each in alike])


TOPIC = Topic(
    sweep_rules=(links, not_enforced),
    figures=(
        FigureKind(
            "links",
            "links",
            "Geometric means over seeds. Serial has no links. The finding below says which differences are "
            "shown.",
            _once,
            shows=("links",),
        ),
    ),
)

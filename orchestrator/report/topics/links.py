"""Links: the fastest strategy over each, and links that were requested and not enforced."""

from __future__ import annotations

from math import log
from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import ACCURACY, INTERVAL, FigureKind, Point, Subject
from orchestrator.report.figures.maps import Map, grid
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Answer, Ask, compared_data
from orchestrator.report.formats import ratio
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import one_per_work
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.links import OWN_LINKS, measured
from orchestrator.report.topics.speed import accuracy_of, timed
from orchestrator.report.topics.topic import Findings, Topic

MIN_LINKS = 2
SLOWEST = 10.0  # times as long as the fastest over the same link: full colour


def links(comparison: Comparison) -> Findings:
    """The fastest strategy over each link, where a workload was trained over several.

    Strategies are compared over the same link, with the comparisons of the workload's other findings.
    """
    over_links = comparison.over_links()
    compared = [view for views in over_links.values() for view in views]
    answers = iter(
        (yield [Ask.best(Q.train_s, timed(one_per_work(view.ranked_candidates))) for view in compared])
    )
    for base, views in over_links.items():
        rankings = [(view, next(answers)) for view in views]
        found = [(view, ranking) for view, ranking in rankings if len(ranking.groups) > 1]
        if len(found) < MIN_LINKS:
            continue
        over = [_over_link(view, ranking) for view, ranking in found]
        rows = evidence([group for _, ranking in found for group in ranking.groups[:2]])
        data = {"links": over, "compared": [each for link in over for each in link["compared"]]}
        yield Finding("links", rows, data, base if len(comparison.workloads) > len(views) else None)


def _over_link(view: WorkloadView, ranking: Answer) -> dict[str, Any]:
    """What was found over one link."""
    first, second, *_ = groups = ranking.groups
    rows = evidence(groups)
    return {
        "clock": view.clock,
        "link": view.workload.link,
        "enforced": not any(row.link_not_enforced for row in rows),
        "measured": measured(rows),
        "fastest": ranking.best is first,
        "may_be_fastest": [view.name(group) for group in ranking.may_be_best if group is not first],
        "order": [view.name(group) for group in groups],
        "train_s": [Q.train_s.mean_of(group) for group in groups],
        "accuracy": accuracy_of(first),
        "second": ranking.between(second, first).data(),
        "compared": compared_data(ranking.of(first)),
    }


def not_enforced(comparison: Comparison) -> Findings:
    """The runs whose wall time does not contain the links that they request."""
    rows = tuple(row for row in comparison.rows if row.ok and row.link_not_enforced)
    if rows:
        in_wall_time = [row.key for row in rows if row.clock == "wall"]
        runtimes = sorted({row.result.runtime for row in rows})
        data = {"runtimes": runtimes, "runs": len(rows), "in_wall_time": in_wall_time}
        yield Finding("link_not_enforced", rows, data)


def time_by_link(subject: Subject) -> Chart | None:
    """A strategy per row, serial first; a link per column. None for fewer than two links.

    At the first of the workloads that differ only in their links.
    """
    view, comparison = subject.view, subject.comparison
    views = comparison.over_links().get(view.workload.without_links, [])
    if view.workload.faults or not views or views[0].workload != view.workload:
        return None
    records = [record for each in views for record in _over(each, subject)]
    links = list(dict.fromkeys(record["column"] for record in records))
    names = list(dict.fromkeys(record["row"] for record in records))
    if len(links) < MIN_LINKS:
        return None
    tips = {"row": "strategy", "column": "links", "written": "time", "slower": "of the fastest"}
    return grid(
        Map(records, names, links, log(SLOWEST), "loss", tips | INTERVAL | ACCURACY),
        f"{view.clock.capitalize()} time by link, {view.shape.label}",
        "The darker, the slower than the fastest distributed strategy over the same link",
    )


def _over(view: WorkloadView, subject: Subject) -> list[Point]:
    """The cells of one link; none if no distributed strategy has a time."""
    serial = [view.serial] if view.serial else []
    points = subject.points([*serial, *view.ranked_candidates], Q.train_s)
    fastest = min((point["mean"] for point in points if not point["serial"]), default=None)
    return [
        {
            **point,
            "row": point["series"],
            "column": view.workload.link or OWN_LINKS,
            "slower": f"{ratio(point['mean'] / fastest)} times",
            "amount": 0.0 if point["serial"] else log(point["mean"] / fastest),
        }
        for point in points
        if fastest
    ]


TOPIC = Topic(
    sweep_rules=(links, not_enforced),
    figures=(
        FigureKind(
            "links",
            "links",
            "Geometric means over seeds. Serial has no links. The finding below says which differences are "
            "shown.",
            time_by_link,
            shows=("links",),
        ),
    ),
)

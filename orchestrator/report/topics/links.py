"""Links: the fastest strategy over each, and links that were requested and not enforced."""

from __future__ import annotations

from collections.abc import Iterator
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
from orchestrator.report.model.rows import Row
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


def time_by_link(subject: Subject) -> Chart | None:
    """A strategy per row, serial first; a link per column. None for fewer than two links.

    At the first of the workloads that differ only in their links.
    """
    view, comparison = subject.view, subject.comparison
    views = comparison.over_links().get(view.workload.without_links, [])
    if view.workload.faults or len(views) < MIN_LINKS or views[0].workload != view.workload:
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


def _over(view: WorkloadView, subject: Subject) -> Iterator[Point]:
    """The cells of one link; none if no distributed strategy has a time."""
    serial = [view.serial] if view.serial else []
    points = subject.points([*serial, *view.ranked_candidates], Q.train_s)
    fastest = min((point["mean"] for point in points if not point["serial"]), default=None)
    for point in points if fastest else ():
        slower = point["mean"] / fastest
        yield {
            **point,
            "row": point["series"],
            "column": view.workload.link or OWN_LINKS,
            "slower": f"{ratio(slower)} times",
            "amount": 0.0 if point["serial"] else log(slower),
        }


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

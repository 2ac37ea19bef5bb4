"""Findings about links: the fastest strategy over each, and links that were requested and not enforced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.findings.speed import time_and_accuracy, timed
from orchestrator.report.formats import count, first_few, listed, seconds
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import one_per_work
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import TRAIN_S
from orchestrator.report.quantities.links import OWN_LINKS, measured


def links(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """The fastest strategy over each link, where a workload was trained over several.

    Strategies are compared over the same link, with the comparisons of the workload's other findings.
    """
    for base, views in comparison.over_links().items():
        found = [each for view in views if (each := _fastest(view, claims))]
        if len(found) < 2:
            continue
        yield Finding(
            "links",
            " ".join(text for text, _, _ in found),
            tuple(row for _, _, rows in found for row in rows),
            {
                "links": [data for _, data, _ in found],
                "compared": [each for _, data, _ in found for each in data["compared"]],
            },
            base if len(comparison.workloads) > len(views) else None,
        )


def _fastest(view: WorkloadView, claims: Claims) -> tuple[str, dict[str, Any], tuple[Row, ...]] | None:
    """Sentences about one link, its numbers and its runs; None with less than two strategies."""
    groups = timed(one_per_work(view.ranked_candidates))
    if len(groups) < 2:
        return None
    ranking = claims.all_pairs(TRAIN_S, groups)
    first, second = groups[:2]
    compared = ranking.between(second, first)
    rows = evidence(groups)
    over = "Over" if view.clock == "wall" else "In cluster time, over"
    text = f"{over} {_link(view, rows)}, {view.name(first)} took {time_and_accuracy(first)}"
    if ranking.best is first:
        text += f", the fastest of {count(len(groups), 'configuration')}"
    text += f"; {view.name(second)} took {seconds(TRAIN_S.mean_of(second))}{compared.aside}."
    even = [view.name(group) for group in ranking.may_be_best if group is not first]
    if ranking.best is not first and even:
        text += f" Which is the fastest is undecided between {view.name(first)} and {first_few(even)}."
    data = {
        "link": view.workload.link,
        "fastest": view.name(first) if ranking.best is first else None,
        "order": [view.name(group) for group in groups],
        "train_s": [TRAIN_S.mean_of(group) for group in groups],
        "accuracy": [group.accuracy.mean if group.accuracy else None for group in groups],
        "compared": compared_data(ranking.of(first)),
    }
    return text, data, evidence([first, second])


def _link(view: WorkloadView, rows: Sequence[Row]) -> str:
    """`links of 10 Mbit/s, 1 ms (measured: 9.52 Mbit/s, 1.10 ms)`."""
    if not view.workload.link:
        return OWN_LINKS
    enforced = not any(row.link_not_enforced for row in rows)
    speeds = measured(rows)
    achieved = f"measured: {speeds}" if speeds else "not measured"
    return f"links of {view.workload.link} ({achieved if enforced else 'not enforced'})"


def not_enforced(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """The runs whose wall time does not contain the links that they request."""
    rows = [row for row in comparison.rows if row.ok and row.link_not_enforced]
    if not rows:
        return
    runtimes = listed(sorted({row.result.runtime for row in rows}))
    text = (
        f"Runtime {runtimes} did not enforce the links that {count(len(rows), 'run')} request: their "
        "messages took this machine's own links, and their wall times do not contain the requested ones. "
        "Their cluster times do: a replay of their traces over the requested bandwidth and latency, "
        "without jitter and loss"
    )
    in_wall_time = [row for row in rows if row.clock == "wall"]
    if in_wall_time:
        text += (
            f". {count(len(in_wall_time), 'run')} of these lack cluster times and are compared in wall time"
        )
    yield Finding(
        "link_not_enforced", f"{text}.", tuple(rows), {"in_wall_time": [row.key for row in in_wall_time]}
    )

"""Stragglers: the rank that others wait for, the cost of a slow node, and a map of all waiting."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from textwrap import wrap
from typing import Any

import numpy as np

from orchestrator.report.figures.chart import FULL_WIDTH, WIDTH, Chart, chart_of, layered, panel_header
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.sentences import Shown
from orchestrator.report.figures.theme import colour
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import percent, points
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.stragglers import Straggler, mean_wait_shares, straggler_of, wait_shares
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 4
MIN_SHARE = 0.05  # of the wall time that is waited for a rank; a smaller one is not shown
MAX_PANELS = 6
MAX_COLUMNS = 3
MOST_ROWS = 16  # of a map; with more ranks, a row and a column are several
MAX_NUMBERED_RANKS = 8  # ranks; smaller cells have no room for numbers
NUMBERED_OPACITY = 0.55  # of the largest share, so that text over it stays readable
ROW = 26  # pixels of a numbered row
GAP = 50  # pixels between panels


def straggler(view: WorkloadView) -> Findings:
    """The rank that the others waited for, if it is claimed to cause more than an even share of it."""
    known = [(slow, group) for group in view.reference_candidates if (slow := _straggler(group))]
    measured = {group.first.key: slow for slow, group in known}
    most = max((slow.ranks for slow, _ in known), default=1)
    (answer,) = yield [Ask(_excess(known), [(group, group) for _, group in known], chosen_from=most)]
    found = [(measured[each.left.first.key], each) for each in answer.compared if each.verdict == "more"]
    found = [(slow, each) for slow, each in found if _notable(slow)]
    found.sort(key=lambda item: -item[0].share_of_time)
    for slow, each in found[:MAX_NAMED]:
        group = each.left
        yield Finding(
            "straggler",
            evidence([group]),
            {
                "strategy": view.name(group),
                "nodes": group.shape.label,
                "noun": group.shape.rank_noun,
                "ranks": slow.ranks,
                "rank": slow.rank,
                "server": slow.rank < group.first.run.strategy.servers,
                "clock": view.clock,
                "share_of_time": slow.share_of_time,
                "share_of_waiting": slow.share_of_waiting,
                "compared": compared_data([each]),
            },
        )


def _straggler(group: Group) -> Straggler | None:
    """The rank that the others waited for most, mean over seeds."""
    return straggler_of(mean_wait_shares(group)) if group.first.times_compare else None


def _notable(slow: Straggler | None) -> bool:
    return slow is not None and slow.share_of_time >= MIN_SHARE


def _excess(stragglers: Sequence[tuple[Straggler, Group]]) -> Quantity:
    """How far the share of the waiting that was for a group's straggler is above an even share."""
    above = {
        row.key: float(shares.sum(axis=0)[slow.rank] / shares.sum()) - 1 / slow.ranks
        for slow, group in stragglers
        for row in group.ok_rows
        if (shares := wait_shares(row)) is not None and shares.any()
    }
    return Quantity(
        points, lambda row: above.get(row.key), within=lambda reference: (-1, 1), name="straggler_excess"
    )


def slow_nodes(comparison: Comparison) -> Findings:
    """The cost of nodes that are slower than the others, compared with the same run on equal nodes."""
    equal = {
        group.first.configuration("node_speed"): group
        for group in comparison.groups
        if not group.shape.slower_nodes
    }
    slower = [view for view in map(comparison.view, comparison.workloads) if view.workload.slower_speeds]
    answers = yield [
        Ask.of(
            Q.train_s,
            [
                (group, other)
                for group in view.reference_candidates
                if (other := equal.get(group.first.configuration("node_speed")))
                and _same_waiting(group, other)
            ],
        )
        for view in slower
    ]
    for view, answer in zip(slower, answers, strict=True):
        for compared in answer.compared:
            group = compared.left
            yield Finding(
                "slow_node",
                evidence([group, compared.right]),
                {
                    "subject": f"{view.subject(group)} on {group.shape.label}",
                    "strategy": view.name(group),
                    "train_s": compared.values[0],
                    "equal_train_s": compared.values[1],
                    "compared": compared_data([compared]),
                },
                view.workload if view.one_of_many else None,
            )


def _same_waiting(group: Group, other: Group) -> bool:
    """Whether the slow node is the only difference.

    Over Open MPI, ranks poll while they wait, unless a node has less than a core per rank: then all ranks
    sleep. On shared cores polling takes CPU from ranks that work: four polling ranks on two cores took four
    times as long as sleeping ones with a last node limited to 0.25 cpu.
    """
    if not group.first.times_compare:
        return False
    return group.transport != "mpi" or group.first.run.oversubscribed == other.first.run.oversubscribed


def no_common_clock(comparison: Comparison) -> Findings:
    """Runs on a runtime whose nodes share no clock, which have no straggler attribution."""
    rows = [row for row in comparison.rows if row.ok and not row.wall_result.runtime_info.one_clock]
    if rows:
        yield Finding("no_common_clock", tuple(rows), {"runs": len(rows)})


def straggler_attribution(view: WorkloadView) -> Chart | None:
    """Heat maps rank × rank at the view's shape, for the runs in which ranks waited for one of them."""
    known = [
        (group.series, shares)
        for group in view.reference_candidates
        if (shares := mean_wait_shares(group)) is not None
    ]
    shown = [item for item in known if _notable(straggler_of(item[1]))]
    shown = sorted(shown, key=lambda item: -item[1].sum())[:MAX_PANELS]
    if not shown:
        return None
    across = ceil(len(shown) / ceil(len(shown) / MAX_COLUMNS))
    ranks, noun = len(shown[0][1]), view.shape.rank_noun
    together = ceil(ranks / MOST_ROWS)
    width = WIDTH if across == 1 else (FULL_WIDTH + GAP) // across - GAP
    records = [record for item in shown for record in _records(*item, together)]
    panel = _panel(records, ranks, noun, together).properties(
        width=width, height=ROW * ranks if ranks <= MAX_NUMBERED_RANKS else min(width, 16 * ranks)
    )
    titles = {series: _title(series, shares, noun, width) for series, shares in shown}
    drawn = (
        panel.facet(
            facet=alt.Facet("series:N", sort=[*titles], title=None, header=panel_header(titles)),
            columns=across,
        )
        .resolve_axis(x="independent", y="independent")
        .properties(
            title=alt.TitleParams(
                f"Straggler attribution, {view.shape.label}",
                subtitle=f"Share of {view.clock} time that {_waits(noun, together)}",
            )
        )
    )
    return Chart.of(drawn, wide=across > 1)


def _title(series: str, shares: np.ndarray, noun: str, width: int) -> list[str]:
    most = straggler_of(shares)
    note = [f"{noun} {most.rank}: {percent(most.share_of_waiting)} of all waiting"] if most else []
    return [*wrap(series, width // 7), *note]


def _waits(noun: str, together: int) -> str:
    if together == 1:
        return f"a {noun} (row) waits for another (column)"
    return f"one of {together} {noun}s (row) waits for {together} {noun}s (column), mean over the row"


def _records(series: str, shares: np.ndarray, together: int) -> list[dict[str, Any]]:
    """A record per cell: the mean over the waiting ranks, summed over those that they wait for."""
    firsts = range(0, len(shares), together)
    names = {first: _named(first, min(first + together, len(shares)) - 1) for first in firsts}
    return [
        {
            "series": series,
            "waiting": rank,
            "for": other,
            "waiting_ranks": names[rank],
            "for_ranks": names[other],
            "share": None
            if rank == other and together == 1
            else round(
                float(shares[rank : rank + together, other : other + together].sum(axis=1).mean()), 5
            ),
        }
        for rank in firsts
        for other in firsts
    ]


def _named(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _panel(records: Sequence[dict[str, Any]], ranks: int, noun: str, together: int) -> alt.LayerChart:
    """One map of all panels; they have one colour scale."""
    numbered = ranks <= MAX_NUMBERED_RANKS
    most = max(record["share"] or 0.0 for record in records)
    ticks = list(range(0, ranks, together))
    axis: dict[str, Any] = {"values": ticks, "ticks": False, "domain": False, "labelAngle": 0}
    base = chart_of(records).encode(
        x=alt.X("for:O", axis=alt.Axis(title=f"{noun} waited for", **axis)),
        y=alt.Y("waiting:O", axis=alt.Axis(title=f"waiting {noun}", **axis)),
    )
    own = base.transform_filter("datum.share === null").mark_rect(color=colour("shade"), aria=False)
    legend = alt.Legend(
        title="share of time", format=".0%", orient="top", symbolFillColor=colour("wait_map")
    )
    cells = (
        base.transform_filter("datum.share !== null")
        .mark_rect(
            color=colour("wait_map"), stroke=colour("paper"), strokeWidth=1 if numbered else 0, aria=False
        )
        .encode(
            opacity=alt.Opacity(
                "share:Q",
                scale=alt.Scale(domain=[0, most], range=[0, NUMBERED_OPACITY if numbered else 1.0]),
                legend=None if numbered else legend,
            ),
            tooltip=[
                alt.Tooltip("series:N", title="strategy"),
                alt.Tooltip("waiting_ranks:N", title=f"waiting {noun}"),
                alt.Tooltip("for_ranks:N", title=f"{noun} waited for"),
                alt.Tooltip("share:Q", title="share of its time", format=".1%"),
            ],
        )
    )
    if not numbered:
        return layered(own, cells)
    numbers = (
        base.transform_filter("datum.share !== null")
        .mark_text(fontSize=11)
        .encode(text=alt.Text("share:Q", format=".0%"))
    )
    return layered(own, cells, numbers)


def _none_shown(shown: Shown) -> str:
    at = f"on {shown.view.shape.label}{shown.view.of_reference}"
    return f"No rank is shown to delay the others more than its share {at}."


TOPIC = Topic(
    rules_with_faults=(straggler,),
    sweep_rules=(slow_nodes, no_common_clock),
    figures=(
        FigureKind(
            "stragglers",
            "waiting",
            "Share of its training time that each rank (row) waited for each other rank (column), mean "
            "over seeds: in a collective for the last rank to enter, in a receive for the sender. The "
            "runs with most waiting, at most six; colours compare between them.",
            lambda subject: straggler_attribution(subject.view),
            shows=("straggler",),
            otherwise=_none_shown,
            partitioners="first",
        ),
    ),
)

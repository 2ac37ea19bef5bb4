"""Stragglers: the rank that others wait for, the cost of a slow node, and a map of all waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.maps import MAX_COLUMNS, Map, maps
from orchestrator.report.figures.sentences import Shown
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
from orchestrator.report.formats import percent, points
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.stragglers import Straggler, mean_wait_shares, straggler_of, wait_shares
from orchestrator.report.topics.runs import of_runs
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 4
MIN_SHARE = 0.05  # of the wall time that is waited for a rank; a smaller one is not shown
MAX_PANELS = 6
MOST_ROWS = 16  # of a map; with more ranks, a row and a column are several


def straggler(view: WorkloadView) -> Findings:
    """The rank that the others waited for, if it is claimed to cause more than an even share of it."""
    slowest = {
        id(group): slow
        for group in view.reference_candidates
        if group.first.times_compare and (slow := straggler_of(mean_wait_shares(group)))
    }
    known = [group for group in view.reference_candidates if id(group) in slowest]
    most = max((slow.ranks for slow in slowest.values()), default=1)
    excess = _excess([(slowest[id(group)], group) for group in known])
    (answer,) = yield [Ask(excess, [(group, group) for group in known], chosen_from=most)]
    found = [(slowest[id(each.left)], each) for each in answer.compared if each.verdict == "more"]
    found = [(slow, each) for slow, each in found if slow.share_of_time >= MIN_SHARE]
    for slow, each in sorted(found, key=lambda item: -item[0].share_of_time)[:MAX_NAMED]:
        group = each.left
        yield Finding.of(
            "straggler",
            [group],
            [each],
            strategy=view.name(group),
            nodes=group.shape.label,
            noun=group.shape.rank_noun,
            ranks=slow.ranks,
            rank=slow.rank,
            server=slow.rank < group.first.run.strategy.servers,
            clock=view.clock,
            share_of_time=slow.share_of_time,
            share_of_waiting=slow.share_of_waiting,
        )


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
        for each in answer.compared:
            yield Finding.of(
                "slow_node",
                [each.left, each.right],
                [each],
                workload=view.workload if view.one_of_many else None,
                subject=f"{view.subject(each.left)} on {each.left.shape.label}",
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
    return of_runs("no_common_clock", rows)


def straggler_attribution(subject: Subject) -> Chart | None:
    """Maps rank × rank at the view's shape, for the runs in which ranks waited for one of them."""
    view, known = subject.view, []
    for group in view.reference_candidates:
        shares = mean_wait_shares(group)
        slow = straggler_of(shares)
        if shares is not None and slow and slow.share_of_time >= MIN_SHARE:
            known.append((group.series, shares, slow))
    if not known:
        return None
    known.sort(key=lambda each: -each[1].sum())
    noun, together = view.shape.rank_noun, ceil(view.shape.ranks / MOST_ROWS)
    waits = (
        f"a {noun} (row) waits for another (column)"
        if together == 1
        else f"one of {together} {noun}s (row) waits for {together} {noun}s (column), mean over the row"
    )
    found = [_map(*each, noun, together) for each in known[:MAX_PANELS]]
    most = max(each.most for each in found)
    return maps(
        [replace(each, most=most) for each in found],
        MAX_COLUMNS,
        f"Straggler attribution, {view.shape.label}",
        f"Share of {view.clock} time that {waits}",
    )


def _map(series: str, shares: np.ndarray, slow: Straggler, noun: str, together: int) -> Map:
    """A cell is the mean over the waiting ranks, summed over those that they wait for."""
    firsts = range(0, len(shares), together)
    lasts = [min(first + together, len(shares)) - 1 for first in firsts]
    names = [str(a) if a == b else f"{a}–{b}" for a, b in zip(firsts, lasts, strict=True)]
    tiles = np.add.reduceat(np.add.reduceat(shares, firsts, axis=0), firsts, axis=1)
    tiles = tiles / (np.array(lasts) - firsts + 1)[:, None]
    row, column = f"waiting {noun}", f"{noun} waited for"
    records = [
        {
            "series": series,
            "row": names[waiting],
            "column": names[other],
            "amount": round(float(share), 5),
            "written": f"{share:.0%}",
            "share": percent(share),
        }
        for (waiting, other), share in np.ndenumerate(tiles)
    ]
    own = {"amount": None, "written": "", "share": ""}  # no rank waits for itself
    return Map(
        records=[
            {**each, **own} if each["row"] == each["column"] and together == 1 else each for each in records
        ],
        rows=names,
        columns=names,
        most=float(tiles.max()),
        token="wait_map",
        tips={"series": "strategy", "row": row, "column": column, "share": "share of its time"},
        titles=(row, column),
        title=series,
        notes=[f"{noun} {slow.rank}: {percent(slow.share_of_waiting)} of all waiting"],
    )


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
            straggler_attribution,
            shows=("straggler",),
            otherwise=_none_shown,
            partitioners="first",
        ),
    ),
)

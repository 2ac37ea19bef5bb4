"""Findings about stragglers: the rank that others wait for, and the cost of one slow node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.formats import percent, seconds
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, config_of
from orchestrator.report.quantities import TRAIN_S
from orchestrator.report.quantities.quantity import POINTS, Quantity
from orchestrator.report.quantities.stragglers import Straggler, mean_wait_shares, straggler_of, wait_shares

MAX_NAMED = 4
MIN_SHARE = 0.05  # of the wall time


def straggler(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The rank that the others waited for, if it is claimed to cause more than an even share of it."""
    known = [(slow, group) for group in view.reference_candidates if (slow := _straggler(group))]
    measured = {group.first.key: slow for slow, group in known}
    compared = claims.with_zero(
        _excess(known),
        [group for _, group in known],
        chosen_from=max((slow.ranks for slow, _ in known), default=1),
    )
    found = [(measured[each.left.first.key], each) for each in compared if each.verdict == "more"]
    found = [(slow, each) for slow, each in found if slow.share_of_time >= MIN_SHARE]
    found.sort(key=lambda item: -item[0].share_of_time)
    for slow, each in found[:MAX_NAMED]:
        group = each.left
        noun = group.shape.rank_noun
        others, mean = (
            (f"the other {noun}s", " on average") if slow.ranks > 2 else (f"the other {noun}", "")
        )
        role = " (the server)" if slow.rank < group.first.run.strategy.servers else ""
        yield Finding(
            "straggler",
            f"{view.name(group)} on {group.shape.label}: {others} waited for {noun} {slow.rank}{role} "
            f"during {percent(slow.share_of_time)} of the {view.clock} time{mean}; "
            f"{percent(slow.share_of_waiting)} of all waiting was for {noun} {slow.rank}.",
            evidence([group]),
            {
                "strategy": view.name(group),
                "rank": slow.rank,
                "share_of_time": slow.share_of_time,
                "share_of_waiting": slow.share_of_waiting,
                "compared": compared_data([each]),
            },
        )


def _straggler(group: Group) -> Straggler | None:
    """The rank that the others waited for most, mean over seeds."""
    return straggler_of(mean_wait_shares(group)) if group.first.times_compare else None


def _excess(stragglers: Sequence[tuple[Straggler, Group]]) -> Quantity:
    """How far the share of the waiting that was for a group's straggler is above an even share."""
    above = {
        row.key: float(shares.sum(axis=0)[slow.rank] / shares.sum()) - 1 / slow.ranks
        for slow, group in stragglers
        for row in group.ok_rows
        if (shares := wait_shares(row)) is not None and shares.any()
    }
    return Quantity(
        POINTS, lambda row: above.get(row.key), within=lambda reference: (-1, 1), name="straggler_excess"
    )


def slow_node(view: WorkloadView, claims: Claims, comparison: Comparison) -> Iterator[Finding]:
    """The cost of nodes that are slower than the others, compared with the same run on equal nodes."""
    if not view.workload.slower_speeds:
        return
    equal = {_key(group): group for group in comparison.groups if not group.shape.slower_nodes}
    pairs = [
        (group, other)
        for group in view.reference_candidates
        if (other := equal.get(_key(group))) and _same_waiting(group, other)
    ]
    for compared in claims.pairs(TRAIN_S, pairs):
        group = compared.left
        yield Finding(
            "slow_node",
            f"{view.subject(group)} on {group.shape.label} took {seconds(compared.values[0])}, and "
            f"{seconds(compared.values[1])} with equal nodes: {compared.written}.",
            evidence([group, compared.right]),
            {
                "strategy": view.name(group),
                "train_s": compared.values[0],
                "equal_train_s": compared.values[1],
                "compared": compared_data([compared]),
            },
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


def _key(group: Group) -> str:
    """The configuration and location of a group, without the speeds of its nodes."""
    fields = {name: value for name, value in config_of(group.first).items() if name != "node_speed"}
    return json.dumps([fields, group.first.location], sort_keys=True)

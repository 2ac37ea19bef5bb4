"""Findings about stragglers: the rank that others wait for, and the cost of one slow node."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.formats import percent, seconds
from orchestrator.report.metrics.quantities import TRAIN_S
from orchestrator.report.metrics.stragglers import Straggler, mean_wait_shares, straggler_of
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, config_of

MAX_NAMED = 4
MIN_SHARE = 0.05  # of the wall time
ABOVE_EVEN_SHARE = 1.5  # times the share of all waiting that each of equal ranks would have


def straggler(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The rank that the others waited for, if it caused much more than an even share of the waiting."""
    found = [(slow, group) for group in view.reference_candidates if (slow := _notable(group))]
    found.sort(key=lambda item: -item[0].share_of_time)
    for slow, group in found[:MAX_NAMED]:
        noun = group.shape.rank_noun
        others, mean = (
            (f"the other {noun}s", " on average") if slow.ranks > 2 else (f"the other {noun}", "")
        )
        yield Finding(
            "straggler",
            f"{view.name(group)} on {group.shape.label}: {others} waited for {noun} {slow.rank} during "
            f"{percent(slow.share_of_time)} of the wall time{mean}; {percent(slow.share_of_waiting)} "
            f"of all waiting was for {noun} {slow.rank}.",
            evidence([group]),
            {
                "strategy": view.name(group),
                "rank": slow.rank,
                "share_of_time": slow.share_of_time,
                "share_of_waiting": slow.share_of_waiting,
            },
        )


def _notable(group: Group) -> Straggler | None:
    if not group.first.result.times_compare:
        return None
    slow = straggler_of(mean_wait_shares(group))
    if slow is None or slow.share_of_time < MIN_SHARE:
        return None
    return slow if slow.share_of_waiting >= min(ABOVE_EVEN_SHARE / slow.ranks, 0.9) else None


def slow_node(view: WorkloadView, claims: Claims, comparison: Comparison) -> Iterator[Finding]:
    """The cost of a last node with less CPU, compared with the same run on equal nodes."""
    if view.shape.bottleneck_cpus is None:
        return
    equal = {_key(group): group for group in comparison.groups if group.shape.bottleneck_cpus is None}
    pairs = [
        (group, other)
        for group in view.reference_candidates
        if (other := equal.get(_key(group))) and _same_waiting(group, other)
    ]
    for compared in claims.pairs(TRAIN_S, pairs):
        group = compared.left
        yield Finding(
            "slow_node",
            f"{view.name(group)} on {group.shape.label} took {seconds(compared.values[0])}, and "
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
    if not group.first.result.times_compare:
        return False
    return group.transport != "mpi" or group.first.run.oversubscribed == other.first.run.oversubscribed


def _key(group: Group) -> str:
    """The configuration and location of a group, without the limit of its last node."""
    fields = {name: value for name, value in config_of(group.first).items() if name != "bottleneck_cpus"}
    return json.dumps([fields, group.first.location], sort_keys=True)

"""The verdict on a workload whose strategies are compared in accuracy and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.metrics.curves import reached_sooner
from orchestrator.report.metrics.fairness import global_batch
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import UNTIMED, Verdict
from orchestrator.report.verdict.candidates import (
    MOST_NAMED,
    PROBABLE,
    Candidate,
    candidates,
    in_question,
    why_not,
)
from orchestrator.report.verdict.options import options
from orchestrator.sweeps.stages import UNFINISHED

Data = Mapping[str, Any]


def among_strategies(view: WorkloadView, claims: Claims) -> Verdict:
    """What to choose among the strategies of a workload without a target accuracy and faults."""
    found = candidates(view)
    named = _Named(view, found)
    data: dict[str, Any] = {
        "with": view.partitioners[0] if view.of_ranked else None,
        "links": view.workload.link if view.one_of_many else None,
        "clock": view.clock,
        "untimed": UNTIMED if view.disturbed else "",
        "better": view.tolerance.more_accurate if view.disturbed else view.tolerance.better,
        "left_out": named.left_out(),
    }
    serial = next((each.group for each in found if each.group.serial), None)
    if len(found) < 2 or all(each.group.serial for each in found):
        data |= {"only": named.numbers(found[0].group) if found else None, "why": _why_nothing(view, found)}
        headline, certainty = sentence("nothing", data), sentence("nothing_but", data)
        chosen = found if found and not found[0].group.serial else []
        return Verdict(
            view.workload, headline, certainty, False, options(view, chosen, chosen, serial, claims)
        )
    few = max(each.seeds for each in found) < MIN_SEEDS
    in_doubt = in_question(found, few)
    first = in_doubt[0]
    sure = not few and first.speed.probability >= PROBABLE
    stages = view.stages
    data |= {
        "few": few,
        "least_seeds": MIN_SEEDS,
        "advice": first.advice if sure else None,
        "named": [named.numbers(each.group) for each in in_doubt[:MOST_NAMED]],
        "more": len(in_doubt[MOST_NAMED:]),
        "serial": named.numbers(serial) if serial else None,
        "serial_named": any(each.group.serial for each in in_doubt[:MOST_NAMED]),
        "probability": first.speed.probability,
        "seeds": first.seeds,
        "longer": first.speed.longer,
        "loses": first.speed.loses,
        "sure": first.sure,
        "seeds_to_be_sure": first.seeds_to_be_sure,
        "unfinished": UNFINISHED if view.unfinished else None,
        "staged": bool(view.staged),
        "out_of_budget": bool(stages and stages.out_of_budget and not first.sure),
        "batches": _batches(first.group, serial),
        "computed": _computed(first.group, serial),
        "here": named.here(first.group) if sure else None,
        "as_good": [
            named.numbers(each.group) for each in found[1:] if sure and each.speed.probability >= PROBABLE
        ],
        "sooner": named.sooner(first.group),
        "other_goals": {} if few else named.other_goals(found, first),
    }
    rows = options(view, found, in_doubt, serial, claims, chances=not few)
    shown = "" if few else sentence("sure", data)
    headline, certainty = sentence("choice", data), sentence("certainty", data)
    return Verdict(view.workload, headline, certainty, sure, rows, shown, data["better"])


def _why_nothing(view: WorkloadView, found: Sequence[Candidate]) -> str:
    """Why there is nothing to choose from, where no strategy can be chosen."""
    if view.candidates and all(group.first.is_sampled for group in view.candidates):
        return "nothing was trained, so there is no accuracy"
    if not found:
        return "no configuration can be chosen"
    return "only serial can be chosen" if view.candidates else "only serial has finished runs"


def _batches(group: Group, serial: Group | None) -> Sequence[int] | None:
    """The samples of a step of the choice and of serial, if they differ."""
    if serial is None:
        return None
    own, other = global_batch(group.first.run), global_batch(serial.first.run)
    return (own, other) if own != other else None


def _computed(group: Group, serial: Group | None) -> Data | None:
    """Where the time of several nodes goes, beside that of serial; None if it is not known."""
    known = serial and Q.compute_s.over(serial), Q.compute_s.over(group), Q.exchange_share.over(group)
    of_serial, own, exchange = known
    if group.shape.nodes < 2 or not (of_serial and own and exchange):
        return None
    return {
        "nodes": group.shape.label,
        "compute_s": own.mean,
        "serial_compute_s": of_serial.mean,
        "exchange_share": exchange.mean,
    }


class _Named:
    """Configurations of a workload as data: their names, and numbers that are never apart."""

    def __init__(self, view: WorkloadView, found: Sequence[Candidate]) -> None:
        self._view, self._groups = view, [each.group for each in found]

    def name(self, group: Group) -> str:
        """`all_reduce on 4 nodes`, with the transport if the strategy was run over several.

        The partitioner that the headline states for all is left out.
        """
        same = {other.transport for other in self._groups if other.strategy_label == group.strategy_label}
        stated = bool(self._view.of_ranked) and group.partitioner_label == self._view.partitioners[0]
        return self._view.name_on(group, len(same) > 1, not stated)

    def numbers(self, group: Group) -> Data:
        """A speed never appears without its accuracy."""
        return {
            "name": self.name(group),
            "serial": group.serial,
            "train_s": None if self._view.disturbed else Q.train_s.mean_of(group),
            "accuracy": Q.accuracy.mean_of(group),
        }

    def here(self, group: Group) -> Data | None:
        """What this machine took, where another configuration was faster on it than the choice."""
        walls = Q.wall_s.means(self._groups, self.name)
        own = walls.get(self.name(group))
        if self._view.clock == "wall" or self._view.disturbed or own is None:
            return None
        least = min(walls, key=lambda name: walls[name])
        if own <= walls[least] * (1 + self._view.tolerance.time):
            return None
        cores = group.first.wall_result.cores if group.first.wall.shares_cores else None
        ranks = group.shape.ranks
        return {"ranks": ranks, "cores": cores, "wall_s": own, "fastest": least, "fastest_s": walls[least]}

    def sooner(self, group: Group) -> Data | None:
        """The configuration that was as accurate in less time than this one takes."""
        found = reached_sooner(group, self._groups)
        if found is None:
            return None
        rival, point = found
        name, accuracy = self.name(rival), point.accuracy
        return {"name": name, "accuracy": accuracy, "train_s": point.train_s, "epoch": point.epoch}

    def other_goals(self, found: Sequence[Candidate], chosen: Candidate) -> Data:
        """The choice where accuracy or traffic counts, if it is another one and probable."""
        goals: dict[str, Any] = {}
        exact = max(found, key=lambda each: each.accuracy)
        if exact.accuracy >= PROBABLE > chosen.accuracy:
            goals["accuracy"] = self.numbers(exact.group)
        faster = [
            each.group
            for each in found
            if not self._view.disturbed
            and each.accuracy < 1 - PROBABLE
            and Q.train_s.mean_of(each.group) < Q.train_s.mean_of(chosen.group)
        ]
        if faster:
            goals["speed"] = self.numbers(min(faster, key=Q.train_s.mean_of))
        accurate = [
            each.group for each in found if each.accuracy >= PROBABLE and each.group.shape.nodes > 1
        ]
        sent = Q.bytes_sent_per_rank.means(accurate, self.name)
        if len(sent) > 1 and (least := min(sent, key=lambda name: sent[name])) != self.name(chosen.group):
            goals["traffic"] = {"name": least, "bytes": sent[least]}
        return goals

    def left_out(self) -> Mapping[str, Sequence[str]]:
        """The configurations that cannot be chosen, by the reason."""
        reasons: dict[str, list[str]] = {}
        for group in self._view.line_groups:
            if not any(group is each for each in self._groups):
                reason = why_not(self._view, group) or "too few seeds"
                reasons.setdefault(reason, []).append(self.name(group))
        return reasons

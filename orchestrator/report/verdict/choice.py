"""The verdict on a workload: what to choose, by accuracy and time, or by the time to a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.metrics.curves import reached_sooner
from orchestrator.report.metrics.fairness import global_batch
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.topics.faults import fault_costs
from orchestrator.report.verdict.candidates import (
    MOST_NAMED,
    PROBABLE,
    Candidate,
    at_target,
    candidates,
    in_question,
    why_not,
)
from orchestrator.report.verdict.options import MOST, Verdict, option, options
from orchestrator.sweeps.stages import UNFINISHED

UNTIMED = "The machine was busy, so times are not compared."

Data = dict[str, Any]


def of_workload(comparison: Comparison, workload: Workload, claims: Claims) -> Verdict:
    """What to choose for a workload."""
    view = comparison.view(workload)
    if not view.groups:
        return Verdict(workload, "There is nothing to choose from: no run has finished.", "", decided=False)
    if view.disturbed and (workload.faults or workload.target_accuracy is not None):
        return Verdict(workload, UNTIMED, "Accuracy alone does not choose here.", decided=False)
    if workload.faults:
        return _under_faults(view, comparison, claims)
    if workload.target_accuracy is not None:
        return _to_target(view, claims)
    return _among_strategies(view, claims)


def _among_strategies(view: WorkloadView, claims: Claims) -> Verdict:
    """What to choose among the strategies of a workload without a target accuracy and faults."""
    found = candidates(view)
    choice, few = _Choice(view, found), _few(found)
    serial = next((each.group for each in found if each.group.serial), None)
    data: Data = {
        "with": view.partitioners[0] if view.of_ranked else None,
        "links": view.workload.link if view.one_of_many else None,
        "clock": view.clock,
        "untimed": UNTIMED if view.disturbed else "",
        "better": view.tolerance.more_accurate if view.disturbed else view.tolerance.better,
        "left_out": choice.left_out(),
    }
    if len(found) < 2 or all(each.group.serial for each in found):
        data |= {
            "only": choice.numbers(found[0].group) if found else None,
            "why": _why_nothing(view, found),
        }
        chosen = [each for each in found if not each.group.serial]
        shown = options(view, claims, chosen, chosen, serial)
        return Verdict(
            view.workload, sentence("nothing", data), sentence("nothing_but", data), False, shown
        )
    in_doubt = in_question(found, few)
    first, named = in_doubt[0], in_doubt[:MOST_NAMED]
    sure = not few and first.speed.probability >= PROBABLE
    data |= _surety(view, first, few, sure) | {
        "named": [choice.numbers(each.group) for each in named],
        "more": len(in_doubt) - len(named),
        "serial": choice.numbers(serial) if serial else None,
        "serial_named": any(each.group.serial for each in named),
        "loses": first.speed.loses,
        "staged": view.staged,
        "out_of_budget": bool(view.stages and view.stages.out_of_budget and not first.sure),
        "batches": _batches(first.group, serial),
        "computed": _computed(first.group, serial),
        "here": choice.here(first.group) if sure else None,
        "as_good": [
            choice.numbers(each.group) for each in found[1:] if sure and each.speed.probability >= PROBABLE
        ],
        "sooner": choice.sooner(first.group),
        "other_goals": {} if few else choice.other_goals(first),
    }
    shown = options(view, claims, found, in_doubt, serial, chances=not few)
    headline, certainty = sentence("choice", data), sentence("certainty", data)
    surety = "" if few else sentence("sure", data)
    return Verdict(view.workload, headline, certainty, sure, shown, surety, data["better"])


def _to_target(view: WorkloadView, claims: Claims) -> Verdict:
    """Which configuration reaches the target first, on any number of nodes, among those that always do."""
    found = at_target(view)
    reached = {id(each.group) for each in found}
    data: Data = {
        "target_accuracy": view.workload.target_accuracy,
        "clock": view.clock,
        "reached": len(found),
        "not_always": [
            view.name_on(group)
            for group in view.line_groups
            if id(group) not in reached and seeds_at_target(group)[0] < len(group.rows)
        ],
    }
    if not found:
        headline, certainty = sentence("to_target", data), sentence("to_target_certainty", data)
        return Verdict(view.workload, headline, certainty, decided=False)

    def timed(group: Group) -> Data:
        return {"name": view.name_on(group), "time_s": Q.time_to_target_s.mean_of(group)}

    few, others = _few(found), [each.group for each in found[1:]]
    in_doubt = in_question(found, few)
    first, chances = in_doubt[0], not few and bool(others)
    sure = chances and first.speed.probability >= PROBABLE
    others.sort(key=lambda group: not group.serial)
    data |= _surety(view, first, few, sure) | {
        "named": [timed(each.group) for each in in_doubt[:MOST_NAMED]],
        "beside": timed(others[0]) if others else None,
        "tolerated": view.tolerance.time,
    }
    shown = options(view, claims, found, in_doubt, time=Q.time_to_target_s, chances=chances)
    headline, certainty = sentence("to_target", data), sentence("to_target_certainty", data)
    surety = sentence("sure", data) if chances else ""
    return Verdict(view.workload, headline, certainty, sure, shown, surety, sentence("sooner", data))


def _under_faults(view: WorkloadView, comparison: Comparison, claims: Claims) -> Verdict:
    """What faults cost, the least time first; configurations with faults are not compared."""
    keys = {group.first.key for group in view.groups}
    costs = [
        found
        for cost in fault_costs(comparison)
        if cost.undisturbed
        and cost.group.first.key in keys
        and (found := claims.between(Q.elapsed_s, cost.group, cost.undisturbed))
    ]
    costs.sort(key=lambda found: found.values[0] / found.values[1])
    data = {"faults": view.workload.faults, "costs": [_cost(view, found) for found in costs]}
    shown = tuple(option(view, found.left, claims, Q.elapsed_s) for found in costs[:MOST])
    headline, certainty = sentence("under_faults", data), sentence("under_faults_certainty", data)
    return Verdict(view.workload, headline, certainty, False, shown)


def _cost(view: WorkloadView, found: Compared) -> Data:
    sides = (found.left, found.right)
    known = all(Q.accuracy.sample(group) for group in sides)
    return {
        "name": view.name(found.left),
        "accuracies": [Q.accuracy.mean_of(group) for group in sides] if known else None,
        "compared": found.data(),
    }


def _few(found: Sequence[Candidate]) -> bool:
    """Whether all have too few seeds to choose."""
    return max((each.seeds for each in found), default=0) < MIN_SEEDS


def _surety(view: WorkloadView, first: Candidate, few: bool, sure: bool) -> Data:
    """How sure the choice is, and how it would become surer."""
    return {
        "few": few,
        "least_seeds": MIN_SEEDS,
        "advice": first.advice if sure else None,
        "probability": first.speed.probability,
        "seeds": first.seeds,
        "longer": first.speed.longer,
        "sure": first.sure,
        "seeds_to_be_sure": first.seeds_to_be_sure,
        "unfinished": UNFINISHED if view.unfinished else None,
    }


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


class _Choice:
    """Configurations of a workload as data: their names, and numbers that are never apart."""

    def __init__(self, view: WorkloadView, found: Sequence[Candidate]) -> None:
        self._view, self._found, self._groups = view, found, [each.group for each in found]

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

    def other_goals(self, chosen: Candidate) -> Data:
        """The choice where accuracy or traffic counts, if it is another one and probable."""
        goals: Data = {}
        exact = max(self._found, key=lambda each: each.speed.accurate)
        if exact.speed.accurate >= PROBABLE > chosen.speed.accurate:
            goals["accuracy"] = self.numbers(exact.group)
        faster = [
            each.group
            for each in self._found
            if not self._view.disturbed
            and each.speed.accurate < 1 - PROBABLE
            and Q.train_s.mean_of(each.group) < Q.train_s.mean_of(chosen.group)
        ]
        if faster:
            goals["speed"] = self.numbers(min(faster, key=Q.train_s.mean_of))
        exact_enough = [each.group for each in self._found if each.speed.accurate >= PROBABLE]
        accurate = [group for group in exact_enough if group.shape.nodes > 1]
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

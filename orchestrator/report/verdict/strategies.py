"""The verdict on a workload whose strategies are compared in accuracy and time."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.decide import Claims
from orchestrator.report.formats import (
    count,
    first_few,
    listed,
    percent,
    points,
    probability,
    ratio,
    seconds,
    size,
)
from orchestrator.report.metrics.curves import reached_sooner
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Verdict
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

UNTIMED = "The machine was busy, so times are not compared."
LEAST_TIME, LEAST_POINTS = 0.005, 0.0005  # that are written


def among_strategies(view: WorkloadView, claims: Claims) -> Verdict:
    """What to choose among the strategies of a workload without a target accuracy and faults."""
    found = candidates(view)
    wording = Wording(view, found)
    left_out = wording.left_out()
    if all(each.group.serial for each in found):
        return Verdict(
            view.workload, _nothing(view, found), f"No choice is claimed. {left_out}".strip(), False
        )
    serial = next((each.group for each in found if each.group.serial), None)
    if len(found) == 1:
        only = wording.numbered(found[0].group)
        headline = wording.ranked(f"There is nothing to choose between: only {only} can be chosen.")
        rows = options(view, found, found, serial, claims)
        return Verdict(view.workload, headline, left_out, False, rows)
    few = max(each.seeds for each in found) < MIN_SEEDS
    named = in_question(found, few)
    first = named[0]
    sure = not few and first.speed.probability >= PROBABLE
    certainty = [wording.too_few() if few else wording.chance(first)]
    if sure:
        headline = wording.choice(first, serial)
        certainty += [wording.seeds_won(first.group, serial), wording.as_good(found), wording.surer(first)]
    else:
        headline = wording.toss_up(named, serial, few)
    certainty.append(wording.out_of_budget(first))
    certainty.append(wording.sooner(first.group))
    if not few:
        certainty.append(wording.other_goals(found, first))
    text = " ".join(filter(None, [*certainty, left_out]))
    shown = "" if few else f"{probability(first.speed.probability)} sure"
    rows = options(view, found, named, serial, claims, chances=not few)
    return Verdict(view.workload, wording.ranked(headline), text, sure, rows, shown, wording.better)


def _nothing(view: WorkloadView, found: Sequence[Candidate]) -> str:
    """That there is no choice, and between what; what cannot be chosen is listed with its reason."""
    if view.candidates and all(group.first.is_sampled for group in view.candidates):
        return "There is nothing to choose from: nothing was trained, so there is no accuracy."
    if not found:
        return "There is nothing to choose from: no configuration can be chosen."
    if not view.candidates:
        return "There is nothing to choose from: only serial has finished runs."
    return "There is nothing to choose from: only serial can be chosen."


class Wording:
    """Phrases about the configurations of a workload."""

    def __init__(self, view: WorkloadView, found: Sequence[Candidate]) -> None:
        self._view, self._groups = view, [each.group for each in found]
        self._clock = "" if view.clock == "wall" else " in cluster time"

    def name(self, group: Group) -> str:
        """`all_reduce on 4 nodes`, with the transport if the strategy was run over several.

        The partitioner that `ranked` states for all is left out.
        """
        same = {other.transport for other in self._groups if other.strategy_label == group.strategy_label}
        stated = bool(self._view.of_ranked) and group.partitioner_label == self._view.partitioners[0]
        return self._view.name_on(group, len(same) > 1, not stated)

    @property
    def better(self) -> str:
        """How a better configuration differs by more than the tolerance."""
        tolerance = self._view.tolerance
        return tolerance.more_accurate if self._view.disturbed else tolerance.better

    @property
    def _links(self) -> str:
        link = self._view.workload.link
        return f" over links of {link}" if link and self._view.one_of_many else ""

    def numbered(self, group: Group) -> str:
        """`all_reduce on 4 nodes (0.264 s, 88.3%)`: a speed never appears without its accuracy."""
        accuracy = percent(Q.accuracy.mean_of(group))
        time = "" if self._view.disturbed else f"{seconds(Q.train_s.mean_of(group))}, "
        return f"{self.name(group)} ({time}{accuracy})"

    def choice(self, chosen: Candidate, serial: Group | None) -> str:
        """What to choose, and what it gains."""
        group = chosen.group
        reached = percent(Q.accuracy.mean_of(group))
        if self._view.disturbed:
            return f"{chosen.advice} {self.numbered(group)}{self._links}{self._beside(serial, [group])}."
        if serial is None or group.serial:
            text = f"{seconds(Q.train_s.mean_of(group))}{self._clock}, {reached} accuracy"
            return f"{chosen.advice} {self.name(group)}{self._links}: {text}."
        gain = Q.train_s.mean_of(serial) / Q.train_s.mean_of(group)
        if gain >= 1:
            speed = f"{ratio(gain)} times as fast as serial{self._clock}"
        else:
            speed = f"it takes {ratio(1 / gain)} times as long as serial{self._clock}"
        accuracy = f"{reached} accuracy (serial {percent(Q.accuracy.mean_of(serial))})"
        return f"{chosen.advice} {self.name(group)}{self._links}: {speed}, {accuracy}."

    def toss_up(self, named: Sequence[Candidate], serial: Group | None, few: bool) -> str:
        """What may be the choice, where none is probable."""
        groups = [each.group for each in named[:MOST_NAMED]]
        names = [self.numbered(group) for group in groups]
        if left := len(named) - len(names):
            names.append(f"{left} more")
        if few:
            what = f"Too few seeds to choose: as measured, {names[0]} is the best"
        elif len(names) == 1:
            what = f"Perhaps {names[0]}"
        else:
            what = f"A toss-up between {listed(names)}"
        return f"{what}{self._links}{self._beside(serial, groups)}."

    def _beside(self, serial: Group | None, groups: Sequence[Group]) -> str:
        """What serial reached, and in which time, if it is none of these groups."""
        if serial is None or any(group is serial for group in groups):
            return ""
        took = "" if self._view.disturbed else f"took {seconds(Q.train_s.mean_of(serial))} and "
        return f"; serial {took}reached {percent(Q.accuracy.mean_of(serial))}"

    def chance(self, chosen: Candidate) -> str:
        """How sure the choice is, and the most that it may cost."""
        speed = chosen.speed
        text = (
            f"With a probability of {probability(speed.probability)} ({count(chosen.seeds, 'seed')}), "
            f"nothing here is {self.better}."
        )
        worst = (
            [f"takes {speed.longer:.0%} more time than the best here"] if speed.longer >= LEAST_TIME else []
        )
        if speed.loses >= LEAST_POINTS:
            worst.append(f"is {points(speed.loses)[1:]} less accurate than the most accurate")
        return f"{text} At worst, it {listed(worst)} (95%)." if worst else text

    def too_few(self) -> str:
        """That nothing is chosen, and what would add seeds."""
        if self._view.unfinished:
            return f"With fewer than {MIN_SEEDS} seeds, nothing is chosen; {UNFINISHED}."
        budget = self._view.stages is not None and self._view.stages.out_of_budget
        advice = "a larger --budget" if budget else f"--repeat {MIN_SEEDS}"
        return f"With fewer than {MIN_SEEDS} seeds, nothing is chosen: run it again with {advice}."

    def out_of_budget(self, first: Candidate) -> str:
        """That the sweep stopped for its budget before the choice was decided."""
        stages = self._view.stages
        if stages is None or not stages.out_of_budget or first.sure:
            return ""
        return "The sweep stopped for its budget, so this choice is undecided."

    def surer(self, chosen: Candidate) -> str:
        """What would make a probable choice surer."""
        if chosen.sure or self._view.unfinished:
            return ""
        if self._view.staged:
            return "A larger --budget or --repeat adds seeds."
        return f"To be surer, run it again with --repeat {chosen.seeds_to_be_sure}."

    def seeds_won(self, group: Group, serial: Group | None) -> str:
        """`It was faster than serial in 5 of 5 seeds.`"""
        if serial is None or group.serial:
            return ""
        own, other = Q.train_s.sample(group), Q.train_s.sample(serial)
        common = own.keys() & other.keys()
        won = sum(own[seed] < other[seed] for seed in common)
        return f"It was faster than serial in {won} of {count(len(common), 'seed')}." if common else ""

    def as_good(self, found: Sequence[Candidate]) -> str:
        """The configurations that are equal to the choice within the tolerance."""
        good = [each.group for each in found[1:] if each.speed.probability >= PROBABLE]
        return f"Probably as good: {first_few([*map(self.numbered, good)], 2)}." if good else ""

    def sooner(self, group: Group) -> str:
        """Who was as accurate in less time than a configuration takes."""
        found = reached_sooner(group, self._groups)
        if found is None:
            return ""
        rival, point = found
        reached, at = percent(point.accuracy.mean), seconds(point.train_s)
        after = count(point.epoch, "epoch")
        return f"As measured, {self.name(rival)} reached {reached} in {at}, after {after}: sooner than it."

    def other_goals(self, found: Sequence[Candidate], chosen: Candidate) -> str:
        """The choice where accuracy or traffic counts, if it is another one and probable."""
        parts = []
        exact = max(found, key=lambda each: each.accuracy)
        if exact.accuracy >= PROBABLE > chosen.accuracy:
            parts.append(f"For accuracy: {self.numbered(exact.group)}.")
        faster = [
            each.group
            for each in found
            if not self._view.disturbed
            and each.accuracy < 1 - PROBABLE
            and Q.train_s.mean_of(each.group) < Q.train_s.mean_of(chosen.group)
        ]
        if faster:
            least = min(faster, key=Q.train_s.mean_of)
            parts.append(f"Faster, but probably less accurate: {self.numbered(least)}.")
        accurate = [each.group for each in found if each.accuracy >= PROBABLE]
        sent = [
            (spread.mean, at)
            for at, group in enumerate(accurate)
            if group.shape.nodes > 1 and (spread := Q.bytes_sent_per_rank.over(group))
        ]
        if len(sent) > 1:
            amount, at = min(sent)
            if accurate[at] is not chosen.group:
                name = self.name(accurate[at])
                parts.append(f"Least traffic at that accuracy: {name} ({size(amount)} per rank).")
        return " ".join(parts)

    def left_out(self) -> str:
        """The configurations that cannot be chosen, and why."""
        reasons: dict[str, list[str]] = {}
        for group in self._view.line_groups:
            if not any(group is each for each in self._groups):
                reason = why_not(self._view, group) or "too few seeds"
                reasons.setdefault(reason, []).append(self.name(group))
        parts = [f"{first_few(names, 2)} ({reason})" for reason, names in reasons.items()]
        return f"Cannot be chosen: {'; '.join(parts)}." if parts else ""

    def ranked(self, headline: str) -> str:
        """The headline with the partitioner that all of these have, if others are not ranked.

        It says so if times are not compared.
        """
        if self._view.of_ranked:
            headline = f"With {self._view.partitioners[0]}, {headline[0].lower()}{headline[1:]}"
        if self._view.disturbed:
            headline = f"{UNTIMED} By accuracy alone, {headline[0].lower()}{headline[1:]}"
        return headline

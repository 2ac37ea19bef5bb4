"""The verdict on a workload with a target accuracy: the time to it counts."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.decide import Claims
from orchestrator.report.formats import (
    ABSENT,
    count,
    first_few,
    listed,
    percent,
    probability,
    ratio,
    seconds,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.candidates import MOST_NAMED, PROBABLE, Candidate, at_target, in_question
from orchestrator.report.verdict.options import option, shown
from orchestrator.sweeps.stages import UNFINISHED


def to_target(view: WorkloadView, claims: Claims) -> Verdict:
    """Which configuration reaches the target first, on any number of nodes, among those that always do."""
    found = at_target(view)
    target = f"{percent(view.workload.target_accuracy)} accuracy"
    rest = _not_always(view, found)
    if not found:
        headline = f"No configuration reached {target} with every seed."
        return Verdict(view.workload, headline, rest, decided=False)
    few = max(each.seeds for each in found) < MIN_SEEDS
    named = in_question(found, few)
    first = named[0]
    sure = not few and len(found) > 1 and first.speed.probability >= PROBABLE
    if len(found) == 1:
        headline, certainty = f"Only {_named(view, first.group)} reached {target} with every seed.", ""
    elif few:
        headline = (
            f"Too few seeds to choose: {_named(view, first.group)} was measured to reach {target} first."
        )
        certainty = (
            f"{UNFINISHED.capitalize()}."
            if view.unfinished
            else f"Run the sweep again with --repeat {MIN_SEEDS}."
        )
    elif sure:
        headline, certainty = _choice(view, target, found), _chance(view, first)
    else:
        names = [_named(view, each.group) for each in named[:MOST_NAMED]]
        headline, certainty = f"Perhaps {names[0]} reaches {target} first.", _chance(view, first)
        if len(names) > 1:
            headline = f"It is a toss-up which of these reaches {target} first: {listed(names)}."
    chances = not few and len(found) > 1
    options = tuple(
        option(
            view,
            each.group,
            claims,
            Q.time_to_target_s,
            chance=probability(each.speed.probability) if chances else ABSENT,
        )
        for each in shown(found, named)
    )
    surety = f"{probability(first.speed.probability)} sure" if chances else ""
    text = " ".join(filter(None, [certainty, rest]))
    better = f"{_sooner(view)} at the target"
    return Verdict(view.workload, headline, text, sure, options, surety, better)


def _sooner(view: WorkloadView) -> str:
    """`over 5% sooner`: by more than the tolerance."""
    return f"over {view.tolerance.time * 100:.3g}% sooner"


def _choice(view: WorkloadView, target: str, found: Sequence[Candidate]) -> str:
    """What to choose, and what it gains over serial, or over the next one."""
    first = found[0]
    others = [each.group for each in found[1:]]
    other = next((group for group in others if group.serial), others[0])
    longer = Q.time_to_target_s.mean_of(other) / Q.time_to_target_s.mean_of(first.group)
    return (
        f"{first.advice} {_named(view, first.group)} to reach {target}: {_named(view, other)} takes "
        f"{ratio(longer)} times as long."
    )


def _chance(view: WorkloadView, first: Candidate) -> str:
    """How sure the choice is, the most that it may cost, and what would make it surer."""
    seeds = count(first.seeds, "seed")
    text = (
        f"With a probability of {probability(first.speed.probability)} ({seeds}), nothing here is "
        f"{_sooner(view)}. At worst, {view.name(first.group)} takes "
        f"{first.speed.longer:.0%} more time than the best here (95%)."
    )
    if first.sure or view.unfinished:
        return text
    return f"{text} To be surer, run it again with --repeat {first.seeds_to_be_sure}."


def _named(view: WorkloadView, group: Group) -> str:
    """`ddp over gloo on 2 nodes (3.20 s)`."""
    clock = "" if view.clock == "wall" else " in cluster time"
    return f"{view.name_on(group)} ({seconds(Q.time_to_target_s.mean_of(group))}{clock})"


def _not_always(view: WorkloadView, found: Sequence[Candidate]) -> str:
    """The configurations that did not reach the target with every seed, as a sentence."""
    missed = [
        view.name_on(group)
        for group in view.line_groups
        if not any(group is each.group for each in found) and seeds_at_target(group)[0] < len(group.rows)
    ]
    return f"Not with every seed: {first_few(missed, MOST_NAMED)}." if missed else ""

"""The verdict on a lab: whether the published results are reproduced, and what explains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.formats import count, first_few, listed, percent, points, ratio
from orchestrator.report.metrics.published import PublishedLine, name_of_runs, overrides, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.quantities.model_partition import ACTIVATIONS_OF_SERIAL
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.topics.published import Ablated, ablated, ablation
from orchestrator.report.topics.textbook_optimizers import TOLERANCE, optimizer_pairs
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.options import MOST, measured_difference, option

REPRODUCED = 0.01  # how far an accuracy may be off the published one
ROUNDING = 1e-9  # of a difference of two floating-point numbers


@dataclass(frozen=True)
class _Reproduced:
    """A published accuracy, or its change from one node, beside ours.

    name: of the runs. interval: that of ours, if known.
    """

    name: str
    published: float
    measured: float
    interval: tuple[float, float] | None
    change: bool

    @property
    def off(self) -> float:
        return abs(self.measured - self.published)

    @property
    def same(self) -> bool:
        within = self.interval is not None and self.interval[0] <= self.published <= self.interval[1]
        return within or self.off <= REPRODUCED + ROUNDING

    @property
    def text(self) -> str:
        """`“as published” (ddp over gloo on 2 nodes): 35.6% published, 31.6% here`."""
        write, beside = (points, " (from one node)") if self.change else (percent, "")
        return f"{self.name}: {write(self.published)} published, {write(self.measured)} here{beside}"


@dataclass(frozen=True)
class _Ratio:
    """A published figure that the headline divides ours by. complete: whether all seeds have a value."""

    name: str
    quantity: Quantity
    sentence: str
    complete: Callable[[Group], bool] = lambda group: True


_RATIOS = (
    _Ratio(
        "rounds_to_target",
        Q.rounds_to_target,
        "The target accuracy took {} times the published number of rounds.",
        lambda group: len({*seeds_at_target(group)}) == 1,
    ),
    _Ratio("bubble", Q.bubble_share, "Pipeline bubbles are {} times the published ones."),
    _Ratio(
        "activations",
        ACTIVATIONS_OF_SERIAL,
        "The share of serial's activations is {} times the published one.",
    ),
)


def of_lab(comparison: Comparison, claims: Claims) -> Verdict | None:
    """Whether published accuracies are reproduced; without any, what the lab's ablation shows."""
    if comparison.record.lab is None or not comparison.workloads:
        return None
    complete = [each for each in ablated(comparison) if not each.lacking]
    largest = max(complete, key=lambda each: each.nodes, default=None)  # the first of equals
    compared = claims.answer(largest.ask).compared if largest else []
    lines = [line for line in published_lines(comparison) if line.measured]
    known = [found for line in lines if (found := _beside(comparison, line))]
    groups = [line.measured for line in lines if line.measured]
    workload = groups[0].workload if groups else comparison.workloads[0]
    workload = workload if workload in comparison.workloads else comparison.workloads[0]
    if known and not overrides(comparison):
        headline, decided = _reproduction(known), all(each.interval for each in known)
    elif (ratios := _ratios(lines)) and not overrides(comparison):
        headline, decided = ratios, False
    elif largest:
        headline, decided = ablation(largest, compared).first_sentence, compared[-1].decided
    else:
        return None
    view = comparison.view(workload)
    options = tuple(
        option(view, group, claims, difference=measured_difference(view.serial, group))
        for group in _distinct(groups)[:MOST]
    )
    return Verdict(workload, headline, _causes(largest, compared), decided, options)


def _beside(comparison: Comparison, line: PublishedLine) -> _Reproduced | None:
    """None if no accuracy was published or measured."""
    published, measured = line.published, line.mean(lambda row: row.accuracy)
    if line.measured is None or measured is None:
        return None
    name = name_of_runs(line.block, comparison.name_on(line.measured), published.runs)
    if published.accuracy is not None:
        interval = Q.accuracy.interval(line.measured)
        return _Reproduced(name, published.accuracy, measured, interval, change=False)
    change = line.accuracy_change
    if published.accuracy_change is None or change is None:
        return None
    return _Reproduced(name, published.accuracy_change, change, None, change=True)


def _reproduction(known: Sequence[_Reproduced]) -> str:
    same = sum(each.same for each in known)
    worst = max(known, key=lambda each: each.off)
    if len(known) == 1:
        head = f"The published accuracy is {'' if same else 'not '}reproduced"
        return f"{head}, within one point or our 95% interval: {worst.text}."
    every = "Both" if len(known) == 2 else f"All {len(known)}"
    number = every if same == len(known) else f"{same or 'None'} of {len(known)}"
    return (
        f"{number} published accuracies {'is' if same < 2 else 'are'} reproduced within one point or our "
        f"95% interval; furthest off is {worst.text}."
    )


def _ratios(lines: Sequence[PublishedLine]) -> str:
    """How figures without a tolerance compare with the published ones; empty if none are known."""
    return " ".join(filter(None, (_ratio(each, lines) for each in _RATIOS)))


def _ratio(figure: _Ratio, lines: Sequence[PublishedLine]) -> str:
    known = {
        measured / published: f"{line.block}, {line.runs}"
        for line in lines
        if (published := getattr(line.published, figure.name))
        and line.measured
        and figure.complete(line.measured)
        and (measured := line.mean(figure.quantity.of))
    }
    if not known:
        return ""
    least, most = min(known), max(known)
    between = f"{ratio(least)} ({known[least]}) to {ratio(most)} ({known[most]})"
    return figure.sentence.format(ratio(least) if len(known) == 1 else between)


def _causes(found: Ablated | None, compared: Sequence[Compared]) -> str:
    """What the changes of an ablation do, as a sentence: those that matter, and how many do not."""
    if found is None:
        return "No ablation explains it."
    nodes, differences = count(found.nodes, "node"), compared[: len(found.fixes)]
    changes = list(zip(found.fixes, differences, strict=True))
    if any(each.verdict == "too_few_seeds" for each in differences):
        effects = listed([_effect(fixes, each) for fixes, each in changes])
        return f"Measured on {nodes}, fixed one after the other: {effects}; too few seeds to claim a cause."
    causes = [_effect(fixes, each) for fixes, each in changes if each.decided and not each.within_tolerance]
    without = sum(each.within_tolerance for each in differences)
    undecided = len(changes) - len(causes) - without
    if undecided == len(changes):
        return f"On {nodes}, the effect of {listed(found.fixes)} is undecided."
    facts = [listed(causes)] if causes else []
    if without:
        facts.append(f"no effect above the tolerance of {without} of {count(len(changes), 'change')}")
    if undecided:
        facts.append(f"undecided for {undecided} of {count(len(changes), 'change')}")
    return f"Causes on {nodes}, fixed one after the other: {'; '.join(facts)}."


def _effect(fixes: str, each: Compared) -> str:
    """A change, with the difference that it makes."""
    after, before = each.values
    effect = (
        f"{ratio(after / before)} times as long without" if each.quantity.ratio else points(after - before)
    )
    return f"{fixes} ({effect}{', likely' if each.decided and each.level == 'likely' else ''})"


def of_textbook_optimizers(comparison: Comparison) -> Verdict | None:
    """Whether textbook optimizers have the library's loss curves, in a sweep that compares nothing else."""
    off = [
        (pair, difference)
        for pair in optimizer_pairs(comparison)
        if (difference := pair.max_difference) is not None
    ]
    if not off or any(comparison.view(workload).candidates for workload in comparison.workloads):
        return None
    different = list(dict.fromkeys(pair.names[0] for pair, difference in off if difference > TOLERANCE))
    names = list(dict.fromkeys(pair.names[0] for pair, _ in off))
    settings = f" in all {len(off)} settings" if len(off) > len(names) else ""
    worst = max(difference for _, difference in off)
    by = f"by {{}} {worst:.1e} of the highest loss (tolerance {TOLERANCE:g})."
    if different:
        headline = (
            f"{first_few(different)} and torch's optimizer have different test-loss curves: losses differ "
            f"{by.format('up to')}"
        )
    else:
        headline = (
            f"{first_few(names)} {'follows' if len(names) == 1 else 'follow'} the test-loss curves of "
            f"torch's optimizers{settings}: losses differ {by.format('at most')}"
        )
    seeds = min(len(pair.runs) for pair, _ in off)
    certainty = f"Compared over every epoch of {count(seeds, 'seed')} with equal weights and samples."
    return Verdict(comparison.workloads[0], headline, certainty, decided=True)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    return [group for at, group in enumerate(groups) if not any(group is other for other in groups[:at])]

"""The verdict on a lab: whether the published results are reproduced, and what explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.textbook_optimizers import TOLERANCE
from orchestrator.report.formats import count, first_few, listed, percent, points, ratio
from orchestrator.report.metrics.published import PublishedLine, overrides, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import ACCURACY
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.options import MOST, measured_difference, option

REPRODUCED = 0.01  # how far an accuracy may be off the published one


@dataclass(frozen=True)
class _Reproduced:
    """A published accuracy, or its change from one node, beside ours. interval: of ours, if it is known."""

    line: PublishedLine
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
        return within or self.off <= REPRODUCED

    @property
    def text(self) -> str:
        """`as published, 2 nodes: 35.6% published, 31.6% here`."""
        write = points if self.change else percent
        what = ", ".join(filter(None, [self.line.block, self.line.runs]))
        return f"{what}: {write(self.published)} published, {write(self.measured)} here"


def of_lab(comparison: Comparison, findings: Sequence[Finding]) -> Verdict | None:
    """Whether published accuracies are reproduced; without any, what the lab's ablation shows."""
    if comparison.record.lab is None or not comparison.workloads:
        return None
    ablations = [finding for finding in findings if finding.kind == "ablation"]
    lines = [line for line in published_lines(comparison) if line.measured]
    known = [found for line in lines if (found := _beside(line))]
    groups = [line.measured for line in lines if line.measured]
    workload = groups[0].workload if groups else comparison.workloads[0]
    workload = workload if workload in comparison.workloads else comparison.workloads[0]
    causes = _causes(ablations)
    if known and not overrides(comparison):
        headline, decided = _reproduction(known), all(each.interval for each in known)
    elif ablations:
        headline = f"{_largest(ablations).text.partition('. ')[0].rstrip('.')}."
        decided = _largest(ablations).data["compared"][-1]["decision"] in ("more", "less")
    else:
        return None
    view = comparison.view(workload)
    options = tuple(
        option(view, group, difference=measured_difference(view.serial, group))
        for group in _distinct(groups)[:MOST]
    )
    return Verdict(workload, headline, causes, decided, options)


def _beside(line: PublishedLine) -> _Reproduced | None:
    """None if no accuracy was published or measured."""
    published, measured = line.published, line.mean(lambda row: row.accuracy)
    if line.measured is None or measured is None:
        return None
    if published.accuracy is not None:
        interval = ACCURACY.interval(line.measured)
        return _Reproduced(line, published.accuracy, measured, interval, change=False)
    change = line.accuracy_change
    if published.accuracy_change is None or change is None:
        return None
    return _Reproduced(line, published.accuracy_change, change, None, change=True)


def _reproduction(known: Sequence[_Reproduced]) -> str:
    same = sum(each.same for each in known)
    worst = max(known, key=lambda each: each.off)
    if len(known) == 1:
        head = f"The published accuracy is {'' if same else 'not '}reproduced"
        return f"{head}, within one point or our 95% interval: {worst.text}."
    number = f"All {len(known)}" if same == len(known) else f"{same or 'None'} of {len(known)}"
    return (
        f"{number} published accuracies {'is' if same < 2 else 'are'} reproduced within one point or our "
        f"95% interval; furthest off is {worst.text}."
    )


def _largest(ablations: Sequence[Finding]) -> Finding:
    """The ablation on most nodes."""
    return max(ablations, key=lambda finding: finding.data["nodes"])


def _causes(ablations: Sequence[Finding]) -> str:
    """The causes that the ablation on most nodes decides, as a sentence."""
    if not ablations:
        return "No ablation explains it."
    data = _largest(ablations).data
    nodes, decided = count(data["nodes"], "node"), []
    for step, compared in zip(data["steps"], data["compared"], strict=False):
        if step["decision"] in ("more", "less"):
            after, before = compared["values"]
            effect = (
                points(after - before)
                if compared["scale"] == "difference"
                else f"{ratio(after / before)} times as long without"
            )
            decided.append(f"{step['fixes']} ({effect})")
    changes = len(data["steps"])
    if not decided:
        which = "the change" if changes == 1 else f"none of the {changes} changes"
        verb = "is not" if changes == 1 else "is"
        return f"On {nodes}, {which} {verb} shown to have an effect."
    open_ = f"; {changes - len(decided)} of {changes} are undecided" if len(decided) < changes else ""
    return f"Shown causes on {nodes}, fixed one after the other: {listed(decided)}{open_}."


def of_textbook_optimizers(comparison: Comparison, findings: Sequence[Finding]) -> Verdict | None:
    """Whether textbook optimizers have the library's loss curves, in a sweep that compares nothing else."""
    found = [finding for finding in findings if finding.kind.startswith("textbook_curve")]
    if not found or any(comparison.view(workload).candidates for workload in comparison.workloads):
        return None
    different = [finding.data["optimizers"][0] for finding in found if finding.caution]
    names = list(dict.fromkeys(finding.data["optimizers"][0] for finding in found))
    settings = f" in all {len(found)} settings" if len(found) > len(names) else ""
    worst = max(finding.data["max_difference"] for finding in found)
    off = f"by {{}} {worst:.1e} of the highest loss (tolerance {TOLERANCE:g})."
    if different:
        headline = (
            f"{first_few(different)} and torch's optimizer have different test-loss curves: losses differ "
            f"{off.format('up to')}"
        )
    else:
        headline = (
            f"{first_few(names)} {'follows' if len(names) == 1 else 'follow'} the test-loss curves of "
            f"torch's optimizers{settings}: losses differ {off.format('at most')}"
        )
    seeds = min(finding.data["seeds"] for finding in found)
    certainty = f"Compared over every epoch of {count(seeds, 'seed')} with equal weights and samples."
    return Verdict(comparison.workloads[0], headline, certainty, decided=True)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    return [group for at, group in enumerate(groups) if not any(group is other for other in groups[:at])]

"""A published experiment: our times beside the published ones, and its ablations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, Compared
from orchestrator.report.metrics.published import matching_group, name_of_runs, overrides, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import NOT_COMPARED, as_written, parameters
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.learning import seeds_at_target, target_reached
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.sweeps.lab import NOT_STATED, Ablation
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

# Fields in which two steps may differ without a change of what is computed.
_IGNORED_FIELDS = {*NOT_COMPARED, "restarts"}


def times(comparison: Comparison) -> Findings:
    """One node's time beside the published one, and whether more nodes gain as much."""
    if overrides(comparison):  # most likely less work than was published
        return
    lab = comparison.record.lab
    for block, of_block in groupby(published_lines(comparison), key=lambda line: line.block):
        lines = [*of_block]
        one = next((line for line in lines if line.published.runs.get("nodes") == 1), None)
        measured = one.mean(lambda row: row.wall.train_s, geometric=True) if one else None
        if not one or not one.measured or not measured or one.published.time_s is None:
            continue
        if not one.measured.first.wall.times_compare:
            continue
        scaled = [
            (group.shape.ranks, group.first, line)
            for line in lines
            if (group := line.measured) and line.measured_speedup
        ]
        data: dict[str, Any] = {}
        if scaled:
            _, row, most = max(scaled, key=lambda each: each[0])
            data = {
                "speedup_of": dict(most.published.runs),
                "speedup": most.measured_speedup,
                "published_speedup": most.published_speedup,
                "cpu_time_speedup": most.cpu_time_speedup,
                "runs": most.runs,
                "shared_cores": row.result.cores if row.shares_cores else None,
            }
        yield Finding.of(
            "published_time",
            [line.measured for line in lines],
            block=block,
            hardware=lab.hardware if lab else NOT_STATED,
            train_s=measured,
            published_s=one.published.time_s,
            **data,
        )


@dataclass(frozen=True)
class Ablated:
    """An ablation on a number of nodes.

    groups: one for each step. ends: the first and the last step, as the lab calls them.
    """

    ablation: Ablation
    nodes: int
    groups: list[Group]
    ends: list[str]

    @property
    def lacking(self) -> list[str]:
        """The blocks without a value that compares: a mean over those that reached a target is biased."""
        quantity = QUANTITIES[self.ablation.measure]
        to_target = quantity is Q.time_to_target_s
        return [
            step.block
            for step, group in zip(self.ablation.steps, self.groups, strict=True)
            if not quantity.sample(group) or (to_target and len({*seeds_at_target(group)}) > 1)
        ]

    @property
    def fixes(self) -> list[str]:
        """What each step but the first one changes, in words."""
        return [step.fixes.replace("{nodes}", str(self.nodes)) for step in self.ablation.steps[1:]]

    @property
    def ask(self) -> Ask:
        """Each step with the one before it, on the right; and the last step with the first.

        Nothing if a step has no value.
        """
        steps = [] if self.lacking else [(other, one) for one, other in pairwise(self.groups)]
        ends = [(self.groups[-1], self.groups[0])] if len(steps) > 1 else []  # one change is the whole
        return Ask.of(QUANTITIES[self.ablation.measure], [*steps, *ends], of_sweep=True)


def ablated(comparison: Comparison) -> Iterator[Ablated]:
    """The ablations of the lab whose steps have all been run and compare."""
    lab = comparison.record.lab
    blocks = {block.name: block for block in comparison.record.blocks}
    for ablation in lab.ablations if lab else ():
        for nodes in ablation.nodes:
            groups = [
                group
                for step in ablation.steps
                if (group := matching_group(comparison, blocks[step.block], {"nodes": nodes, **step.runs}))
            ]
            if len(groups) == len(ablation.steps) and _comparable(ablation, groups):
                ends = [
                    name_of_runs(step.block, comparison.name_on(group), step.runs)
                    for step, group in zip(ablation.steps, groups, strict=True)
                ]
                yield Ablated(ablation, nodes, groups, [ends[0], ends[-1]])


def _comparable(ablation: Ablation, groups: list[Group]) -> bool:
    """Whether every step changes something, and the measure means the same at all steps.

    Runs that end at a target all have about the same accuracy.
    """
    if not all(changes(one, other) for one, other in pairwise(groups)):
        return False
    if len({group.first.location for group in groups}) > 1:
        return False
    if ablation.measure != "accuracy" and not all(group.first.times_compare for group in groups):
        return False
    to_target = ablation.measure == "time_to_target_s"
    return to_target or not any(target_reached(row) for row in evidence(groups))


def ablations(comparison: Comparison) -> Findings:
    """The causes of a published result, step by step: each change and the difference it makes."""
    found = [*ablated(comparison)]
    answers = yield [each.ask for each in found]
    for each, answer in zip(found, answers, strict=True):
        measure = each.ablation.measure
        yield (
            ablation(each, answer.compared)
            if answer.compared
            else Finding.of(
                "ablation_incomplete", each.groups, nodes=each.nodes, measure=measure, lacking=each.lacking
            )
        )


def ablation(found: Ablated, compared: Sequence[Compared]) -> Finding:
    """Its steps, and the difference that each of them makes."""
    return Finding.of(
        "ablation",
        found.groups,
        compared,
        nodes=found.nodes,
        measure=found.ablation.measure,
        clock=found.groups[0].first.clock,
        ends=found.ends,
        steps=[
            {"fixes": fixes, "changes": changes(*pair)}
            for fixes, pair in zip(found.fixes, pairwise(found.groups), strict=True)
        ],
    )


def changes(one: Group, other: Group) -> list[str]:
    """The spec fields in which two configurations differ: `strategy.init independent → broadcast`."""
    left, right = one.first.run, other.first.run
    changed: list[str] = []
    for field in RunSpec.model_fields:
        before, after = getattr(left, field), getattr(right, field)
        if before == after or field in _IGNORED_FIELDS:
            continue
        if field not in REGISTRIES:
            changed.append(f"{field} {as_written(before)} → {as_written(after)}")
        elif left.name_of(field) != right.name_of(field):
            changed.append(f"{field} {left.name_of(field)} → {right.name_of(field)}")
        else:
            mine, others = parameters(left, field), parameters(right, field)
            changed += [
                f"{field}.{name} {mine[name]} → {others[name]}"
                for name in mine
                if mine[name] != others[name]
            ]
    return changed


TOPIC = Topic(sweep_rules=(ablations, times))

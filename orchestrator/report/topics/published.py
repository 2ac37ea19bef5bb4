"""A published experiment: our times beside the published ones, and its ablations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.metrics.published import (
    PublishedLine,
    matching_group,
    name_of_runs,
    overrides,
    published_lines,
)
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import NOT_COMPARED, as_written, parameters
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.quantities.learning import seeds_at_target, target_reached
from orchestrator.report.quantities.quantity import Quantity
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
    hardware = comparison.record.lab.hardware if comparison.record.lab else NOT_STATED
    by_block: dict[str, list[PublishedLine]] = {}
    for line in published_lines(comparison):
        by_block.setdefault(line.block, []).append(line)
    for block, lines in by_block.items():
        one = next((line for line in lines if line.published.runs.get("nodes") == 1), None)
        measured = one.mean(lambda row: row.wall.train_s, geometric=True) if one else None
        if one is None or one.measured is None or one.published.time_s is None or measured is None:
            continue
        if not one.measured.first.wall.times_compare:
            continue
        data: dict[str, Any] = {
            "block": block,
            "hardware": hardware,
            "train_s": measured,
            "published_s": one.published.time_s,
        }
        scaled = [line for line in lines if line.measured_speedup and line.published_speedup]
        if scaled:
            most = max(scaled, key=lambda line: line.measured.shape.ranks if line.measured else 0)
            row = most.measured.first if most.measured else None
            data |= {
                "speedup_of": dict(most.published.runs),
                "speedup": most.measured_speedup,
                "published_speedup": most.published_speedup,
                "cpu_time_speedup": most.cpu_time_speedup,
                "runs": most.runs,
                "shared_cores": row.result.cores if row and row.shares_cores else None,
            }
        yield Finding("published_time", evidence(line.measured for line in lines), data)


@dataclass(frozen=True)
class Ablated:
    """An ablation on a number of nodes. groups: one for each step. names: of their configurations."""

    ablation: Ablation
    nodes: int
    groups: list[Group]
    names: list[str]

    @property
    def quantity(self) -> Quantity:
        return QUANTITIES[self.ablation.measure]

    @property
    def lacking(self) -> list[str]:
        """The blocks without a value that compares."""
        return [
            step.block
            for step, group in zip(self.ablation.steps, self.groups, strict=True)
            if not self.quantity.sample(group) or not _all_reached(self.ablation, group)
        ]

    @property
    def fixes(self) -> list[str]:
        """What each step but the first one changes, in words."""
        return [step.fixes.replace("{nodes}", str(self.nodes)) for step in self.ablation.steps[1:]]

    @property
    def ends(self) -> list[str]:
        """The first and the last step, as the lab calls them."""
        first, *_, last = (
            name_of_runs(step.block, name, step.runs)
            for step, name in zip(self.ablation.steps, self.names, strict=True)
        )
        return [first, last]

    @property
    def ask(self) -> Ask:
        """Each step with the one before it, on the right; and the last step with the first.

        Nothing if a step has no value.
        """
        steps = [] if self.lacking else [(other, one) for one, other in pairwise(self.groups)]
        ends = [(self.groups[-1], self.groups[0])] if len(steps) > 1 else []  # one change is the whole
        return Ask.of(self.quantity, [*steps, *ends], of_sweep=True)


def ablated(comparison: Comparison) -> Iterator[Ablated]:
    """The ablations of the lab whose steps have all been run and compare."""
    lab = comparison.record.lab
    blocks = {block.name: block for block in comparison.record.blocks}
    for ablation in lab.ablations if lab else ():
        for nodes in ablation.nodes:
            matching = [
                matching_group(comparison, blocks[step.block], {"nodes": nodes, **step.runs})
                for step in ablation.steps
            ]
            groups = [group for group in matching if group]
            if len(groups) == len(matching) and _comparable(ablation, groups):
                yield Ablated(ablation, nodes, groups, [*map(comparison.name_on, groups)])


def ablations(comparison: Comparison) -> Findings:
    """The causes of a published result, step by step: each change and the difference it makes."""
    found = [*ablated(comparison)]
    answers = yield [each.ask for each in found]
    for each, answer in zip(found, answers, strict=True):
        yield ablation(each, answer.compared) if answer.compared else _incomplete(each)


def _comparable(ablation: Ablation, groups: list[Group]) -> bool:
    """Whether every step changes something, and the measure means the same at all steps.

    Runs that end at a target all have about the same accuracy.
    """
    if not all(changes(one, other) for one, other in pairwise(groups)):
        return False
    if len({group.first.location for group in groups}) > 1:
        return False
    processes = all(group.first.times_compare for group in groups)
    if ablation.measure == "time_to_target_s":
        return processes
    ended_early = any(target_reached(row) for group in groups for row in group.ok_rows)
    return not ended_early and (processes or ablation.measure == "accuracy")


def _incomplete(found: Ablated) -> Finding:
    data = {"nodes": found.nodes, "measure": found.ablation.measure, "lacking": found.lacking}
    return Finding("ablation_incomplete", evidence(found.groups), data)


def ablation(found: Ablated, compared: Sequence[Compared]) -> Finding:
    differences, whole = compared[: len(found.fixes)], compared[-1]
    groups = found.groups
    data = {
        "nodes": found.nodes,
        "measure": found.ablation.measure,
        "clock": groups[0].first.clock,
        "names": [found.names[0], found.names[-1]],
        "ends": found.ends,
        "first": whole.values[1],
        "last": whole.values[0],
        "steps": [
            {"fixes": fixes, "changes": changes(*pair), "decision": each.verdict}
            for fixes, pair, each in zip(found.fixes, pairwise(groups), differences, strict=True)
        ],
        "compared": compared_data(compared),
    }
    return Finding("ablation", evidence(groups), data)


def _all_reached(ablation: Ablation, group: Group) -> bool:
    """A mean over the seeds that reached their target would be biased."""
    reached, seeds = seeds_at_target(group)
    return ablation.measure != "time_to_target_s" or reached == seeds


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

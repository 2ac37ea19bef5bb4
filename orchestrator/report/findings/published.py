"""Findings about a published experiment: our times beside the published ones, and its ablations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from orchestrator.report.findings.base import REMARKS, Finding, evidence
from orchestrator.report.formats import count, listed, percent, points, ratio, seconds
from orchestrator.report.metrics.learning import seeds_at_target, target_reached, time_to_target_s
from orchestrator.report.metrics.published import (
    PublishedLine,
    matching_group,
    overrides,
    published_lines,
)
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.labels import as_written, parameters
from orchestrator.report.statistics.spread import Spread, compare_spreads
from orchestrator.sweeps.lab import Ablation, AblationStep, Measure
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

# Fields in which two steps may differ without a change of what is computed.
_IGNORED_FIELDS = {"seed", "timeout_s", "save_weights", "restarts"}


def times(comparison: Comparison) -> Iterator[Finding]:
    """One node's time beside the published one, and whether more nodes gain as much."""
    if overrides(comparison):  # most likely less work than was published
        return
    by_block: dict[str, list[PublishedLine]] = {}
    for line in published_lines(comparison):
        by_block.setdefault(line.block, []).append(line)
    for block, lines in by_block.items():
        one = next((line for line in lines if line.published.runs.get("nodes") == 1), None)
        measured = one.mean(lambda row: row.train_s) if one else None
        if one is None or one.published.time_s is None or measured is None:
            continue
        text = (
            f"{block}: one node took {seconds(measured)}; {seconds(one.published.time_s)} were published, "
            f"on another machine and with another training loop. Ours is "
            f"{ratio(one.published.time_s / measured)} times as fast."
        )
        data: dict[str, Any] = {"block": block, "train_s": measured, "published_s": one.published.time_s}
        scaled = [line for line in lines if line.measured_speedup and line.published_speedup]
        if scaled:
            most = max(scaled, key=lambda line: line.measured.shape.ranks if line.measured else 0)
            text += (
                f" The speedup of {most.runs} was {ratio(most.published_speedup)} as published and "
                f"{ratio(most.measured_speedup)} here{_shared(most)}."
            )
            data |= {
                "speedup_of": dict(most.published.runs),
                "speedup": most.measured_speedup,
                "published_speedup": most.published_speedup,
                "cpu_time_speedup": most.cpu_time_speedup,
            }
        yield Finding("published_time", text, evidence(line.measured for line in lines), data)


def _shared(line: PublishedLine) -> str:
    row = line.measured.first if line.measured else None
    if row is None or not row.shares_cores or line.cpu_time_speedup is None:
        return ""
    cores = f"{row.result.cores:g}"
    return f", where the nodes shared {cores} cores; by CPU time it was {ratio(line.cpu_time_speedup)}"


def ablations(comparison: Comparison) -> Iterator[Finding]:
    """The causes of a published result, step by step: each change and the difference it makes."""
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
                yield _finding(ablation, nodes, groups)


def _comparable(ablation: Ablation, groups: list[Group]) -> bool:
    """Whether every step changes something, and the measure means the same at all steps.

    Runs that end at a target all have about the same accuracy.
    """
    if not all(changes(one, other) for one, other in pairwise(groups)):
        return False
    if len({group.first.location for group in groups}) > 1:
        return False
    processes = all(group.first.result.times_compare for group in groups)
    if ablation.measure == "time_to_target_s":
        return processes
    ended_early = any(target_reached(row) for group in groups for row in group.ok_rows)
    return not ended_early and (processes or ablation.measure == "accuracy")


def _finding(ablation: Ablation, nodes: int, groups: list[Group]) -> Finding:
    measured = [_measured(ablation, group) for group in groups]
    known = [spread for spread in measured if spread]
    if len(known) < len(groups):
        lacking = [step.block for step, spread in zip(ablation.steps, measured, strict=True) if not spread]
        return Finding(
            "ablation_incomplete",
            f"At {count(nodes, 'node')}, no {ablation.measure} to compare of {listed(lacking)}.",
            evidence(groups),
            {"nodes": nodes, "measure": ablation.measure, "lacking": lacking},
        )
    first, last = known[0], known[-1]
    write, verb = (percent, "reached") if ablation.measure == "accuracy" else (seconds, "took")
    parts, steps = [], []
    for number, step in enumerate(ablation.steps[1:], start=1):
        left, right = known[number - 1], known[number]
        verdict = compare_spreads(left, right)
        fixes = step.fixes.replace("{nodes}", str(nodes))
        changed = changes(groups[number - 1], groups[number])
        parts.append(
            f"{_difference(ablation, right.mean - left.mean)} from {fixes} ({', '.join(changed)})"
            f"{REMARKS[verdict] if verdict != 'single_seed' else ''}"
        )
        steps.append(
            {"difference": right.mean - left.mean, "fixes": fixes, "changes": changed, "verdict": verdict}
        )
    repeated = all(group.repeated for group in groups)
    text = (
        f"At {count(nodes, 'node')}, {_step_name(ablation.steps[0])} {verb} {write(first.mean)} and "
        f"{_step_name(ablation.steps[-1])} {write(last.mean)}: "
        f"{_difference(ablation, last.mean - first.mean)}. Contributions: {listed(parts)}."
        f"{'' if repeated else ' Not repeated: each may be chance.'}"
    )
    data = {
        "nodes": nodes,
        "measure": ablation.measure,
        "first": first.mean,
        "last": last.mean,
        "steps": steps,
        "repeated": repeated,
    }
    return Finding("ablation", text, evidence(groups), data)


def _step_name(step: AblationStep) -> str:
    """`equal nodes (all_reduce, gloo)`: the block, and which of its runs."""
    which = [str(value) for field, value in step.runs.items() if field != "nodes"]
    return step.block + (f" ({', '.join(which)})" if which else "")


def _measured(ablation: Ablation, group: Group) -> Spread | None:
    metrics: dict[Measure, Metric] = {
        "accuracy": lambda row: row.accuracy,
        "train_s": lambda row: row.train_s,
        "time_to_target_s": time_to_target_s,
    }
    if ablation.measure == "time_to_target_s":
        reached, seeds = seeds_at_target(group)
        if reached < seeds:  # a mean over the seeds that reached it would be biased
            return None
    return group.over(metrics[ablation.measure])


def _difference(ablation: Ablation, value: float) -> str:
    if ablation.measure == "accuracy":
        return points(value)
    return f"{'+' if value > 0 else ''}{seconds(value)}"


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

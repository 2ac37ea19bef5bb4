"""Findings about a published experiment: how ours compares, and what a difference is due to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import count, listed, percent, points, ratio, seconds
from orchestrator.report.metrics.learning import in_how_many, target_reached, time_to_target_s
from orchestrator.report.metrics.published import Line, cell_of, changed, lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, Metric, Spread
from orchestrator.report.model.labels import as_written, parameters
from orchestrator.sweeps.lab import Ablation, AblationStep, Measure
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

# Fields in which two steps may differ without that being a change of what is computed.
_NO_CHANGE = {"seed", "timeout_s", "save_weights", "restarts"}


def times(comparison: Comparison) -> Iterator[Finding]:
    """How much faster one node is than the published one, and whether more nodes gain as much."""
    if changed(comparison):  # less work than was published, most likely
        return
    by_block: dict[str, list[Line]] = {}
    for line in lines(comparison):
        by_block.setdefault(line.block, []).append(line)
    for block, its in by_block.items():
        one = next((line for line in its if line.published.runs.get("nodes") == 1), None)
        measured = one.mean(lambda row: row.train_s) if one else None
        if one is None or one.published.time_s is None or measured is None:
            continue
        ours, theirs = seconds(measured), seconds(one.published.time_s)
        text = (
            f"{block}: one node took {ours} where {theirs} were published, "
            f"{ratio(one.published.time_s / measured)} times as fast: another machine, and another loop."
        )
        scaled = [line for line in its if line.measured_speedup and line.published_speedup]
        if scaled:
            most = max(scaled, key=lambda line: line.measured.shape.ranks if line.measured else 0)
            text += (
                f" The speedup of {most.runs} was {ratio(most.published_speedup)} as published and "
                f"{ratio(most.measured_speedup)} here{_shared(most)}."
            )
        yield Finding("finding", text, evidence(line.measured for line in its))


def _shared(line: Line) -> str:
    row = line.measured.first if line.measured else None
    if row is None or not row.shares_cores or line.work_speedup is None:
        return ""
    cores = f"{row.result.cores:g}"
    return f", where they shared {cores} cores; by CPU time it was {ratio(line.work_speedup)}"


def causes(comparison: Comparison) -> Iterator[Finding]:
    """What a published form loses, rung by rung: the change that mends it, and how much it gives back."""
    lab = comparison.record.lab
    blocks = {block.name: block for block in comparison.record.blocks}
    for ladder in lab.ablations if lab else ():
        for nodes in ladder.nodes:
            cells = [
                cell_of(comparison, blocks[rung.block], {"nodes": nodes, **rung.runs})
                for rung in ladder.steps
            ]
            climbed = [group for group in cells if group]
            if len(climbed) == len(cells) and _comparable(ladder, climbed):
                yield Finding("finding", _told(ladder, nodes, climbed), evidence(climbed))


def _comparable(ladder: Ablation, cells: list[Group]) -> bool:
    """Whether every rung changes something, and what is measured means the same on all.

    Where runs ended at a target, all have much the same accuracy after their own times.
    """
    if not all(changes(one, other) for one, other in pairwise(cells)):
        return False
    if len({group.first.where for group in cells}) > 1:
        return False
    ranks_apart = all(group.first.result.times_compare for group in cells)
    if ladder.measure == "time_to_target_s":
        return ranks_apart
    ended = any(target_reached(row) for group in cells for row in group.ok_rows)
    return not ended and (ranks_apart or ladder.measure == "accuracy")


def _told(ladder: Ablation, nodes: int, cells: list[Group]) -> str:
    measured = [_measured(ladder, group) for group in cells]
    known = [spread for spread in measured if spread]
    if len(known) < len(cells):
        lacking = [rung.block for rung, spread in zip(ladder.steps, measured, strict=True) if not spread]
        return f"At {count(nodes, 'node')} there is no {ladder.measure} of {listed(lacking)} to compare."
    first, last = known[0], known[-1]
    write = percent if ladder.measure == "accuracy" else seconds
    parts = []
    for number, rung in enumerate(ladder.steps[1:], start=1):
        left, right = known[number - 1], known[number]
        judged = verdict(left, right)
        parts.append(
            f"{_difference(ladder, right.mean - left.mean)} to "
            f"{rung.fixes.replace('{nodes}', str(nodes))} "
            f"({', '.join(changes(cells[number - 1], cells[number]))})"
            f"{REMARKS[judged] if judged != 'once' else ''}"
        )
    lowest, highest = _called(ladder.steps[0]), _called(ladder.steps[-1])
    return (
        f"At {count(nodes, 'node')} {lowest} came to {write(first.mean)}, "
        f"{highest} to {write(last.mean)}: {_difference(ladder, last.mean - first.mean)}. "
        f"Of these are due {listed(parts)}."
        f"{'' if all(group.repeated for group in cells) else ' Not repeated: each may be chance.'}"
    )


def _called(rung: AblationStep) -> str:
    """`all nodes alike (all_reduce, gloo)`: the block, and which of its runs."""
    which = [str(value) for field, value in rung.runs.items() if field != "nodes"]
    return rung.block + (f" ({', '.join(which)})" if which else "")


def _measured(ladder: Ablation, group: Group) -> Spread | None:
    metrics: dict[Measure, Metric] = {
        "accuracy": lambda row: row.accuracy,
        "train_s": lambda row: row.train_s,
        "time_to_target_s": time_to_target_s,
    }
    if ladder.measure == "time_to_target_s":
        reached, seeds = in_how_many(group)
        if reached < seeds:  # the mean of the lucky ones says nothing of the cell
            return None
    return group.over(metrics[ladder.measure])


def _difference(ladder: Ablation, value: float) -> str:
    if ladder.measure == "accuracy":
        return points(value)
    return f"{'+' if value > 0 else ''}{seconds(value)}"


def changes(one: Group, other: Group) -> list[str]:
    """The fields of the spec in which two cells differ: `strategy.init independent → broadcast`."""
    left, right = one.first.run, other.first.run
    told: list[str] = []
    for field in RunSpec.model_fields:
        before, after = getattr(left, field), getattr(right, field)
        if before == after or field in _NO_CHANGE:
            continue
        if field not in REGISTRIES:
            told.append(f"{field} {as_written(before)} → {as_written(after)}")
        elif left.name_of(field) != right.name_of(field):
            told.append(f"{field} {left.name_of(field)} → {right.name_of(field)}")
        else:
            mine, others = parameters(left, field), parameters(right, field)
            told += [
                f"{field}.{name} {mine[name]} → {others[name]}"
                for name in mine
                if mine[name] != others[name]
            ]
    return told

"""Findings about a target accuracy: who reached it first, and who never did."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import count, listed, percent, seconds
from orchestrator.report.metrics.learning import in_how_many, last_epoch, time_to_target_s
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Spread

MOST_NAMED = 6  # in one sentence


def first_at_target(scene: WorkloadView) -> Iterator[Finding]:
    """Who reached the target after the shortest training, of those who do with every seed."""
    timed = [(spread, group) for group in _tried(scene) if (spread := _to_target(group))]
    timed.sort(key=lambda item: item[0].mean)
    if not timed:
        return
    (best_s, best), *others = timed
    text = (
        f"{_who(scene, best)} was the first at {_target(scene)} test accuracy: "
        f"{seconds(best_s.mean)} of training{_epochs(best)}."
    )
    told = [best]
    if others:
        next_s, runner_up = others[0]
        text += (
            f" Next came {_who(scene, runner_up)}: {seconds(next_s.mean)}"
            f"{_epochs(runner_up)}{REMARKS[verdict(best_s, next_s)]}."
        )
        told.append(runner_up)
    serial_s = next((spread for spread, group in others[1:] if group.serial), None)
    if scene.serial and serial_s:
        text += f" Serial took {seconds(serial_s.mean)}{_epochs(scene.serial)}."
        told.append(scene.serial)
    yield Finding("finding", text, evidence(told))


def not_with_every_seed(scene: WorkloadView) -> Iterator[Finding]:
    """Who reached the target by luck."""
    some = [group for group in _tried(scene) if 0 < in_how_many(group)[0] < in_how_many(group)[1]]
    if some:
        named = [f"{_who(scene, group)} ({' of '.join(map(str, in_how_many(group)))})" for group in some]
        text = f"Only some seeds reached {_target(scene)} test accuracy: {_few(named)}."
        yield Finding("finding", text, evidence(some))


def never_at_target(scene: WorkloadView) -> Iterator[Finding]:
    """Who did not reach the target in all of the epochs."""
    never = [group for group in _tried(scene) if not in_how_many(group)[0]]
    if never:
        patience = scene.work.patience
        held = f", {patience} times in a row," if patience > 1 else ""
        named = _few([f"{_who(scene, group)} ({_best(group)})" for group in never])
        epochs = count(scene.work.epochs, "epoch")
        text = f"{_target(scene)} test accuracy was not reached{held} in {epochs}: {named}."
        yield Finding("finding", text, evidence(never))


def _tried(scene: WorkloadView) -> list[Group]:
    """All groups, on any number of nodes, if they had a target."""
    return [] if scene.work.target_accuracy is None else scene.in_lines


def _target(scene: WorkloadView) -> str:
    return percent(scene.work.target_accuracy)


def _to_target(group: Group) -> Spread | None:
    """None unless all its seeds got there, in times that compare."""
    reached, seeds = in_how_many(group)
    return group.over(time_to_target_s) if reached == seeds and group.first.result.times_compare else None


def _who(scene: WorkloadView, group: Group) -> str:
    return scene.name(group) + ("" if group.serial else f" on {group.shape.label}")


def _epochs(group: Group) -> str:
    """In which epoch, the first of those in a row that it had to be in."""
    trained = group.over(lambda row: (last_epoch(row) or 0) - row.run.patience + 1)
    return f", in epoch {trained.range(lambda value: f'{value:.0f}')}" if trained else ""


def _best(group: Group) -> str:
    best = Spread.of(
        max(point.accuracy for point in row.result.epochs) for row in group.ok_rows if row.result.epochs
    )
    return f"at best {percent(best.high)}" if best else "never evaluated"


def _few(named: list[str]) -> str:
    more = len(named) - MOST_NAMED
    return listed(named if more <= 0 else [*named[:MOST_NAMED], f"{more} more"])

"""The verdict on a workload with a target accuracy: the time to it counts."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from orchestrator.report.formats import first_few, percent, ratio, seconds
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import TIME_TO_TARGET_S
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.decisions import Decisions, seeds_needed
from orchestrator.report.verdict.options import MOST, option

MOST_NAMED = 3


def to_target(view: WorkloadView, decisions: Decisions) -> Verdict:
    """Which configuration reaches the target first, on any number of nodes, among those that always do."""
    pool = sorted(filter(_always, view.line_groups), key=TIME_TO_TARGET_S.mean_of)
    pool = [group for group in pool if len(group.ok_rows) >= MIN_SEEDS] or pool

    def first_of(one: Group, other: Group) -> bool:
        found = decisions.between(TIME_TO_TARGET_S, one, other)
        return found is not None and found.verdict == "less"

    best = [group for group in pool if not any(first_of(other, group) for other in pool)]
    headline, certainty, decided = _worded(view, decisions, pool, best)
    serial = [group for group in pool if group.serial and not any(group is each for each in best)]
    shown = [*best[: MOST - len(serial)], *serial]
    options = tuple(
        option(
            view,
            group,
            TIME_TO_TARGET_S.of,
            best_time=len(pool) > 1 and all(first_of(group, other) for other in pool if other is not group),
        )
        for group in shown
    )
    return Verdict(view.workload, headline, " ".join(filter(None, certainty)), decided, options)


def _always(group: Group) -> bool:
    """Whether every seed reached the target, and the times compare."""
    reached, _ = seeds_at_target(group)
    return 0 < reached == len(group.rows) and group.first.times_compare


def _worded(
    view: WorkloadView, decisions: Decisions, pool: Sequence[Group], best: Sequence[Group]
) -> tuple[str, list[str], bool]:
    target = f"{percent(view.workload.target_accuracy)} accuracy"
    rest = _not_always(view, pool)
    if not pool:
        return f"No configuration reached {target} with every seed.", [rest], False
    first, others = best[0], [group for group in pool if group is not best[0]]
    if all(len(group.ok_rows) < MIN_SEEDS for group in pool):
        headline = f"Too few seeds to choose: {_named(view, first)} was measured to reach {target} first."
        return headline, [rest, "Run the sweep again with --repeat 5."], False
    if not others:
        return f"Only {_named(view, first)} reached {target} with every seed.", [rest], False
    serial = next((group for group in pool if group.serial), None)
    if len(best) > 1:
        names = first_few([_named(view, group) for group in best], MOST_NAMED)
        took = "" if serial is None or any(serial is each for each in best) else f"; {_named(view, serial)}"
        open_ = [decisions.between(TIME_TO_TARGET_S, other, first) for other in best[1:]]
        headline = f"This sweep does not decide which reaches {target} first: {names}{took}."
        return headline, [seeds_needed(open_, "which is first"), rest], False
    reference = serial if serial is not None and serial is not first else others[0]
    found = decisions.between(TIME_TO_TARGET_S, reference, first)
    by = ""
    if found and found.interval:
        low, high = (TIME_TO_TARGET_S.write_bound(log(bound)) for bound in found.interval)
        times = ratio(found.values[0] / found.values[1])
        by = f"; {_named(view, reference)} takes {times} times as long ({low} to {high})"
    verb = "Stay with" if first.serial else "Choose"
    headline = f"{verb} {_named(view, first)}: it is likely to reach {target} first{by}."
    number = "the other one" if len(others) == 1 else f"all {len(others)} others"
    return headline, [f"Likely to be later: {number} that always reached it.", rest], True


def _named(view: WorkloadView, group: Group) -> str:
    """`ddp over gloo on 2 nodes (3.20 s)`."""
    on = "" if group.serial else f" on {group.shape.label}"
    clock = "" if view.clock == "wall" else " in cluster time"
    return f"{view.name(group)}{on} ({seconds(TIME_TO_TARGET_S.mean_of(group))}{clock})"


def _not_always(view: WorkloadView, pool: Sequence[Group]) -> str:
    """The configurations that did not reach the target with every seed, as a sentence."""
    missed = [
        view.name(group) + ("" if group.serial else f" on {group.shape.label}")
        for group in view.line_groups
        if not any(group is each for each in pool) and seeds_at_target(group)[0] < len(group.rows)
    ]
    return f"Not with every seed: {first_few(missed, MOST_NAMED)}." if missed else ""

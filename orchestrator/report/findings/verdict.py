"""What a report opens with: accuracy and time together, the worth of more nodes, and what is undecided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, Ranking, compared_data
from orchestrator.report.findings.compared import Compared
from orchestrator.report.findings.speed import timed
from orchestrator.report.formats import count, first_few, listed, percent, seconds, size
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, one_per_work, same_work
from orchestrator.report.quantities import ACCURACY, BYTES_SENT_PER_RANK, TRAIN_S
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.statistics.power import MOST_SEEDS

LEVELS = ("shown", "likely")


def front(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The Pareto front of accuracy and wall time, serial included.

    A strategy is on the front if each other one is claimed to be less accurate or slower. It is off the
    front if another is claimed to be better in one, and is at least as good in the other as measured.
    Strategies that do the same work per step count as equally fast.
    """
    groups = [
        group
        for group in timed([*view.ranked_candidates, *([view.serial] if view.serial else [])])
        if ACCURACY.sample(group) and not any(map(target_reached, group.ok_rows))
    ]
    if len(groups) < 2 or all(group.serial for group in groups):
        return
    accuracies = claims.among(ACCURACY, groups)
    times = claims.among(TRAIN_S, one_per_work(groups))
    on, off, unknown = [], [], []
    for group in groups:
        better = _dominating(group, groups, times, accuracies)
        if _on_front(group, groups, times, accuracies):
            on.append(group)
        elif better:
            off.append((group, better))
        else:
            unknown.append(group)
    yield Finding(
        "front",
        f"{view.times_at}{view.of_ranked}, {_positions(view, on, off, unknown)}.",
        evidence(groups),
        {
            "on": [view.name(group) for group in on],
            "off": [view.name(group) for group, _ in off],
            "undecided": [view.name(group) for group in unknown],
            "accuracy": {view.name(group): ACCURACY.mean_of(group) for group in groups},
            "train_s": {view.name(group): TRAIN_S.mean_of(group) for group in groups},
            "bytes_sent": {
                view.name(group): sent.mean for group in groups if (sent := BYTES_SENT_PER_RANK.over(group))
            },
            "compared": compared_data([*times.comparisons, *accuracies.comparisons]),
        },
    )


def _positions(
    view: WorkloadView, on: Sequence[Group], off: Sequence[tuple[Group, Group]], unknown: Sequence[Group]
) -> str:
    """Which groups are on the front, which are not, and which may be."""
    parts = []
    if on:
        parts.append(f"{_described(view, on)} {_be(on)} likely to be on the front of accuracy and time")
    if unknown:
        whether = f"{'W' if on else 'w'}hether {_described(view, unknown)} {_be(unknown)}"
        parts.append(f"{whether} on the front of accuracy and time is undecided")
    by_better: dict[int, list[tuple[Group, Group]]] = {}
    for pair in off:
        by_better.setdefault(id(pair[1]), []).append(pair)
    for pairs in by_better.values():
        worse = [group for group, _ in pairs]
        parts.append(
            f"Off it {_be(worse)} {_described(view, worse)}: {view.name(pairs[0][1])} is better in one, "
            f"and {_no_worse(pairs)} in the other"
        )
    return ". ".join(parts)


def _no_worse(pairs: Sequence[tuple[Group, Group]]) -> str:
    """How a better group compares where no difference is claimed."""
    if all(same_work(*pair) for pair in pairs):
        return "does the same work per step, which counts as equal,"
    return "was measured no worse"


def _be(groups: Sequence[Group]) -> str:
    return "is" if len(groups) == 1 else "are"


def _on_front(group: Group, groups: Sequence[Group], times: Ranking, accuracies: Ranking) -> bool:
    return all(
        _faster(group, other, times) or accuracies.better(group, other)
        for other in groups
        if other is not group
    )


def _dominating(group: Group, groups: Sequence[Group], times: Ranking, accuracies: Ranking) -> Group | None:
    """A group that is claimed to be better in one quantity and measured no worse in the other."""
    for other in groups:
        if other is group:
            continue
        faster = TRAIN_S.mean_of(_timed_as(other, times)) <= TRAIN_S.mean_of(_timed_as(group, times))
        as_accurate = ACCURACY.mean_of(other) >= ACCURACY.mean_of(group)
        better = _faster(other, group, times) or accuracies.better(other, group)
        if faster and as_accurate and better:
            return other
    return None


def _faster(one: Group, other: Group, times: Ranking) -> bool:
    """Whether `one` is claimed to be faster; never of two groups that do the same work."""
    left, right = _timed_as(one, times), _timed_as(other, times)
    return left is not right and times.better(left, right)


def _timed_as(group: Group, times: Ranking) -> Group:
    """The ranked group that does the same work, whose time stands for this one's."""
    return next(each for each in times.groups if same_work(each, group))


def _described(view: WorkloadView, groups: Sequence[Group]) -> str:
    """`one_shot over mpi (94.1%, 2.31 s, 1.2 MB sent per rank) and …`: the first few."""
    names = []
    for group in groups:
        sent = BYTES_SENT_PER_RANK.over(group)
        amount = f", {size(sent.mean)} sent per rank" if sent and sent.mean else ""
        reached, took = ACCURACY.mean_of(group), TRAIN_S.mean_of(group)
        names.append(f"{view.name(group)} ({percent(reached)}, {seconds(took)}{amount})")
    return first_few(names)


def more_nodes(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """What more nodes gain: from the fewest to the most, and at which number a strategy stops to gain."""
    lines = list(_by_line(view))
    steps_of = [[(more, fewer) for fewer, more in pairwise(groups)] for groups in lines]
    compared = claims.pairs(TRAIN_S, [pair for steps in steps_of for pair in steps])
    wholes = claims.pairs(TRAIN_S, [(groups[-1], groups[0]) for groups in lines])
    for groups, whole in zip(lines, wholes, strict=True):
        steps = [each for each in compared if any(each.right is group for group in groups)]
        if any(each.verdict == "too_few_seeds" for each in steps):
            continue
        first = groups[0]
        parts = [f"{_time(first)} on {first.shape.label}"]
        parts += [f"{_time(each.left)} on {each.left.shape.short}, {each.written}" for each in steps]
        yield Finding(
            "more_nodes",
            f"{view.subject(first)} took {'; '.join(parts)}. {_worth(steps, whole)}",
            evidence(groups),
            {
                "strategy": view.name(first),
                "ranks": [group.shape.ranks for group in groups],
                "train_s": [TRAIN_S.mean_of(group) for group in groups],
                "steps": [each.verdict for each in steps],
                "whole": whole.verdict,
                "compared": compared_data([*steps, whole] if len(steps) > 1 else steps),
            },
        )


def _time(group: Group) -> str:
    """A speed never appears without its accuracy."""
    accuracy = f" ({percent(group.accuracy.mean)})" if group.accuracy else ""
    return f"{seconds(TRAIN_S.mean_of(group))}{accuracy}"


def _worth(steps: Sequence[Compared], whole: Compared) -> str:
    """Whether it became faster from the fewest to the most nodes, and where it became slower."""
    fewest, most = whole.right.shape.short, whole.left.shape.label
    changed = {"less": "faster", "more": "slower"}.get(whole.verdict)
    if changed:
        text = f"From {fewest} to {most}, it became {changed}"
        text += f": {whole.written}" if len(steps) > 1 else ""
    elif whole.within_tolerance:
        text = f"From {fewest} to {most}, its time is the same within the tolerance"
    else:
        text = f"Whether it becomes faster from {fewest} to {most} is undecided"
    against = [each for each in steps if each.verdict == "more"] if len(steps) > 1 else []
    if against:
        where = [f"{each.right.shape.short} to {each.left.shape.label}" for each in against]
        text += f". It became slower from {listed(where)}"
    return f"{text}."


def _by_line(view: WorkloadView) -> Iterator[list[Group]]:
    """The groups that differ only in their number of nodes, the fewest first; at least two."""
    lines: dict[tuple[str, str, str, int], list[Group]] = {}
    for group in timed(view.line_groups):
        if not group.serial and not group.shape.slower_nodes:
            lines.setdefault(group.line, []).append(group)
    for groups in lines.values():
        groups.sort(key=lambda group: group.shape.ranks)
        if len({group.shape.ranks for group in groups}) == len(groups) > 1:
            yield groups


def undecided(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """How many comparisons are undecided, and how many seeds would probably decide them."""
    open_ = [each for each in claims.all if each.verdict == "undecided" and not each.within_tolerance]
    if not open_:
        return
    decided = {level: sum(each.decided and each.level == level for each in claims.all) for level in LEVELS}
    equal = sum(each.verdict == "undecided" and each.within_tolerance for each in claims.all)
    needed = sorted(seeds for each in open_ if (seeds := each.seeds_to_decide))
    hopeless = sum(each.hopeless for each in open_)
    parts = [f"{decided['shown']} shown", f"{decided['likely']} likely"]
    parts += [f"{equal} equal within the tolerance"] if equal else []
    text = (
        f"Of {count(len(open_) + equal + sum(decided.values()), 'comparison')}, {listed(parts)}, and "
        f"{len(open_)} undecided; findings.json has all of them."
    )
    if needed:
        half = needed[(len(needed) - 1) // 2]
        which = "it" if len(open_) == 1 else f"{sum(seeds <= half for seeds in needed)} of them"
        text += (
            f" {count(half, 'seed').capitalize()} per configuration would probably decide {which}: run the "
            f"command of this sweep again with --repeat {half}. Runs that have finished are not repeated."
        )
    if hopeless:
        text += (
            f" No number of seeds would decide {hopeless}: the differences are no larger than those "
            "between two sessions, or than the error of cluster time."
        )
    if many := len(open_) - len(needed) - hopeless:
        text += f" {many} would need more than {MOST_SEEDS} seeds each."
    data = {
        "undecided": len(open_),
        "decided": sum(decided.values()),
        **decided,
        "within_tolerance": equal,
        "seeds": needed,
        "beyond": many,
        "hopeless": hopeless,
        "compared": compared_data(claims.all),
    }
    yield Finding("undecided", text, (), data)

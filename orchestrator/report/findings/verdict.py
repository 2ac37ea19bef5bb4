"""What a report opens with: accuracy and time together, the worth of more nodes, and what is undecided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, Compared, Ranking, compared_data
from orchestrator.report.findings.speed import timed
from orchestrator.report.formats import count, first_few, listed, percent, seconds, size
from orchestrator.report.metrics.learning import target_reached
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, one_per_work, same_work
from orchestrator.report.statistics.power import MOST_SEEDS


def front(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The Pareto front of accuracy and wall time.

    A strategy is on the front if each other one is claimed to be less accurate or slower. It is off the
    front if another is claimed to be better in one, and is at least as good in the other as measured.
    Strategies that do the same work per step count as equally fast.
    """
    groups = [
        group
        for group in timed(view.ranked_candidates)
        if ACCURACY.sample(group) and not any(map(target_reached, group.ok_rows))
    ]
    if len(groups) < 2:
        return
    accuracies = claims.all_pairs(ACCURACY, groups)
    works = one_per_work([group for group in view.ranked_candidates if group in groups])
    times = claims.all_pairs(TRAIN_S, works)
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
                view.name(group): sent.mean
                for group in groups
                if (sent := group.over(lambda row: row.bytes_sent_per_rank))
            },
            "compared": compared_data([*times.comparisons, *accuracies.comparisons]),
        },
    )


def _positions(
    view: WorkloadView, on: Sequence[Group], off: Sequence[tuple[Group, Group]], unknown: Sequence[Group]
) -> str:
    """Which groups are on the front, which are not, and which may be."""
    shown = f"{_described(view, on)} {_be(on)}" if on else "no configuration is shown to be"
    parts = [f"{shown} on the front of accuracy and time"]
    by_better: dict[int, list[tuple[Group, Group]]] = {}
    for pair in off:
        by_better.setdefault(id(pair[1]), []).append(pair)
    for pairs in by_better.values():
        worse = [group for group, _ in pairs]
        parts.append(
            f"Off it {_be(worse)} {_described(view, worse)}: {view.name(pairs[0][1])} is better in one, "
            f"and {_no_worse(pairs)} in the other"
        )
    if unknown:
        parts.append(f"Undecided {_be(unknown)} {_described(view, unknown)}")
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
        sent = group.over(lambda row: row.bytes_sent_per_rank)
        amount = f", {size(sent.mean)} sent per rank" if sent and sent.mean else ""
        reached, took = ACCURACY.mean_of(group), TRAIN_S.mean_of(group)
        names.append(f"{view.name(group)} ({percent(reached)}, {seconds(took)}{amount})")
    return first_few(names)


def more_nodes(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """At which number of nodes adding more stops to shorten the time of a strategy."""
    lines = list(_by_line(view))
    compared = claims.pairs(
        TRAIN_S, [(more, fewer) for groups in lines for fewer, more in pairwise(groups)]
    )
    for groups in lines:
        steps = [each for each in compared if any(each.right is group for group in groups)]
        if any(each.verdict == "too_few_seeds" for each in steps):
            continue
        first = groups[0]
        parts = [f"{_time(first)} on {first.shape.label}"]
        parts += [f"{_time(each.left)} on {each.left.shape.short}, {each.written}" for each in steps]
        yield Finding(
            "more_nodes",
            f"{view.subject(first)} took {'; '.join(parts)}. {_worth(steps)}",
            evidence(groups),
            {
                "strategy": view.name(first),
                "ranks": [group.shape.ranks for group in groups],
                "train_s": [TRAIN_S.mean_of(group) for group in groups],
                "steps": [each.verdict for each in steps],
                "compared": compared_data(steps),
            },
        )


def _time(group: Group) -> str:
    """A speed never appears without its accuracy."""
    accuracy = f" ({percent(group.accuracy.mean)})" if group.accuracy else ""
    return f"{seconds(TRAIN_S.mean_of(group))}{accuracy}"


def _worth(steps: Sequence[Compared]) -> str:
    verdicts = [each.verdict for each in steps]
    if "more" in verdicts:
        slower = steps[verdicts.index("more")]
        return f"It was slower on {slower.left.shape.label} than on {slower.right.shape.short}."
    if set(verdicts) == {"less"}:
        fewest, most = steps[0].right.shape, steps[-1].left.shape
        between = " than on the next smaller number" if len(steps) > 1 else f" than on {fewest.short}"
        each = "each number of nodes" if len(steps) > 1 else most.label
        return f"It was faster on {each}{between}."
    if "less" in verdicts:
        decided, open_ = (
            [
                f"{each.right.shape.short} to {each.left.shape.label}"
                for each in steps
                if (each.verdict == "less") is faster
            ]
            for faster in (True, False)
        )
        return f"It became faster from {listed(decided)}. From {listed(open_)}, a gain is undecided."
    return "Whether more nodes make it faster is undecided."


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
    pairs: dict[tuple[str, frozenset[str]], list[Compared]] = {}
    for each in claims.all:
        if each.decided or each.verdict == "undecided":
            pairs.setdefault(each.pair, []).append(each)
    open_ = [found for found in pairs.values() if not any(each.decided for each in found)]
    if not open_:
        return
    needed = sorted(
        min(seeds) for found in open_ if (seeds := [s for each in found if (s := each.seeds_to_decide)])
    )
    decided = len(pairs) - len(open_)
    text = (
        f"{count(len(open_), 'comparison')} of this report {'is' if len(open_) == 1 else 'are'} undecided, "
        f"{decided} {'is' if decided == 1 else 'are'} decided; findings.json has all of them."
    )
    hidden = sum(all(each.hidden for each in found) for found in open_)
    hopeless = len(open_) - len(needed) - hidden
    data = {
        "undecided": len(open_),
        "decided": decided,
        "seeds": needed,
        "beyond": hopeless,
        "within_error": hidden,
        "compared": compared_data(claims.all),
    }
    if needed:
        half = needed[(len(needed) - 1) // 2]
        text += (
            f" If the differences are as measured, {count(half, 'seed')} per configuration would probably "
            f"decide {'it' if len(open_) == 1 else f'{sum(seeds <= half for seeds in needed)} of them'}"
        )
        if hopeless:
            text += f", and more than {MOST_SEEDS} would be needed for {hopeless}"
        text += (
            f": run the command of this sweep again with --repeat {half}. Runs that have finished are not "
            "repeated."
        )
    elif hopeless:
        text += f" More seeds would hardly decide {'it' if len(open_) == 1 else 'them'}."
    if hidden:
        text += f" In {hidden}, the difference is no larger than the error of cluster time."
    yield Finding("undecided", text, (), data)

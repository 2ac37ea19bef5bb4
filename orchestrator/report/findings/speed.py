"""Findings about wall time: the fastest strategies, their speedup, and the cost of the exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.findings.compared import Compared
from orchestrator.report.formats import count, first_few, listed, percent, ratio, seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, one_per_work
from orchestrator.report.quantities import (
    BYTES_PER_STEP,
    COMMUNICATE_S,
    EXCHANGE_S_PER_STEP,
    EXCHANGE_SHARE,
    TRAIN_S,
)
from orchestrator.report.quantities.learning import same_epochs

MAX_NAMED = 4  # in one sentence
MEAN_GRADIENT = ("all_reduce", "all_gather", "reduce_broadcast", "ddp")  # equal mathematics


def timed(groups: Sequence[Group]) -> list[Group]:
    """The groups with comparable wall times, the fastest first.

    Empty if they trained for different numbers of epochs, as with a target accuracy.
    """
    comparable = [group for group in groups if group.first.times_compare and TRAIN_S.sample(group)]
    if not same_epochs(row for group in comparable for row in group.ok_rows):
        return []
    return sorted(comparable, key=TRAIN_S.mean_of)


def timed_serial(view: WorkloadView, groups: Sequence[Group]) -> Group | None:
    """The serial group, if its wall time is comparable with those of these groups."""
    return view.serial if view.serial and view.serial in timed([*groups, view.serial]) else None


def fastest(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The strategy with the shortest wall time, its accuracy and speedup, and those that may be as fast."""
    groups = timed(one_per_work(view.ranked_candidates))
    if not groups:
        return
    ranking = claims.all_pairs(TRAIN_S, groups)
    serial = timed_serial(view, groups)
    against = claims.with_reference(TRAIN_S, serial, groups) if serial else []
    first = groups[0]
    speedup = next((each for each in against if each.left is first), None)
    text = f"{view.times_at}{view.of_ranked}, {view.name(first)} took {time_and_accuracy(first)}"
    if ranking.best is first:
        text += f", the fastest of {count(len(groups), 'configuration')}"
    data = {
        "strategy": view.name(first),
        "ranks": view.shape.ranks,
        "train_s": TRAIN_S.mean_of(first),
        "fastest": ranking.best is first,
        "compared": compared_data([*ranking.of(first), *([speedup] if speedup else [])]),
    }
    if serial and speedup:
        data["compared_with_serial"] = compared_data(against)
        text += f"; serial took {time_and_accuracy(serial)}"
        data |= speedup_data(speedup)
        if speedup.verdict != "too_few_seeds":
            text += f": {write_speedup(speedup)}"
    text += "."
    if ranking.best is not first and len(groups) > 1:
        even = [view.name(group) for group in ranking.may_be_best if group is not first]
        if even:
            text += f" Which is the fastest is undecided between it and {first_few(even)}."
    yield Finding("fastest", text, evidence([first, serial]), data)


def time_and_accuracy(group: Group) -> str:
    """`3.21 s and reached 96.4%`: a speed never appears without its accuracy."""
    accuracy = f" and reached {percent(group.accuracy.mean)}" if group.accuracy else ""
    return f"{seconds(TRAIN_S.mean_of(group))}{accuracy}"


def write_speedup(compared: Compared) -> str:
    """`speedup 2.49 (2.31 to 2.69), efficiency 62%`: serial's geometric mean over the strategy's."""
    speedup, interval = _speedup(compared), _speedup_interval(compared)
    bounds = f" ({ratio(interval[0])} to {ratio(interval[1])}{compared.certainty})" if interval else ""
    return f"speedup {ratio(speedup)}{bounds}, efficiency {percent(speedup / compared.left.shape.ranks)}"


def speedup_data(compared: Compared) -> dict[str, object]:
    speedup = _speedup(compared)
    return {
        "serial_train_s": compared.values[1],
        "speedup": speedup,
        "speedup_interval": _speedup_interval(compared),
        "faster": compared.left_is_better,
        "slower": compared.right_is_better,
        "efficiency": speedup / compared.left.shape.ranks,
    }


def _speedup(compared: Compared) -> float:
    return compared.values[1] / compared.values[0]


def _speedup_interval(compared: Compared) -> tuple[float, float] | None:
    if compared.interval is None:
        return None
    low, high = compared.interval
    return 1 / high, 1 / low


def slower_than_serial(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The strategies that are slower than serial."""
    groups = timed(one_per_work(view.ranked_candidates))
    serial = timed_serial(view, groups)
    if not serial:
        return
    against = claims.with_reference(TRAIN_S, serial, groups)
    slower = [each for each in against if each.right_is_better]
    if not slower:
        return
    named = slower if len(slower) <= MAX_NAMED else [slower[0], slower[-1]]
    parts = [
        f"{view.name(each.left)} ({seconds(each.values[0])}, {each.written}; "
        f"{_exchange_share(each.left)} of it exchange)"
        for each in named
    ]
    which = (
        f" was {listed(parts)}"
        if len(parts) == 1
        else f" were {listed(parts)}"
        if named is slower
        else f" are {len(slower)} of {len(against)} configurations, from {' to '.join(parts)}"
    )
    yield Finding(
        "slower_than_serial",
        f"{view.times_at}{view.of_ranked}, shown to be slower than serial "
        f"({seconds(TRAIN_S.mean_of(serial))}){which}.",
        evidence([*(each.left for each in slower), serial]),
        {
            "serial_train_s": TRAIN_S.mean_of(serial),
            "train_s": {view.name(each.left): each.values[0] for each in slower},
            "named": [view.name(each.left) for each in named],
            "of": len(against),
            "compared": compared_data(slower),
        },
    )


def _exchange_share(group: Group) -> str:
    share = EXCHANGE_SHARE.over(group)
    return percent(share.mean) if share else "an unknown share"


def transports(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The same strategy and partitioner over several transports."""
    same: dict[tuple[str, str], list[Group]] = {}
    for group in view.candidates:
        same.setdefault((group.strategy_label, group.partitioner_label), []).append(group)
    for candidates in same.values():
        groups = timed(candidates)
        if len({group.transport for group in groups}) < 2:
            continue
        first, *others = groups
        ranking = claims.among(TRAIN_S, groups)
        parts = [
            f"{seconds(TRAIN_S.mean_of(group))} over {group.transport}{_communication(group)}, "
            f"{ranking.between(group, first).written}"
            for group in others
        ]
        yield Finding(
            "transports",
            f"{view.times_at}, {first.strategy_label}{view.partitioner(first)} took "
            f"{seconds(TRAIN_S.mean_of(first))} over {first.transport}{_communication(first)}; "
            f"{'; '.join(parts)}.",
            evidence(groups),
            {
                "strategy": first.strategy_label,
                "train_s": {group.transport: TRAIN_S.mean_of(group) for group in groups},
                "communicate_s": {
                    group.transport: spent.mean for group in groups if (spent := COMMUNICATE_S.over(group))
                },
                "compared": compared_data(ranking.comparisons),
            },
        )


def _communication(group: Group) -> str:
    spent = COMMUNICATE_S.over(group)
    return f" with {seconds(spent.mean)} of communication" if spent else ""


def all_reduce_and_ddp(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Our all_reduce and torch's DDP: the mathematics is equal, and only the exchange differs."""
    by_line = {group.line: group for group in view.candidates if TRAIN_S.sample(group)}
    for one, other in combinations(by_line.values(), 2):
        # By label: a parameter, such as a compression, changes the mathematics.
        pair = {group.strategy_label: group for group in (one, other)}
        if set(pair) != {"all_reduce", "ddp"} or one.line[1:] != other.line[1:]:
            continue
        ours, ddp = pair["all_reduce"], pair["ddp"]
        (compared,) = claims.pairs(TRAIN_S, [(ddp, ours)])
        yield Finding(
            "all_reduce_and_ddp",
            f"{view.times_at}, {view.name(ours)} took {seconds(compared.values[1])}, "
            f"{_exchange_share(ours)} of it exchange, and {view.name(ddp)} {seconds(compared.values[0])}, "
            f"{_exchange_share(ddp)} of it exchange: ddp took {compared.written}.",
            evidence([ours, ddp]),
            {
                "train_s": {"all_reduce": compared.values[1], "ddp": compared.values[0]},
                "exchange_share": {
                    name: share.mean
                    for name, group in pair.items()
                    if (share := EXCHANGE_SHARE.over(group))
                },
                "compared": compared_data([compared]),
            },
        )


def mean_gradient(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """The cost per step of each way to take the same mean gradient."""
    same: dict[tuple[str, str, int], list[Group]] = {}
    for group in view.candidates:
        # By label: a parameter may change the mean.
        if EXCHANGE_S_PER_STEP.sample(group) and group.strategy_label in MEAN_GRADIENT:
            same.setdefault(group.line[1:], []).append(group)
    for ways in same.values():
        if len(ways) < 2 or {group.strategy for group in ways} <= {"all_reduce", "ddp"}:
            continue  # see all_reduce_and_ddp
        first, *others = sorted(ways, key=EXCHANGE_S_PER_STEP.mean_of)
        ranking = claims.among(EXCHANGE_S_PER_STEP, ways)
        parts = [
            f"{seconds(EXCHANGE_S_PER_STEP.mean_of(group))} in {group.strategy_label}{_sent(group)}, "
            f"{ranking.between(group, first).written}"
            for group in others
        ]
        yield Finding(
            "mean_gradient",
            f"{view.times_at}, the exchange for the same mean gradient over {first.transport}"
            f"{view.partitioner(first)}, waiting included, takes "
            f"{seconds(EXCHANGE_S_PER_STEP.mean_of(first))} per step in {first.strategy_label}"
            f"{_sent(first)}; {'; '.join(parts)}.",
            evidence(ways),
            {
                "transport": first.transport,
                "exchange_s_per_step": {
                    group.strategy: EXCHANGE_S_PER_STEP.mean_of(group) for group in [first, *others]
                },
                "bytes_per_step": {
                    group.strategy: sent.mean for group in ways if (sent := BYTES_PER_STEP.over(group))
                },
                "compared": compared_data(ranking.comparisons),
            },
        )


def _sent(group: Group) -> str:
    sent = BYTES_PER_STEP.over(group)
    return f" ({size(sent.mean)} sent per rank)" if sent else ""

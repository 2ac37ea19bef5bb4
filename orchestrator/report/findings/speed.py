"""Findings about wall time: the fastest strategy, its speedup, and the cost of the exchange."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from orchestrator.report.findings.base import REMARKS, Finding, evidence
from orchestrator.report.formats import listed, percent, ratio, seconds, size
from orchestrator.report.metrics.communication import bytes_per_step, exchange_s_per_step
from orchestrator.report.metrics.learning import same_epochs
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.statistics.spread import Spread, compare_spreads

MAX_NAMED = 4  # in one sentence
MEAN_GRADIENT = ("all_reduce", "all_gather", "reduce_broadcast", "ddp")  # equal mathematics


def _train_s(row: Row) -> float | None:
    return row.train_s


def _timed(groups: list[Group]) -> list[tuple[Spread, Group]]:
    """The groups with comparable wall times, the fastest first.

    None if they trained for different numbers of epochs, as with a target accuracy.
    """
    comparable = [group for group in groups if group.first.result.times_compare]
    if not same_epochs(row for group in comparable for row in group.ok_rows):
        return []
    timed = [(spread, group) for group in comparable if (spread := group.over(_train_s))]
    return sorted(timed, key=lambda item: item[0].mean)


def _serial_s(view: WorkloadView) -> Spread | None:
    """Wall time of the serial run, if it is comparable with the candidates'."""
    together = _timed([*view.candidates, view.serial]) if view.serial else []
    return next((spread for spread, group in together if group is view.serial), None)


def fastest(view: WorkloadView) -> Iterator[Finding]:
    """The fastest strategy at the compared shape, and whether its lead may be chance."""
    timed = _timed(view.candidates)
    if not timed:
        return
    best_s, best = timed[0]
    serial_s = _serial_s(view)
    speedup = best.over(lambda row: row.speedup)
    data = {"strategy": view.name(best), "ranks": view.shape.ranks, "train_s": best_s.mean}
    against = ""
    if serial_s:
        data["serial_train_s"] = serial_s.mean
    if speedup and serial_s:
        efficiency = speedup.mean / best.shape.ranks
        data |= {"speedup": speedup.mean, "efficiency": efficiency}
        against = (
            f" against {seconds(serial_s.mean)} for serial: speedup {ratio(speedup.mean)}, "
            f"efficiency {percent(efficiency)}"
        )
    at = view.shape.label
    if len(timed) == 1:
        text = f"At {at}, {view.name(best)} took {seconds(best_s.mean)}{against}."
    else:
        second_s, second = timed[1]
        verdict = compare_spreads(best_s, second_s)
        data |= {"second": view.name(second), "second_train_s": second_s.mean, "verdict": verdict}
        text = (
            f"At {at}, {view.name(best)} was the fastest: {seconds(best_s.mean)}{against}. "
            f"The second was {view.name(second)}: {seconds(second_s.mean)}{REMARKS[verdict]}."
        )
    if serial_s and best_s.mean >= serial_s.mean:
        text += f" No strategy was faster than serial at {at}."
    yield Finding("fastest", text, evidence([best, *(group for _, group in timed[1:2]), view.serial]), data)


def fewer_nodes_faster(view: WorkloadView) -> Iterator[Finding]:
    """Whether the shortest wall time was reached with fewer ranks than those compared."""
    timed = _timed([group for group in view.groups if not group.serial])
    candidates = _timed(view.candidates)
    if not timed or not candidates or timed[0][1].shape.ranks >= view.shape.ranks:
        return
    (best_s, best), (here_s, here) = timed[0], candidates[0]
    noun = "ranks" if best.shape.per_node or view.shape.per_node else "nodes"
    verdict = compare_spreads(best_s, here_s)
    yield Finding(
        "fewer_nodes_faster",
        f"More {noun} were not faster: the shortest wall time is that of {view.name(best)} on "
        f"{best.shape.label}, {seconds(best_s.mean)}; the shortest on {view.shape.short} is "
        f"{seconds(here_s.mean)}{REMARKS[verdict]}.",
        evidence([best, here]),
        {
            "strategy": view.name(best),
            "ranks": best.shape.ranks,
            "train_s": best_s.mean,
            "compared_ranks": view.shape.ranks,
            "compared_train_s": here_s.mean,
            "verdict": verdict,
        },
    )


def slower_than_serial(view: WorkloadView) -> Iterator[Finding]:
    """The strategies that were slower than serial."""
    serial_s = _serial_s(view)
    if not serial_s:
        return
    timed = _timed(view.candidates)
    slower = [(spread, group) for spread, group in timed if spread.mean > serial_s.mean]
    if not slower:
        return
    named = slower if len(slower) <= MAX_NAMED else [slower[0], slower[-1]]
    parts = [
        f"{view.name(group)} ({seconds(spread.mean)}, {_exchange_share(group)} of it exchange"
        f"{REMARKS[compare_spreads(spread, serial_s)]})"
        for spread, group in named
    ]
    which = (
        f": {listed(parts)}"
        if named is slower
        else f": {len(slower)} of {len(timed)} strategies, from {' to '.join(parts)}"
    )
    yield Finding(
        "slower_than_serial",
        f"Slower than serial ({seconds(serial_s.mean)}) at {view.shape.label}{which}.",
        evidence([*(group for _, group in slower), view.serial]),
        {
            "serial_train_s": serial_s.mean,
            "train_s": {view.name(group): spread.mean for spread, group in slower},
            "named": [view.name(group) for _, group in named],
            "compared": len(timed),
        },
    )


def _exchange_share(group: Group) -> str:
    share = group.over(lambda row: row.exchange_share)
    return percent(share.mean) if share else "an unknown share"


def transports(view: WorkloadView) -> Iterator[Finding]:
    """The same strategy and partitioner over several transports."""
    same: dict[tuple[str, str], list[Group]] = {}
    for group in view.candidates:
        same.setdefault((group.strategy_label, group.partitioner_label), []).append(group)
    for groups in same.values():
        timed = _timed(groups)
        if len({group.transport for _, group in timed}) < 2:
            continue
        (best_s, best), *others = timed
        parts = [
            f"{seconds(spread.mean)} over {group.transport}{_communication(group)}, "
            f"{ratio(spread.mean / best_s.mean)} times as long{REMARKS[compare_spreads(best_s, spread)]}"
            for spread, group in others
        ]
        yield Finding(
            "transports",
            f"{best.strategy_label}{view.partitioner(best)} at {view.shape.label} over "
            f"{listed([group.transport for _, group in timed])}: {seconds(best_s.mean)} over "
            f"{best.transport}{_communication(best)}; {'; '.join(parts)}.",
            evidence(group for _, group in timed),
            {
                "strategy": best.strategy_label,
                "train_s": {group.transport: spread.mean for spread, group in timed},
                "communicate_s": {
                    group.transport: spent.mean
                    for _, group in timed
                    if (spent := group.over(lambda row: row.communicate_s))
                },
            },
        )


def _communication(group: Group) -> str:
    spent = group.over(lambda row: row.communicate_s)
    return f" with {seconds(spent.mean)} of communication" if spent else ""


def all_reduce_and_ddp(view: WorkloadView) -> Iterator[Finding]:
    """Our all_reduce and torch's DDP: the mathematics is equal, and only the exchange differs."""
    by_line = {group.line: group for group in view.candidates}
    for one, other in combinations(by_line.values(), 2):
        # By label: a parameter, such as a compression, changes the mathematics.
        pair = {group.strategy_label: group for group in (one, other)}
        if set(pair) != {"all_reduce", "ddp"} or one.line[1:] != other.line[1:]:
            continue
        ours, ddp = pair["all_reduce"], pair["ddp"]
        ours_s, ddp_s = ours.over(_train_s), ddp.over(_train_s)
        if not ours_s or not ddp_s:
            continue
        verdict = compare_spreads(ours_s, ddp_s)
        yield Finding(
            "all_reduce_and_ddp",
            f"At {view.shape.label} the exchange took {_exchange_share(ours)} of the wall time of "
            f"{view.name(ours)} ({seconds(ours_s.mean)}), and {_exchange_share(ddp)} of that of "
            f"{view.name(ddp)} ({seconds(ddp_s.mean)}){REMARKS[verdict]}.",
            evidence([ours, ddp]),
            {
                "train_s": {"all_reduce": ours_s.mean, "ddp": ddp_s.mean},
                "exchange_share": {
                    name: share.mean
                    for name, group in pair.items()
                    if (share := group.over(lambda row: row.exchange_share))
                },
                "verdict": verdict,
            },
        )


def mean_gradient(view: WorkloadView) -> Iterator[Finding]:
    """The cost per step of each way to take the same mean gradient."""
    same: dict[tuple[str, str, int], list[tuple[Spread, Group]]] = {}
    for group in view.candidates:
        exchange = group.over(exchange_s_per_step)
        if exchange and group.strategy_label in MEAN_GRADIENT:  # by label: a parameter may change the mean
            same.setdefault(group.line[1:], []).append((exchange, group))
    for ways in same.values():
        if {group.strategy for _, group in ways} <= {"all_reduce", "ddp"}:
            continue  # see all_reduce_and_ddp
        (least, best), *others = sorted(ways, key=lambda item: item[0].mean)
        parts = [
            f"{group.strategy_label} {seconds(exchange.mean)}{_sent(group)}"
            f"{REMARKS[compare_spreads(least, exchange)]}"
            for exchange, group in others
        ]
        if parts:
            yield Finding(
                "mean_gradient",
                f"Exchange per step for the same mean gradient over {best.transport}"
                f"{view.partitioner(best)} at {view.shape.label}: {best.strategy_label} "
                f"{seconds(least.mean)}{_sent(best)}; {'; '.join(parts)}.",
                evidence(group for _, group in ways),
                {
                    "transport": best.transport,
                    "exchange_s_per_step": {group.strategy: spread.mean for spread, group in ways},
                    "bytes_per_step": {
                        group.strategy: sent.mean
                        for _, group in ways
                        if (sent := group.over(bytes_per_step))
                    },
                },
            )


def _sent(group: Group) -> str:
    sent = group.over(bytes_per_step)
    return f" ({size(sent.mean)} sent per rank)" if sent else ""

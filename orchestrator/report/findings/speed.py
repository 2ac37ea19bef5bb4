"""Findings about time: who is fastest, what it gains, and what the exchange of data costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import listed, percent, ratio, seconds, size
from orchestrator.report.metrics.communication import bytes_per_step, exchange_s_per_step
from orchestrator.report.metrics.learning import as_many_epochs
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Spread
from orchestrator.report.model.rows import Row

MOST_NAMED = 4  # in one sentence


def _train_s(row: Row) -> float | None:
    return row.train_s


def _timed(groups: list[Group]) -> list[tuple[Spread, Group]]:
    """Groups with a training time that compares, the fastest first.

    None does where they trained for different numbers of epochs, as with a target accuracy.
    """
    comparable = [group for group in groups if group.first.result.times_compare]
    if not as_many_epochs(row for group in comparable for row in group.ok_rows):
        return []
    timed = [(spread, group) for group in comparable if (spread := group.over(_train_s))]
    return sorted(timed, key=lambda item: item[0].mean)


def _serial_s(scene: WorkloadView) -> Spread | None:
    """Serial's training time, where the rivals' compare with it."""
    together = _timed([*scene.rivals, scene.serial]) if scene.serial else []
    return next((spread for spread, group in together if group is scene.serial), None)


def _against_serial(scene: WorkloadView, group: Group) -> str:
    speedup = group.over(lambda row: row.speedup)
    serial = _serial_s(scene)
    if not speedup or not serial:
        return ""
    efficiency = percent(speedup.mean / group.shape.ranks)
    return (
        f" against {seconds(serial.mean)} of serial: a speedup of {ratio(speedup.mean)}, "
        f"efficiency {efficiency}"
    )


def fastest(scene: WorkloadView) -> Iterator[Finding]:
    """The fastest strategy where strategies are compared, and whether its lead is more than chance."""
    timed = _timed(scene.rivals)
    if not timed:
        return
    best_s, best = timed[0]
    at = scene.shape.label
    serial_s = _serial_s(scene)
    if len(timed) == 1:
        text = f"At {at} {scene.name(best)} took {seconds(best_s.mean)}{_against_serial(scene, best)}."
    else:
        next_s, runner_up = timed[1]
        text = (
            f"At {at} {scene.name(best)} was the fastest: {seconds(best_s.mean)}"
            f"{_against_serial(scene, best)}. Next came {scene.name(runner_up)} with "
            f"{seconds(next_s.mean)}{REMARKS[verdict(best_s, next_s)]}."
        )
    if serial_s and best_s.mean >= serial_s.mean:
        text += f" No strategy was faster than serial at {at}."
    yield Finding("finding", text, evidence([best, *(group for _, group in timed[1:2]), scene.serial]))


def fewer_nodes_faster(scene: WorkloadView) -> Iterator[Finding]:
    """Whether the shortest time was reached with fewer nodes than those compared."""
    timed = _timed([group for group in scene.groups if not group.serial])
    rivals = _timed(scene.rivals)
    if not timed or not rivals or timed[0][1].shape.ranks >= scene.shape.ranks:
        return
    (best_s, best), (here_s, here) = timed[0], rivals[0]
    several = best.shape.per_node or scene.shape.per_node
    more = f"More {'ranks' if several else 'nodes'} were not faster"
    yield Finding(
        "finding",
        f"{more}: the shortest time of all is that of {scene.name(best)} on "
        f"{best.shape.label}, {seconds(best_s.mean)}; the best on {scene.shape.short} took "
        f"{seconds(here_s.mean)}{REMARKS[verdict(best_s, here_s)]}.",
        evidence([best, here]),
    )


def slower_than_serial(scene: WorkloadView) -> Iterator[Finding]:
    """The strategies that lost time, if others gained some."""
    serial_s = _serial_s(scene)
    if not serial_s:
        return
    timed = _timed(scene.rivals)
    slower = [(spread, group) for spread, group in timed if spread.mean > serial_s.mean]
    if not slower:
        return
    named = slower if len(slower) <= MOST_NAMED else [slower[0], slower[-1]]
    told = [
        f"{scene.name(group)} ({seconds(spread.mean)}, {_share(group)} of it communicating or waiting"
        f"{REMARKS[verdict(spread, serial_s)]})"
        for spread, group in named
    ]
    which = (
        f": {listed(told)}"
        if named is slower
        else f" were {len(slower)} of {len(timed)}, {' to '.join(told)}"
    )
    yield Finding(
        "finding",
        f"Slower than serial ({seconds(serial_s.mean)}) at {scene.shape.label}{which}.",
        evidence([*(group for _, group in slower), scene.serial]),
    )


def _share(group: Group) -> str:
    share = group.over(lambda row: row.exchange_share)
    return percent(share.mean) if share else "an unknown share"


def transports(scene: WorkloadView) -> Iterator[Finding]:
    """The same algorithm on the same samples, carried by something else."""
    cells: dict[tuple[str, str], list[Group]] = {}
    for group in scene.rivals:
        cells.setdefault((group.strategy_label, group.partitioner_label), []).append(group)
    for groups in cells.values():
        timed = _timed(groups)
        if len({group.transport for _, group in timed}) < 2:
            continue
        (best_s, best), *others = timed
        told = [
            f"over {group.transport} {seconds(spread.mean)}{_communication(group)}, "
            f"{ratio(spread.mean / best_s.mean)} times as long{REMARKS[verdict(best_s, spread)]}"
            for spread, group in others
        ]
        yield Finding(
            "finding",
            f"The same algorithm over {listed([group.transport for _, group in timed])}: "
            f"{best.strategy_label}{scene.partitioner(best)} at {scene.shape.label} took "
            f"{seconds(best_s.mean)} over {best.transport}{_communication(best)}; {listed(told)}.",
            evidence(group for _, group in timed),
        )


def _communication(group: Group) -> str:
    spent = group.over(lambda row: row.communicate_s)
    return f" with {seconds(spent.mean)} communicating" if spent else ""


def all_reduce_and_ddp(scene: WorkloadView) -> Iterator[Finding]:
    """Ours and the library's: the same mathematics, so that only the exchange differs."""
    by_line = {group.line: group for group in scene.rivals}
    for one, other in combinations(by_line.values(), 2):
        # By their labels: with parameters, as a compression, the mathematics is another one.
        pair = {group.strategy_label: group for group in (one, other)}
        if set(pair) != {"all_reduce", "ddp"} or one.line[1:] != other.line[1:]:
            continue
        plain, library = pair["all_reduce"], pair["ddp"]
        plain_s, library_s = plain.over(_train_s), library.over(_train_s)
        if not plain_s or not library_s:
            continue
        yield Finding(
            "finding",
            f"{scene.name(plain)} spent {_share(plain)} of its training time communicating or waiting at "
            f"{scene.shape.label}, {scene.name(library)} {_share(library)}; in all they took "
            f"{seconds(plain_s.mean)} and {seconds(library_s.mean)}"
            f"{REMARKS[verdict(plain_s, library_s)]}.",
            evidence([plain, library]),
        )


MEAN_GRADIENT = ("all_reduce", "all_gather", "reduce_broadcast", "ddp")  # equal mathematics


def collectives(scene: WorkloadView) -> Iterator[Finding]:
    """What it costs to take the same mean in different ways, step by step."""
    cells: dict[tuple[str, str, int], list[tuple[Spread, Group]]] = {}
    for group in scene.rivals:
        exchange = group.over(exchange_s_per_step)
        if exchange and group.strategy_label in MEAN_GRADIENT:  # with a parameter it may be another mean
            cells.setdefault(group.line[1:], []).append((exchange, group))
    for ways in cells.values():
        if {group.strategy for _, group in ways} <= {"all_reduce", "ddp"}:
            continue  # told elsewhere
        (least, best), *others = sorted(ways, key=lambda item: item[0].mean)
        told = [
            f"{group.strategy_label} {seconds(exchange.mean)}{_sent(group)}"
            f"{REMARKS[verdict(least, exchange)]}"
            for exchange, group in others
        ]
        if told:
            yield Finding(
                "finding",
                f"The same mean gradient over {best.transport}{scene.partitioner(best)} at "
                f"{scene.shape.label}, communicating and waiting per step: {best.strategy_label} "
                f"{seconds(least.mean)}{_sent(best)}; {listed(told)}.",
                evidence(group for _, group in ways),
            )


def _sent(group: Group) -> str:
    sent = group.over(bytes_per_step)
    return f" for {size(sent.mean)} sent by a rank" if sent else ""

"""One sentence for each figure: the message of the chart.

It is the first sentence of the finding that the figure shows. Where there is none, it reports means, and
calls them measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.data_partition import SKEWED_BITS
from orchestrator.report.formats import (
    bits,
    count,
    listed,
    percent,
    points,
    ratio,
    seconds,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.timelines import slowest_runs
from orchestrator.report.quantities import (
    ACCURACY,
    BUBBLE,
    COVERAGE,
    CPU_TIME_SPEEDUP,
    EXCHANGE_S_PER_STEP,
    EXCHANGE_SHARE,
    JS_MEAN,
    SPEEDUP,
    STALENESS,
    TRAIN_S,
)
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.quantities.model_partition import memory_bytes
from orchestrator.report.quantities.quantity import BYTES, Quantity

MEMORY = Quantity(BYTES, memory_bytes)
# By figure, the kinds of findings that it shows, the most telling first.
SHOWN_BY = {
    "speedup": ("fastest",),
    "partitioners": ("partitioner_loss",),
    "time_to_target": ("target_first", "target_some_seeds", "target_never"),
    "stragglers": ("straggler",),
    "memory": ("least_memory",),
    "bubbles": ("bubble",),
    "split_points": ("split_point",),
    "textbook_optimizers": ("textbook_curve_differs", "textbook_curve_equal"),
}


def figure_sentence(name: str, view: WorkloadView, findings: Sequence[Finding]) -> str:
    """What a figure shows of a workload, in one sentence; empty if there is nothing to say.

    Args:
        name: of the figure, as in figures.CAPTIONS.
        view: the workload that the figure is about.
        findings: of the whole report.
    """
    keys = {row.key for group in view.groups for row in group.rows}
    about = [(found, {row.key for row in found.rows}) for found in findings if found.rows]
    own = [found for found, rows in about if rows <= keys]
    others = [found for found, rows in about if rows & keys and not rows <= keys]
    for kind in SHOWN_BY.get(name, ()):
        for found in [*own, *others]:
            if found.kind == kind:
                return found.first_sentence
    rule = _RULES.get(name)
    return rule(_Shown(view, own, others)) if rule else ""


@dataclass(frozen=True)
class _Shown:
    """A workload, the findings on it, and those on it and others."""

    view: WorkloadView
    findings: Sequence[Finding]
    with_others: Sequence[Finding]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of its findings of a kind."""
        return [dict(found.data) for found in self.findings if found.kind == kind]

    @property
    def groups(self) -> Sequence[Group]:
        """The configurations that figures compare, or else all that are not serial, or serial."""
        view = self.view
        others = [group for group in view.groups if not group.serial]
        return view.ranked_candidates or others or view.groups

    @property
    def at(self) -> str:
        return f"on {self.view.shape.label}"

    @property
    def clock(self) -> str:
        return "" if self.view.clock == "wall" else " in cluster time"

    def name(self, group: Group) -> str:
        return self.view.name(group)

    def with_accuracy(self, group: Group) -> str:
        """`all_reduce over mpi (91.7%)`: a speed never appears without its accuracy."""
        accuracy = f" ({percent(group.accuracy.mean)})" if group.accuracy else ""
        return f"{self.name(group)}{accuracy}"

    @property
    def unlearned(self) -> set[str]:
        """Keys of the runs that have not learned, whose speed is worth nothing."""
        return {row.key for found in self.findings if found.kind == "not_learned" for row in found.rows}

    @property
    def of_learned(self) -> str:
        """What a sentence on the learned configurations says if there are others."""
        return ", among those that learned" if len(self.learned(self.groups)) < len(self.groups) else ""

    def learned(self, groups: Sequence[Group]) -> list[Group]:
        unlearned = self.unlearned
        return [group for group in groups if not any(row.key in unlearned for row in group.rows)]

    def measured(self, groups: Sequence[Group], quantity: Quantity) -> list[tuple[float, Group]]:
        """The means of the groups that have the quantity, the lowest first."""
        known = [(spread.mean, group) for group in groups if (spread := quantity.over(group))]
        return sorted(known, key=lambda item: item[0])


def _accuracy(shown: _Shown) -> str:
    lines = _lines(shown, lambda group: bool(ACCURACY.sample(group)))
    changes = [(ACCURACY.mean_of(groups[-1]) - ACCURACY.mean_of(groups[0]), groups) for groups in lines]
    if not changes:
        return _measured_range("Accuracies", ACCURACY, shown)
    change, groups = max(changes, key=lambda item: (len(item[1]), abs(item[0])))
    fewest, most = groups[0], groups[-1]
    low, high = percent(ACCURACY.mean_of(fewest)), percent(ACCURACY.mean_of(most))
    if low == high:
        return f"{shown.name(most)} was measured at {low} on {fewest.shape.short} as on {most.shape.label}."
    return (
        f"From {fewest.shape.short} to {most.shape.label}, the accuracy of {shown.name(most)} was measured "
        f"to change from {low} to {high}: {points(change)}."
    )


def _lines(shown: _Shown, known: Callable[[Group], bool]) -> list[list[Group]]:
    """The groups that differ only in their number of nodes, the fewest first; at least two."""
    lines: dict[tuple[str, str, str, int], list[Group]] = {}
    for group in sorted(shown.view.line_groups, key=lambda group: group.shape.ranks):
        if not group.serial and not group.shape.slower_nodes and known(group):
            lines.setdefault(group.line, []).append(group)
    return [groups for groups in lines.values() if groups[0].shape.ranks < groups[-1].shape.ranks]


def _links(shown: _Shown) -> str:
    found = [
        data
        for each in [*shown.findings, *shown.with_others]
        if each.kind == "links"
        for data in each.data["links"]
    ]
    if not found:
        return ""
    decided = [data for data in found if data["fastest"]]
    if not decided:
        return f"No strategy is shown to be the fastest over any of {count(len(found), 'link')}."
    named = [
        f"{data['fastest']}{f' ({percent(accuracy)})' if accuracy is not None else ''} over "
        f"{data['link'] or OWN_LINKS}"
        for data in decided
        for accuracy in data["accuracy"][:1]
    ]
    open_ = (
        f"; {len(found) - len(decided)} of {len(found)} {_be(len(found) - len(decided))} undecided"
        if len(decided) < len(found)
        else ""
    )
    return f"Shown to be the fastest: {listed(named)}{open_}."


def _time(shown: _Shown) -> str:
    found = shown.of("more_nodes")
    if not found:
        fastest = [each.first_sentence for each in shown.findings if each.kind == "fastest"]
        return fastest[0] if fastest else _measured_range("Times", TRAIN_S, shown)
    if len(found) == 1:
        (data,) = found
        change = {"less": "became faster", "more": "became slower"}.get(data["whole"])
        first, last = seconds(data["train_s"][0]), seconds(data["train_s"][-1])
        if change is None:
            return f"Whether {data['strategy']} becomes faster{shown.clock} with more nodes is undecided."
        return f"{data['strategy']} {change}{shown.clock} with more nodes: {first}, then {last}."
    faster, slower = (sum(data["whole"] == verdict for data in found) for verdict in ("less", "more"))
    text = f"{faster} of {count(len(found), 'configuration')}{shown.view.of_ranked} became faster"
    text += f"{shown.clock} with more nodes"
    return text + (f", {slower} slower." if slower else ".")


def _measured_range(what: str, quantity: Quantity, shown: _Shown) -> str:
    """`Times from 4.10 s (ddp over gloo) to 5.20 s (gossip over gloo) were measured.`"""
    ranked = shown.measured(shown.learned(shown.groups), quantity)
    if not ranked:
        return ""
    (least, first), (most, last) = ranked[0], ranked[-1]
    low, high = quantity.write(least), quantity.write(most)
    measured = f"measured {shown.at}{shown.clock if quantity.timed else ''}{shown.of_learned}"
    name = shown.name if quantity is ACCURACY else shown.with_accuracy
    if low == high:
        return f"{what} of {low} were {measured}{f', in {name(first)}' if len(ranked) == 1 else ''}."
    ends = f"{low} ({name(first)}) to {high} ({name(last)})"
    return f"{what} from {ends} were {measured}."


def _cpu_time_speedup(shown: _Shown) -> str:
    for groups in (shown.view.ranked_candidates, shown.view.line_groups):
        learned = [group for group in shown.learned(groups) if not group.serial]
        if ranked := shown.measured(learned, CPU_TIME_SPEEDUP):
            best, group = ranked[-1]
            name, at = shown.with_accuracy(group), group.shape.label
            if best < 1:
                return f"By CPU time, none was measured to gain on {at}; {name} lost least: {ratio(best)}."
            return f"By CPU time, {name} was measured to gain most on {at}: {ratio(best)}."
    return "No speedup by CPU time was measured."


def _staleness(shown: _Shown) -> str:
    ranked = shown.measured(shown.view.line_groups, STALENESS)
    if not ranked:
        return ""
    most, group = ranked[-1]
    return (
        f"Gradients were measured most stale in {shown.name(group)} on {group.shape.label}: {ratio(most)} "
        "updates by others."
    )


def _choice(shown: _Shown) -> str:
    groups = [
        group
        for group in shown.learned(shown.view.line_groups)
        if ACCURACY.sample(group) and TRAIN_S.sample(group)
    ]
    if not groups:
        return ""
    first, highest = min(groups, key=TRAIN_S.mean_of), max(groups, key=ACCURACY.mean_of)
    named = [f"{shown.name(each)} on {each.shape.label}, {_finish(each)}" for each in (first, highest)]
    if percent(ACCURACY.mean_of(first)) == percent(ACCURACY.mean_of(highest)):
        return f"Measured to be the fastest{shown.of_learned}, at the highest accuracy: {named[0]}."
    return f"Measured fastest{shown.of_learned}: {named[0]}; most accurate: {named[1]}."


def _accuracy_over_time(shown: _Shown) -> str:
    compared = [*shown.view.ranked_candidates, *([shown.view.serial] if shown.view.serial else [])]
    groups = [
        group
        for group in shown.learned(compared)
        if ACCURACY.sample(group) and TRAIN_S.sample(group) and group.first.times_compare
    ]
    if not groups:
        return ""
    if len(groups) == 1:
        return f"{shown.name(groups[0])} was measured at {_finish(groups[0])}."
    first, highest = min(groups, key=TRAIN_S.mean_of), max(groups, key=ACCURACY.mean_of)
    if percent(ACCURACY.mean_of(first)) == percent(ACCURACY.mean_of(highest)):
        return (
            f"{shown.name(first)} was measured to finish first, at the highest accuracy: {_finish(first)}."
        )
    return (
        f"Measured to finish first{shown.of_learned}: {shown.name(first)}, {_finish(first)}; most "
        f"accurate: {shown.name(highest)}, {_finish(highest)}."
    )


def _finish(group: Group) -> str:
    return f"{percent(ACCURACY.mean_of(group))} after {seconds(TRAIN_S.mean_of(group))}"


def _phases(shown: _Shown) -> str:
    ranked = shown.measured(shown.groups, EXCHANGE_SHARE)
    if not ranked:
        return ""
    (low, least), (high, most) = ranked[0], ranked[-1]
    if percent(low) == percent(high):
        where = shown.name(most) if len(ranked) == 1 else "every configuration"
        return f"Exchange was measured at {percent(high)} of the time in {where} {shown.at}."
    return (
        f"Exchange was measured at {percent(high)} of the time in {shown.name(most)} and at {percent(low)} "
        f"in {shown.name(least)} {shown.at}."
    )


def _stragglers(shown: _Shown) -> str:
    return f"No rank is shown to delay the others more than its share {shown.at}{shown.view.of_reference}."


def _partitioners(shown: _Shown) -> str:
    if not shown.of("partitioner_effect"):
        return ""
    return f"No partitioner is likely to cost accuracy against {shown.view.partitioners[0]}."


def _timelines(shown: _Shown) -> str:
    def waiting(row: Any) -> float | None:
        spent = sum(value for phase, value in row.seconds.items() if phase != "evaluate")
        return row.seconds.get("wait", 0.0) / spent if spent else None

    drawn = {run.row.key for run in slowest_runs(shown.view)}
    shares = [
        (share, group)
        for group in shown.view.candidates
        for row in group.ok_rows
        if row.key in drawn and (share := waiting(row)) is not None
    ]
    ranked = sorted(shares, key=lambda item: item[0])
    if not ranked:
        return ""
    share, group = ranked[-1]
    if percent(share) == percent(0):
        return f"In these runs, ranks were measured to wait for less than 0.1% of the time {shown.at}."
    return (
        f"Of these runs, ranks were measured to wait most in {shown.name(group)}: {percent(share)} of the "
        f"time {shown.at}."
    )


def _labels(shown: _Shown) -> str:
    groups = [group for group in shown.view.candidates if group.partitioner_label]
    covered = shown.measured(groups, COVERAGE)
    skewed = shown.measured(groups, JS_MEAN)
    if not covered or not skewed:
        return ""
    share, least = covered[0]
    divergence, most = skewed[-1]
    nodes = count(shown.view.shape.nodes, "node")
    seen = (
        f"{nodes} together saw the whole training set in epoch 1"
        if share == 1
        else f"With {least.partitioner_label}, {nodes} together saw {percent(share)} of the set in epoch 1"
    )
    if divergence < SKEWED_BITS:
        return f"{seen}; their labels are nearly those of the whole set ({bits(divergence)} bits off)."
    return (
        f"{seen}; labels are skewed most with {most.partitioner_label}, by {bits(divergence)} bits in the "
        "mean over nodes and seeds."
    )


def _exchange(shown: _Shown) -> str:
    groups = [group for group in shown.view.candidates if EXCHANGE_S_PER_STEP.sample(group)]
    if not groups:
        return ""
    groups.sort(key=EXCHANGE_S_PER_STEP.mean_of)
    low, high = (seconds(EXCHANGE_S_PER_STEP.mean_of(group)) for group in (groups[0], groups[-1]))
    model = shown.view.groups[0].first.run.name_of("model")
    text = f"With {model}, the exchange of a step was measured at {low} in {shown.name(groups[0])}"
    return f"{text}." if len(groups) == 1 else f"{text} and {high} in {shown.name(groups[-1])}."


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


_RULES: dict[str, Callable[[_Shown], str]] = {
    "strategies": lambda shown: _measured_range("Accuracies", ACCURACY, shown),
    "links": _links,
    "exchange": _exchange,
    "partitioners": _partitioners,
    "time": _time,
    "speedup": lambda shown: _measured_range("Speedups", SPEEDUP, shown) or "No speedup was measured.",
    "cpu_time_speedup": _cpu_time_speedup,
    "accuracy": _accuracy,
    "staleness": _staleness,
    "choice": _choice,
    "accuracy_over_time": _accuracy_over_time,
    "phases": _phases,
    "stragglers": _stragglers,
    "timelines": _timelines,
    "memory": lambda shown: _measured_range("Amounts", MEMORY, shown),
    "bubbles": lambda shown: _measured_range("Bubbles", BUBBLE, shown),
    "labels": _labels,
}

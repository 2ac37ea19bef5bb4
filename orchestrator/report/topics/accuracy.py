"""Accuracy: its difference from serial, and the choices it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report.figures.dots import strategies_at_a_glance
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.over_nodes import over_nodes
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, Compared
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import LR_SCHEDULE_FIELDS, SURVIVAL, as_written, parameters
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import same_epochs, target_reached, updates
from orchestrator.report.topics.topic import Findings, Topic

LABELLED = (*LR_SCHEDULE_FIELDS, *SURVIVAL, "lr", "accumulate", "recompute", "debug")  # beside parameters


def whole(groups: Sequence[Group]) -> list[Group]:
    """Those with an accuracy that no target accuracy ended."""
    known = [group for group in groups if Q.accuracy.sample(group)]
    return [group for group in known if not any(map(target_reached, group.ok_rows))]


def _ranked(view: WorkloadView) -> list[Group]:
    """Those that are compared, the best accuracy first."""
    return sorted(whole(view.ranked_candidates), key=Q.accuracy.mean_of, reverse=True)


def best_accuracy(view: WorkloadView) -> Findings:
    """The highest accuracy, whether it is the best, and the strategies that differ from serial."""
    ranked = _ranked(view)
    if not ranked:
        return
    serial = view.serial if view.serial and Q.accuracy.sample(view.serial) else None
    ranking, from_serial = yield [Ask.best(Q.accuracy, ranked), Ask.against(Q.accuracy, serial, ranked)]
    first, worst = ranked[0], ranking.worst
    even = [group for group in ranking.may_be_best if group is not first]
    equal = [group for group in even if ranking.between(group, first).same]
    yield Finding.of(
        "best_accuracy",
        [*ranked, serial],
        [*from_serial.compared, *ranking.compared],
        at=f"At {view.shape.label}{view.of_ranked}",
        of=len(ranked),
        best=ranking.best is first,
        highest=view.name(first),
        accuracy=Q.accuracy.mean_of(first),
        worst=worst and view.name(worst),
        worst_accuracy=worst and Q.accuracy.mean_of(worst),
        equal=[view.name(group) for group in equal],
        may_be_best=[view.name(group) for group in even if group not in equal],
        serial_accuracy=serial and Q.accuracy.mean_of(serial),
        from_serial=_from_serial(view, from_serial.compared),
    )


def _from_serial(view: WorkloadView, against: Sequence[Compared]) -> dict[str, dict[str, Any]]:
    """What happens to serial's accuracy, each with the comparisons of the strategies by name."""
    found: dict[str, dict[str, Any]] = {}
    for each in against:
        if each.same:
            outcome = "equal"
        elif each.verdict == "more":
            outcome = f"{each.level} to gain"
        elif each.keeps:
            outcome = f"{each.level} to keep"
        elif each.verdict == "less":
            outcome = f"{each.level} to lose"
        else:
            outcome = each.verdict
        found.setdefault(outcome, {})[view.name(each.left)] = each.data()
    return found


def fewer_updates(view: WorkloadView) -> Findings:
    """A reason for lost accuracy on the same samples: the model is updated less often than serial's."""
    serial = view.serial
    if not serial or not Q.accuracy.sample(serial):
        return
    (against,) = yield [Ask.against(Q.accuracy, serial, _ranked(view))]
    losing = [each.left for each in against.compared if each.verdict == "less"]
    own = serial.over(updates)
    fewer = [
        (group, taken)
        for group in losing
        if _comparable(group, serial) and (taken := group.over(updates)) and own and taken.high < own.low
    ]
    if own and fewer:
        yield Finding.of(
            "fewer_updates",
            [*(group for group, _ in fewer), serial],
            nodes=view.shape.label,
            updates={view.name(group): (taken.low, taken.high) for group, taken in fewer},
            serial_updates=(own.low, own.high),
        )


def _comparable(group: Group, serial: Group) -> bool:
    """Whether runs used the whole training set as often as serial's, and replicas start from equal weights.

    The average of other replicas alone costs accuracy.
    """
    rows = [*group.ok_rows, *serial.ok_rows]
    whole_set = all(Q.coverage.of(row) in (None, 1.0) and not Q.overlap.of(row) for row in rows)
    same_start = getattr(group.first.run.strategy, "init", "broadcast") == "broadcast"
    return whole_set and same_start and same_epochs(rows)


def averaging(view: WorkloadView) -> Findings:
    """The accuracy of the averaged model against that of the nodes' local models."""
    averages = [
        group
        for group in view.line_groups
        if group in view.candidates and not group.first.run.aggregates_by_value  # which is no average
    ]
    (gains,) = yield [Ask.of(Q.averaging_gain, [(group, group) for group in averages])]
    for gain in gains.compared:
        local = Q.local_accuracy_mean.mean_of(gain.left)
        yield Finding.of(
            "averaging",
            [gain.left],
            [gain],
            strategy=view.name(gain.left),
            nodes=view.shape.label,
            local_accuracy=local,
            accuracy=local + gain.values[0],
        )


def variants(view: WorkloadView) -> Findings:
    """A strategy with other parameters than the default, all else equal."""
    same: dict[tuple[str | int, ...], list[Group]] = {}
    for group in view.candidates:
        if not group.first.run.strategy.partitions_model:  # equal mathematics however it is partitioned
            same.setdefault((group.strategy, *group.line[1:]), []).append(group)
    pairs = []
    for groups in same.values():
        default = next((group for group in groups if group.strategy_label == group.strategy), groups[0])
        pairs += [(other, default) for other in groups if other.strategy_label != default.strategy_label]
    (answer,) = yield [Ask.of(Q.accuracy, pairs)]
    for compared in answer.compared:
        default, other = compared.right, compared.left
        partitioner = view.partitioner(default)
        yield Finding.of(
            "variant",
            [default, other],
            [compared],
            strategy=f"{default.strategy} over {default.transport}{partitioner}",
            nodes=view.shape.label,
            parameters=_differing_parameters(default, other),
            bytes_sent=[sent and sent.mean for sent in map(Q.bytes_sent_per_rank.over, (default, other))],
        )


def _differing_parameters(*groups: Group) -> list[dict[str, str | None]]:
    """The parameters, and fields that a label shows, in which two groups of one strategy differ."""
    one, other = (
        parameters(run, "strategy") | {name: as_written(getattr(run, name)) for name in LABELLED}
        for run in (group.first.run for group in groups)
    )
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return [{name: each.get(name) for name in names} for each in (one, other)]


TOPIC = Topic(
    rules=(best_accuracy, fewer_updates, averaging, variants),
    figures=(
        FigureKind(
            "strategies",
            "accuracy",
            "Sorted by accuracy. Means with 95% intervals. Grey line: serial. An arrow is a value outside "
            "the axis. Colours are the same in all figures; the list of strategies below names the file of "
            "each.",
            strategies_at_a_glance,
            otherwise=measured(Q.accuracy),
            links_matter=False,
        ),
        over_nodes(
            "accuracy",
            Q.accuracy,
            "accuracy",
            "Of the final weights, on the whole test split. An arrow with a number is a value outside the "
            "axis.",
            links_matter=False,
        ),
        over_nodes(
            "staleness",
            Q.staleness_mean,
            "accuracy",
            "Updates by other workers between a worker's pull of the weights and its push of a gradient, "
            "mean over all gradients. The number of nodes includes the server.",
            in_overview=False,
        ),
    ),
)

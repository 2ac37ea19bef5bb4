"""Accuracy: its difference from serial, and the choices it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report.figures.dots import strategies_at_a_glance
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.over_nodes import over_nodes
from orchestrator.report.figures.sentences import measured
from orchestrator.report.findings.base import evidence, said
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.formats import count, first_few, listed, percent, points, size, whole
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import LR_SCHEDULE_FIELDS, parameters
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import same_epochs, target_reached, updates
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.topic import Findings, Topic


def _ranked(groups: Sequence[Group]) -> list[Group]:
    """Groups by accuracy, the best first; without runs that ended at a target accuracy."""
    known = [group for group in groups if Q.accuracy.sample(group) and not _ended_early(group)]
    return sorted(known, key=lambda group: -Q.accuracy.mean_of(group))


def _ended_early(group: Group) -> bool:
    return any(target_reached(row) for row in group.ok_rows)


def best_accuracy(view: WorkloadView) -> Findings:
    """The highest accuracy, whether it is the best, and the strategies that differ from serial."""
    ranked = _ranked(view.ranked_candidates)
    if not ranked:
        return
    first, *others = ranked
    serial = view.serial if view.serial and Q.accuracy.sample(view.serial) else None
    ranking, from_serial = yield [Ask.best(Q.accuracy, ranked), Ask.against(Q.accuracy, serial, ranked)]
    against = from_serial.compared
    data: dict[str, Any] = {
        "best": view.name(ranking.best) if ranking.best else None,
        "worst": view.name(ranking.worst) if ranking.worst else None,
        "highest": view.name(first),
        "accuracy": Q.accuracy.mean_of(first),
        "compared": compared_data([*against, *ranking.compared]),
    }
    text = f"At {view.shape.label}{view.of_ranked}, {view.name(first)} reached "
    text += percent(Q.accuracy.mean_of(first))
    if ranking.best is first:
        text += f", the best accuracy of {count(len(ranked), 'configuration')}"
    text += "."
    if others and ranking.best is None:
        even = [group for group in ranking.may_be_best if group is not first]
        equal = [group for group in even if ranking.between(group, first).verdict == "equal"]
        if equal:
            text += f" Equal to it in every seed: {first_few([view.name(group) for group in equal])}."
        if rest := [view.name(group) for group in even if group not in equal]:
            text += f" Which accuracy is the best is undecided between it and {first_few(rest)}."
    if ranking.worst and len(ranked) > 2:
        text += f" The worst is {view.name(ranking.worst)}: {percent(Q.accuracy.mean_of(ranking.worst))}."
    if serial:
        data["serial_accuracy"] = Q.accuracy.mean_of(serial)
        text += f" Serial reached {percent(Q.accuracy.mean_of(serial))}{_from_serial(view, against)}"
    yield said("best_accuracy", text, evidence([*ranked, serial]), data)


def _from_serial(view: WorkloadView, against: Sequence[Compared]) -> str:
    """`. Shown to lose accuracy: one_shot over mpi, 94.1%: −1.9 points (−2.4 to −1.4). …`"""
    states: dict[str, list[str]] = {}
    unknown = []
    for each in against:
        named = f"{view.name(each.left)}, {percent(each.values[0])}: {each.written}"
        if each.verdict == "more":
            states.setdefault(f"{each.level} to gain accuracy", []).append(named)
        elif each.keeps:
            states.setdefault("shown to keep it within the tolerance", []).append(view.name(each.left))
        elif each.verdict == "less":
            states.setdefault(f"{each.level} to lose accuracy", []).append(named)
        elif each.verdict == "undecided":
            unknown.append(view.name(each.left))
    parts = [f"{state.capitalize()}: {listed(named)}." for state, named in states.items()]
    if unknown:
        parts.append(f"Whether accuracy is lost is unknown for {first_few(unknown)}.")
    return " ".join([".", *parts])


def fewer_updates(view: WorkloadView) -> Findings:
    """A reason for lost accuracy on the same samples: the model is updated less often than serial's."""
    serial = view.serial
    ranked = _ranked(view.ranked_candidates)
    if not serial or not Q.accuracy.sample(serial):
        return
    (against,) = yield [Ask.against(Q.accuracy, serial, ranked)]
    losing = [
        each.left
        for each in against.compared
        if each.verdict == "less" and _same_samples(each.left, serial) and _same_start(each.left)
    ]
    own = serial.over(updates)
    fewer = [
        (taken, group)
        for group in losing
        if own and (taken := group.over(updates)) and taken.high < own.low
    ]
    if not own or not fewer:
        return
    parts = [f"{view.name(group)} {taken.range(whole)}" for taken, group in fewer]
    yield said(
        "fewer_updates",
        f"Same samples, fewer updates of the model: at {view.shape.label} serial's was updated "
        f"{own.range(whole)} times, those of strategies below serial less often: {listed(parts)}. "
        "Fewer updates alone can cost accuracy.",
        evidence([*(group for _, group in fewer), serial]),
        {
            "updates": {view.name(group): (taken.low, taken.high) for taken, group in fewer},
            "serial_updates": (own.low, own.high),
        },
    )


def _same_samples(group: Group, serial: Group) -> bool:
    """Whether the runs used the whole training set as often as serial's."""
    rows = [*group.ok_rows, *serial.ok_rows]
    whole_set = all(Q.coverage.of(row) in (None, 1.0) and not Q.overlap.of(row) for row in rows)
    return same_epochs(rows) and whole_set


def _same_start(group: Group) -> bool:
    """Whether its replicas start from the same weights. Otherwise their average alone costs accuracy."""
    return getattr(group.first.run.strategy, "init", "broadcast") == "broadcast"


def averaging(view: WorkloadView) -> Findings:
    """The accuracy of the averaged model against that of the nodes' local models."""
    groups = [
        group
        for group in view.line_groups
        if group in view.candidates
        and Q.averaging_gain.sample(group)
        and not group.first.run.aggregates_by_value  # which is no average
    ]
    (gains,) = yield [Ask(Q.averaging_gain, [(group, group) for group in groups])]
    for gain in gains.compared:
        group = gain.left
        local = Q.local_accuracy_mean.over(group)
        final = Spread.of(
            row.accuracy for row in group.ok_rows if Q.local_accuracy_mean.of(row) is not None
        )
        if not local or not final:
            continue
        change = points(final.mean - local.mean)
        yield said(
            "averaging",
            f"{view.name(group)} at {view.shape.label}: the nodes' local models reached "
            f"{percent(local.mean)} on average, and their average {percent(final.mean)}: "
            f"{change}{gain.remark}.",
            evidence([group]),
            {
                "strategy": view.name(group),
                "local_accuracy": local.mean,
                "accuracy": final.mean,
                "effect": gain.verdict,
                "compared": compared_data([gain]),
            },
        )


def variants(view: WorkloadView) -> Findings:
    """A strategy with other parameters than the default, all else equal."""
    same: dict[tuple[str | int, ...], list[Group]] = {}
    for group in view.candidates:
        same.setdefault((group.strategy, *group.line[1:]), []).append(group)
    pairs = []
    for groups in same.values():
        default = next((group for group in groups if group.strategy_label == group.strategy), groups[0])
        if default.first.run.strategy.partitions_model:  # equal mathematics however it is partitioned
            continue
        pairs += [(other, default) for other in groups if other.strategy_label != default.strategy_label]
    (answer,) = yield [Ask.of(Q.accuracy, pairs)]
    for compared in answer.compared:
        other, default = compared.left, compared.right
        mine, others = _differing_parameters(default, other)
        yield said(
            "variant",
            f"{default.strategy} over {default.transport}{view.partitioner(default)} at "
            f"{view.shape.label} reached {percent(compared.values[1])} with {_pairs(mine)} and "
            f"{percent(compared.values[0])} with {_pairs(others)}{compared.aside}"
            f"{_sent(default, other)}.",
            evidence([default, other]),
            {
                "strategy": default.strategy,
                "parameters": (mine, others),
                "accuracy": compared.values[::-1],
                "bytes_sent": tuple(
                    sent.mean if (sent := Q.bytes_sent_per_rank.over(group)) else None
                    for group in (default, other)
                ),
                "compared": compared_data([compared]),
            },
        )


def _sent(one: Group, other: Group) -> str:
    """The bytes that each group sent, if they differ."""
    left, right = (Q.bytes_sent_per_rank.over(group) for group in (one, other))
    if not left or not right or left.mean == right.mean:
        return ""
    return f"; a rank sent {size(left.mean)} and {size(right.mean)}"


def _differing_parameters(one: Group, other: Group) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """The parameters in which two groups of one strategy differ."""
    mine, others = (
        {**parameters(run, "strategy"), **{name: str(getattr(run, name)) for name in LR_SCHEDULE_FIELDS}}
        for run in (one.first.run, other.first.run)
    )
    names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
    return {name: mine.get(name) for name in names}, {name: others.get(name) for name in names}


def _pairs(values: dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


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

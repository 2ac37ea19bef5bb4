"""Exchange: what transports and ways to take the same mean gradient cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from orchestrator.report.figures.axes import Axis, amount_axis
from orchestrator.report.figures.bars import time_by_phase
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.lines import record, tooltip
from orchestrator.report.figures.named_lines import Lines
from orchestrator.report.figures.sentences import measured
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.timelines import small_timelines
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import listed, seconds
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.model.timelines import Timeline, slowest_runs, strategies_of, timelines_of
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.model_partition import model_size
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.speed import timed
from orchestrator.report.topics.topic import Findings, Topic

MEAN_GRADIENT = ("all_reduce", "all_gather", "reduce_broadcast", "ddp")  # equal mathematics
Point = tuple[Group, int, Spread]  # parameters of the model, seconds


def transports(view: WorkloadView) -> Findings:
    """The same strategy and partitioner over several transports."""
    same: dict[tuple[str, str], list[Group]] = {}
    for group in view.candidates:
        same.setdefault((group.strategy_label, group.partitioner_label), []).append(group)
    several = [
        groups for groups in map(timed, same.values()) if len({group.transport for group in groups}) > 1
    ]
    answers = yield [Ask.among(Q.train_s, groups) for groups in several]
    for groups, ranking in zip(several, answers, strict=True):
        yield Finding(
            "transports",
            evidence(groups),
            {
                "at": view.times_at,
                "strategy": groups[0].strategy_label,
                "partitioner": view.partitioner(groups[0]),
                "train_s": {group.transport: Q.train_s.mean_of(group) for group in groups},
                "communicate_s": Q.communicate_s.means(groups, lambda group: group.transport),
                "to_first": compared_data(ranking.between(group, groups[0]) for group in groups[1:]),
                "compared": compared_data(ranking.compared),
            },
        )


def all_reduce_and_ddp(view: WorkloadView) -> Findings:
    """Our all_reduce and torch's DDP: the mathematics is equal, and only the exchange differs."""
    by_line = {group.line: group for group in view.candidates if Q.train_s.sample(group)}
    # By label: a parameter, such as a compression, changes the mathematics.
    alike = [
        (one, other)
        for one, other in combinations(by_line.values(), 2)
        if {one.strategy_label, other.strategy_label} == {"all_reduce", "ddp"}
        and one.line[1:] == other.line[1:]
    ]
    ddp_first = [pair if pair[0].strategy_label == "ddp" else pair[::-1] for pair in alike]
    (answer,) = yield [Ask.of(Q.train_s, ddp_first)]
    for (one, other), compared in zip(alike, answer.compared, strict=True):
        ddp, ours = compared.left, compared.right
        yield Finding(
            "all_reduce_and_ddp",
            evidence([ours, ddp]),
            {
                "at": view.times_at,
                "names": {"all_reduce": view.name(ours), "ddp": view.name(ddp)},
                "train_s": {"all_reduce": compared.values[1], "ddp": compared.values[0]},
                "exchange_share": Q.exchange_share.means([one, other], lambda group: group.strategy_label),
                "compared": compared_data([compared]),
            },
        )


def mean_gradient(view: WorkloadView) -> Findings:
    """The cost per step of each way to take the same mean gradient."""
    same: dict[tuple[str, str, int], list[Group]] = {}
    for group in view.candidates:
        # By label: a parameter may change the mean.
        if Q.exchange_s_per_step.sample(group) and group.strategy_label in MEAN_GRADIENT:
            same.setdefault(group.line[1:], []).append(group)
    several = [
        ways
        for ways in same.values()  # for two ways, see all_reduce_and_ddp
        if len(ways) > 1 and not {group.strategy for group in ways} <= {"all_reduce", "ddp"}
    ]
    answers = yield [Ask.among(Q.exchange_s_per_step, ways) for ways in several]
    for ways, ranking in zip(several, answers, strict=True):
        first, *others = ordered = sorted(ways, key=Q.exchange_s_per_step.mean_of)
        yield Finding(
            "mean_gradient",
            evidence(ways),
            {
                "at": view.times_at,
                "transport": first.transport,
                "partitioner": view.partitioner(first),
                "exchange_s_per_step": Q.exchange_s_per_step.means(ordered, lambda group: group.strategy),
                "bytes_per_step": Q.bytes_sent_per_rank_per_step.means(ways, lambda group: group.strategy),
                "to_first": compared_data(ranking.between(group, first) for group in others),
                "compared": compared_data(ranking.compared),
            },
        )


def models_alike(comparison: Comparison) -> list[Workload]:
    """The workloads that differ from the first one only in the model; none unless there are several."""
    workloads = comparison.workloads
    alike = [each for each in workloads if replace(each, model=workloads[0].model) == workloads[0]]
    return alike if len(alike) > 1 else []


def exchange_by_size(comparison: Comparison, style: Style) -> Chart | None:
    """One line per strategy and transport at the compared shape; None without several sizes."""
    workloads = models_alike(comparison)
    if not workloads:
        return None
    shape = comparison.view(workloads[0]).shape
    points: list[Point] = []
    for workload in workloads:
        view = comparison.view(workload)
        size = model_size(view.groups)
        for group in view.line_groups:
            spread = Q.exchange_s_per_step.over(group)
            if size and spread and spread.low > 0 and group.shape == shape:
                points.append((group, size, spread))
    if len({size for _, size, _ in points}) < 2:
        return None
    return _drawn(points, style, shape)


def _drawn(points: list[Point], style: Style, shape: ClusterShape) -> Chart:
    shown = [group for group, _, _ in points]
    order = style.order(shown)
    points = sorted(points, key=lambda point: (order.index(point[0].series), point[1]))
    sizes = sorted({size for _, size, _ in points})
    values = [value for _, _, spread in points for value in (spread.low, spread.high)]
    title = f"Exchange per step against model size, {shape.label}"
    return Lines(
        title=title,
        records=[
            {**record(group, spread, seconds, shown), "parameters": size} for group, size, spread in points
        ],
        groups=shown,
        style=style,
        x=Axis("parameters", "parameters of the model", sizes[0], sizes[-1], True, tuple(sizes), ",d", 14),
        y=amount_axis(values, "mean", "exchange per step, s", log=True),
        tooltip=tooltip("exchange per step", ("parameters", "parameters"), with_accuracy=True),
        log_axis="y",
    ).chart()


def _once(subject: Subject) -> Chart | None:
    """The figure, at the first workload."""
    first = subject.comparison.workloads[0] == subject.view.workload
    return exchange_by_size(subject.comparison, subject.style) if first else None


def _timelines(subject: Subject) -> Sequence[Timeline]:
    return timelines_of(subject.view, subject.comparison.windows)[0]


def _without_timeline(subject: Subject) -> str:
    """The strategies that the figure leaves out, and why."""
    view, (_, missing) = subject.view, timelines_of(subject.view, subject.comparison.windows)
    notes = [f"Without a timeline: {listed([*names])} ({reason})." for reason, names in missing.items()]
    if faster := strategies_of(view) - len(slowest_runs(view)):
        notes.append(f"Faster strategies that are not shown: {faster}.")
    return " ".join(notes)


TOPIC = Topic(
    rules=(transports, all_reduce_and_ddp, mean_gradient),
    figures=(
        FigureKind(
            "exchange",
            "time",
            "All models of the sweep that are otherwise trained alike. Seconds of communication and "
            "waiting per step of the rank that took most steps, mean over ranks.",
            _once,
            otherwise=measured(Q.exchange_s_per_step),
        ),
        FigureKind(
            "phases",
            "time",
            "Every second of training belongs to one phase. Evaluation is not included. A serial bar more "
            "than three times as long as all others is left out.",
            lambda subject: time_by_phase(subject.view.line_groups, subject.view.shape),
            otherwise=measured(Q.exchange_share),
            partitioners="few",
        ),
        FigureKind(
            "timelines",
            "time",
            "The slowest run of each strategy, at the number of nodes at which strategies are compared, "
            "or at the strategy's largest. A line per rank, a scale per run; times are since training "
            "started. Shown are a few steps in the middle of the run, or one exchange if most steps have "
            "none. A line that stops early is that of a rank that had ended. Serial runs exchange nothing "
            "and are not shown.",
            lambda subject: small_timelines(subject.view, _timelines(subject)),
            otherwise=measured(Q.wait_s),
            note=_without_timeline,
            timelines=_timelines,
        ),
    ),
)

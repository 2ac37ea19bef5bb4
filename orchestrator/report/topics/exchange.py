"""Exchange: what transports and ways to take the same mean gradient cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from orchestrator.report.figures.axes import Axis, axis_of
from orchestrator.report.figures.bars import Bar, of_groups, part_scale, stacked_bars
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import ACCURACY, INTERVAL, FigureKind, Subject
from orchestrator.report.figures.lines import Lines
from orchestrator.report.figures.sentences import measured
from orchestrator.report.figures.timelines import small_timelines
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import listed, seconds
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, grouped
from orchestrator.report.model.timelines import Timeline, slowest_runs, strategies_of, timelines_of
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.model_partition import model_size
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.speed import timed
from orchestrator.report.topics.topic import Findings, Topic

MEAN_GRADIENT = ("all_reduce", "all_gather", "reduce_broadcast", "ddp")  # equal mathematics
FAR_LONGER = 3  # times as long as all other bars


def transports(view: WorkloadView) -> Findings:
    """The same strategy and partitioner over several transports."""
    same = grouped(view.candidates, lambda group: (group.strategy_label, group.partitioner_label))
    several = [
        groups for groups in map(timed, same.values()) if len({group.transport for group in groups}) > 1
    ]
    answers = yield [Ask.among(Q.train_s, groups) for groups in several]
    for groups, ranking in zip(several, answers, strict=True):
        first, *others = groups
        yield Finding.of(
            "transports",
            groups,
            ranking.compared,
            at=view.times_at,
            strategy=f"{first.strategy_label}{view.partitioner(first)}",
            train_s={group.transport: Q.train_s.mean_of(group) for group in groups},
            communicate_s=Q.communicate_s.means(groups, lambda group: group.transport),
            to_first=compared_data(ranking.between(group, first) for group in others),
        )


def all_reduce_and_ddp(view: WorkloadView) -> Findings:
    """Our all_reduce and torch's DDP: the mathematics is equal, and only the exchange differs."""
    # By label: a parameter, such as a compression, changes the mathematics.
    found = grouped(view.candidates, lambda group: group.strategy_label)
    pairs = [
        (ddp, ours)
        for ours in found.get("all_reduce", ())
        for ddp in found.get("ddp", ())
        if ddp.line[1:] == ours.line[1:]
    ]
    (answer,) = yield [Ask.of(Q.train_s, pairs)]
    for compared in answer.compared:
        pair = [compared.right, compared.left]
        yield Finding.of(
            "all_reduce_and_ddp",
            pair,
            [compared],
            at=view.times_at,
            names=[*map(view.name, pair)],
            exchange_share=[*map(_share, pair)],
        )


def mean_gradient(view: WorkloadView) -> Findings:
    """The cost per step of each way to take the same mean gradient."""
    # By label: a parameter may change the mean.
    known = [group for group in view.candidates if group.strategy_label in MEAN_GRADIENT]
    known = [group for group in known if Q.exchange_s_per_step.sample(group)]
    several = [
        sorted(ways, key=Q.exchange_s_per_step.mean_of)
        for ways in grouped(known, lambda group: group.line[1:]).values()
        if len(ways) > 1 and not {way.strategy for way in ways} <= {"all_reduce", "ddp"}  # compared above
    ]
    answers = yield [Ask.among(Q.exchange_s_per_step, ways) for ways in several]
    for ways, ranking in zip(several, answers, strict=True):
        first, *others = ways
        yield Finding.of(
            "mean_gradient",
            ways,
            ranking.compared,
            at=view.times_at,
            over=f"{first.transport}{view.partitioner(first)}",
            exchange_s_per_step=Q.exchange_s_per_step.means(ways, lambda group: group.strategy),
            bytes_per_step=Q.bytes_sent_per_rank_per_step.means(ways, lambda group: group.strategy),
            to_first=compared_data(ranking.between(group, first) for group in others),
        )


def exchange_by_size(subject: Subject) -> Chart | None:
    """One line per strategy and transport at the compared shape, at the first workload.

    Of the workloads that differ from it only in the model. None without several sizes.
    """
    workloads, view = subject.comparison.workloads, subject.view
    if workloads[0] != view.workload:
        return None
    points = []
    for other in map(subject.comparison.view, workloads):
        size = model_size(other.groups)
        if size and replace(other.workload, model=view.workload.model) == view.workload:
            groups = [group for group in other.line_groups if group.shape == view.shape]
            known = subject.points(groups, Q.exchange_s_per_step)
            points += [{**point, "parameters": size} for point in known if point["mean"] > 0]
    points.sort(key=lambda point: point["parameters"])
    sizes = tuple(dict.fromkeys(point["parameters"] for point in points))
    if len(sizes) < 2:
        return None
    return Lines(
        title=f"Exchange per step against model size, {view.shape.label}",
        records=points,
        style=subject.style,
        x=Axis("parameters", "parameters of the model", sizes[0], sizes[-1], True, sizes, ",d", 14),
        y=axis_of(Q.exchange_s_per_step, points, "exchange per step, s", log=True),
        tips={"name": "strategy", "nodes": "nodes", "parameters": "parameters"}
        | {"written": "exchange per step", **INTERVAL, **ACCURACY},
    ).chart()


def time_by_phase(subject: Subject) -> Chart | None:
    """Stacked bars, serial first, then by time; None if no run measured its phases."""
    view, clock = subject.view, subject.view.clock
    known = [group for group in view.line_groups if group.serial or group.shape == view.shape]
    bars = [bar for bar in (Bar(group, _phases(group), _beside(group)) for group in known) if bar.total > 0]
    longest = max((bar.total for bar in bars if not bar.group.serial), default=0.0)
    # A far longer serial bar would leave no room for the others' phases.
    shown = [bar for bar in bars if bar.total <= FAR_LONGER * longest]
    if not shown:  # serial, whose time is that of one phase
        return None
    shown.sort(key=lambda bar: (not bar.group.serial, bar.total))
    return stacked_bars(
        of_groups(shown),
        part_scale([part for bar in shown for part, amount in bar.amounts.items() if amount > 0]),
        {"title": f"{clock} time, s: mean over ranks and seeds"},
        seconds,
        f"{clock.capitalize()} time by phase, {view.shape.label}",
        "Beside each bar: training time, geometric mean, and the share of communicate and wait",
    )


def _share(group: Group) -> float | None:
    found = Q.exchange_share.over(group)
    return found.mean if found else None


def _beside(group: Group) -> str:
    """`0.486 s, 35%`: the training time, as everywhere in the report, and the share of exchanges."""
    time, share = Q.train_s.over(group), None if group.serial else _share(group)
    texts = [seconds(time.mean) if time else "", "" if share is None else f"{share:.0%}"]
    return ", ".join(filter(None, texts))


def _phases(group: Group) -> dict[str, float]:
    """Mean seconds per phase over ranks and seeds, without evaluation.

    Phases add up to the geometric mean of their sums, as times average everywhere in the report.
    """
    rows = [{**row.seconds, "evaluate": 0.0} for row in group.ok_rows if row.seconds]
    names = dict.fromkeys(phase for row in rows for phase in row)
    means = {phase: fmean(row.get(phase, 0.0) for row in rows) for phase in names}
    whole = Spread.of((sum(row.values()) for row in rows), geometric=True)
    scale = whole.mean / sum(means.values()) if whole and whole.mean else 1.0
    return {phase: scale * seconds for phase, seconds in means.items()}


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
            exchange_by_size,
            otherwise=measured(Q.exchange_s_per_step),
        ),
        FigureKind(
            "phases",
            "time",
            "Every second of training belongs to one phase. Evaluation is not included. A serial bar more "
            "than three times as long as all others is left out.",
            time_by_phase,
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

"""Conditions: what compared configurations do not share, and what a number means."""

from __future__ import annotations

from math import log

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.metrics.fairness import compared_groups, differences, scales_beyond_the_rule
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import grouped
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.limits import written

LOG_LOSSES = ("nll", "cross_entropy")  # of the probability of the right class, in nats
SEPARATED = ("runtime", "image")  # runs that differ in these are never compared, see model.locations


def accuracy_is(view: WorkloadView) -> Findings:
    """What the accuracy is where it is not the share of samples of the right class."""
    rows = evidence(view.groups)
    for component in ("loss", "dataset") if rows else ():
        if meaning := getattr(rows[0].run, component).accuracy_is:
            name = rows[0].run.name_of(component)
            yield Finding("accuracy_is", rows, {"component": component, "name": name, "accuracy": meaning})


def best_loss(view: WorkloadView) -> Findings:
    """The loss that a perfect model has on generated sequences."""
    rows = evidence(view.groups)
    best = rows[0].run.dataset.best_loss if rows else None
    if best is not None and rows[0].run.name_of("loss") in LOG_LOSSES:
        data = {"dataset": rows[0].run.name_of("dataset"), "bits_per_token": best / log(2)}
        yield Finding("best_loss", rows, data)


def conditions_unequal(view: WorkloadView) -> Findings:
    """Conditions that the compared configurations of a workload do not share."""
    found = differences(view)
    if found:
        yield Finding.of(
            "conditions_unequal",
            compared_groups(view),
            nodes=view.shape.label,
            stated={each.statement: each.named(view) for each in found},
            differences={
                each.condition: {value: [*map(view.name, groups)] for value, groups in each.values.items()}
                for each in found
            },
        )


def scaled_beyond_the_rule(view: WorkloadView) -> Findings:
    """Runs with a scaled learning rate whose updates use one batch of those it was scaled by."""
    groups = [group for group in view.groups if scales_beyond_the_rule(group.first.run)]
    if groups:
        strategies = [*dict.fromkeys(group.strategy_label for group in groups)]
        factors = sorted({group.first.run.batch_multiplier for group in groups})
        yield Finding.of("scaled_beyond_the_rule", groups, strategies=strategies, factors=factors)


def strategy_caveats(comparison: Comparison) -> Findings:
    """The caveats that a strategy's definition declares."""
    rows = [row for row in comparison.rows if row.ok and not row.is_sampled and row.run.strategy.caveat]
    for (strategy, caveat), of in grouped(
        rows, lambda row: (row.strategy, row.run.strategy.caveat)
    ).items():
        yield Finding("strategy_caveat", tuple(of), {"strategy": strategy, "caveat": caveat})


def sent_beyond_count(comparison: Comparison) -> Findings:
    """Configurations whose transport is known to send more bytes than are counted."""
    for group in comparison.groups:
        run, counted = group.first.run, Q.bytes_sent_per_rank.over(group)
        factor = run.strategy.sent_per_counted if run.transport == "gloo" else 1.0
        if factor > 1 and counted and counted.mean:
            yield Finding.of(
                "sent_beyond_count",
                [group],
                configuration=f"{group.strategy_label} on {group.shape.label}",
                transport=group.transport,
                counted=counted.mean,
                sent=factor * counted.mean,
            )


def conditions_differ(comparison: Comparison) -> Findings:
    """The machines and the software in which the runs of one report differ."""
    ok = [row for row in comparison.rows if row.ok]
    runtimes = grouped(ok, lambda row: row.result.runtime)
    values = {"runtime": [*runtimes], "number of cores": [written(row.result.cores) for row in ok]}
    # Runtimes record different facts, and their rows are never compared: look within each runtime.
    for rows in runtimes.values():
        for name in dict.fromkeys(
            name for row in rows for name in row.result.environment if name != "cores"
        ):
            found = [str(row.result.environment.get(name, "unknown")) for row in rows]
            if len(set(found)) > 1:
                values.setdefault(name, []).extend(found)
    for dataset, rows in grouped(ok, lambda row: row.run.name_of("dataset")).items():
        values[f"training data of {dataset}"] = [digest for row in rows for digest in row.data]
    for condition, found in values.items():
        distinct = [*dict.fromkeys(found)]
        if len(distinct) > 1:
            data = {"condition": condition, "values": distinct, "compared": condition not in SEPARATED}
            yield Finding("conditions_differ", (), data)


TOPIC = Topic(
    rules_with_faults=(accuracy_is, best_loss, conditions_unequal, scaled_beyond_the_rule),
    sweep_rules=(strategy_caveats, sent_beyond_count, conditions_differ),
)

"""Conditions: what compared configurations do not share, and what a number means."""

from __future__ import annotations

from math import log

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.metrics.fairness import compared_groups, differences, scales_beyond_the_rule
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.results.limits import written

LOG_LOSSES = ("nll", "cross_entropy")  # of the probability of the right class, in nats
SEPARATED = ("runtime", "image")  # runs that differ in these are never compared, see labels.location_names


def accuracy_is(view: WorkloadView) -> Findings:
    """What the accuracy is where it is not the share of samples of the right class."""
    rows = evidence(view.groups)
    for component in ("loss", "dataset") if rows else ():
        name, meaning = rows[0].run.name_of(component), getattr(rows[0].run, component).accuracy_is
        if meaning:
            data = {component: name, "component": component, "name": name, "accuracy": meaning}
            yield Finding("accuracy_is", rows, data)


def best_loss(view: WorkloadView) -> Findings:
    """The loss that a perfect model has on generated sequences."""
    rows = evidence(view.groups)
    best = rows[0].run.dataset.best_loss if rows else None
    if best is not None and rows[0].run.name_of("loss") in LOG_LOSSES:
        data = {"dataset": rows[0].run.name_of("dataset"), "bits_per_token": best / log(2)}
        yield Finding("best_loss", rows, data)


def conditions_unequal(view: WorkloadView) -> Findings:
    """Conditions that the compared configurations of a workload do not share."""
    if found := differences(view):
        yield Finding(
            "conditions_unequal",
            evidence(compared_groups(view)),
            {
                "shape": view.shape.short,
                "nodes": view.shape.label,
                "stated": {each.statement: each.named(view) for each in found},
                "differences": {
                    each.condition: {
                        value: [view.name(group) for group in groups]
                        for value, groups in each.values.items()
                    }
                    for each in found
                },
            },
        )


def scaled_beyond_the_rule(view: WorkloadView) -> Findings:
    """Runs with a scaled learning rate whose updates use one batch of those it was scaled by."""
    groups = [group for group in view.groups if scales_beyond_the_rule(group.first.run)]
    if groups:
        rows, strategies = evidence(groups), dict.fromkeys(group.strategy_label for group in groups)
        factors = sorted({row.run.batch_multiplier for row in rows})
        data = {"strategies": [*strategies], "factors": factors}
        yield Finding("scaled_beyond_the_rule", rows, data)


def strategy_caveats(comparison: Comparison) -> Findings:
    """The caveats that a strategy's definition declares."""
    caveats: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.rows:
        if row.ok and not row.is_sampled and row.run.strategy.caveat:
            caveats.setdefault((row.strategy, row.run.strategy.caveat), []).append(row)
    for (strategy, caveat), rows in caveats.items():
        yield Finding("strategy_caveat", tuple(rows), {"strategy": strategy, "caveat": caveat})


def sent_beyond_count(comparison: Comparison) -> Findings:
    """Configurations whose transport is known to send more bytes than are counted."""
    for group in comparison.groups:
        run, counted = group.first.run, Q.bytes_sent_per_rank.over(group)
        factor = run.strategy.sent_per_counted if run.transport == "gloo" else 1.0
        if factor > 1 and counted and counted.mean:
            yield Finding(
                "sent_beyond_count",
                evidence([group]),
                {
                    "strategy": group.strategy_label,
                    "nodes": group.shape.label,
                    "transport": group.transport,
                    "counted": counted.mean,
                    "sent": factor * counted.mean,
                },
            )


def conditions_differ(comparison: Comparison) -> Findings:
    """Runs of one report with different machines or software."""
    for name, values in differing_conditions(comparison).items():
        data = {"condition": name, "values": values, "compared": name not in SEPARATED}
        yield Finding("conditions_differ", (), data)


def differing_conditions(comparison: Comparison) -> dict[str, list[str]]:
    """The machines and the software in which runs differ, with their values."""
    ok = [row for row in comparison.rows if row.ok]
    runtimes: dict[str, list[Row]] = {}
    for row in ok:
        runtimes.setdefault(row.result.runtime, []).append(row)
    conditions: dict[str, list[str]] = {
        "runtime": list(runtimes),
        "number of cores": [written(row.result.cores) for row in ok],
    }
    # Runtimes record different facts, and their rows are never compared: look within each runtime.
    for rows in runtimes.values():
        for name in {name: None for row in rows for name in row.result.environment if name != "cores"}:
            found = [str(row.result.environment.get(name, "unknown")) for row in rows]
            if len(set(found)) > 1:
                conditions[name] = [*conditions.get(name, []), *found]
    texts: dict[str, list[str]] = {}
    for row in ok:
        texts.setdefault(row.run.name_of("dataset"), []).extend(row.data)
    conditions |= {f"training data of {name}": digests for name, digests in texts.items()}
    distinct = {name: list(dict.fromkeys(found)) for name, found in conditions.items()}
    return {name: values for name, values in distinct.items() if len(values) > 1}


TOPIC = Topic(
    rules_with_faults=(accuracy_is, best_loss, conditions_unequal, scaled_beyond_the_rule),
    sweep_rules=(strategy_caveats, sent_beyond_count, conditions_differ),
)

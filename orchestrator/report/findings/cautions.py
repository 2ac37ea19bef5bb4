"""Cautions: reasons why a number may not be compared, or is only one observation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims
from orchestrator.report.formats import count, first_few, listed, ratio, seconds
from orchestrator.report.metrics.fairness import (
    compared_groups,
    described,
    differences,
    scales_beyond_the_rule,
)
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, config_of
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.model.rows import NO_SERIAL, UNEQUAL_NODES, Row
from orchestrator.report.quantities import CPU_TIME_SPEEDUP
from orchestrator.report.quantities.containers import ran_out_of_memory
from orchestrator.report.quantities.learning import learned
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.drift import time_drift
from orchestrator.results.limits import counted, written

MAX_NAMED = 6  # per sentence; the tables list all
WIDE_DRIFT = 1.5  # high / low bound; a wider interval cannot exclude a drift that matters
SEPARATED = ("runtime", "image")  # runs that differ in these are never compared, see model.locations


def accuracy_is(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """What the accuracy is where it is not the share of samples of the right class."""
    rows = evidence(view.groups)
    meaning = rows[0].run.loss.accuracy_is if rows else None
    if meaning:
        loss = rows[0].run.name_of("loss")
        yield Finding(
            "accuracy_is",
            f"With the loss {loss}, accuracy is {meaning}.",
            rows,
            {"loss": loss, "accuracy": meaning},
        )


def shared_cores(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Shared cores, which limit the wall-clock speedup but not the CPU-time speedup."""
    sharing = [group for group in view.groups if group.first.shares_cores]
    if not sharing:
        return
    cores = max(row.result.cores for group in sharing for row in group.rows)
    limit = max(row.speedup_limit for group in sharing for row in group.rows)
    shapes = sorted({group.shape for group in sharing}, key=lambda shape: (shape.ranks, shape.nodes))
    text = (
        f"Runs on {_on(shapes)} shared {counted(cores, 'core')}: their wall-clock speedup cannot exceed "
        f"{limit:.3g}, and does not predict that of as many machines."
    )
    data: dict[str, Any] = {"shapes": [shape.short for shape in shapes], "cores": cores, "limit": limit}
    most = shapes[-1]
    by_cpu_time = [
        (spread.mean, group)
        for group in sharing
        if group.shape == most and (spread := CPU_TIME_SPEEDUP.over(group))
    ]
    if by_cpu_time:
        reached, best = max(by_cpu_time, key=lambda item: item[0])
        text += (
            f" With a core for every rank and free communication, {view.name(best)} on {most.label} would "
            f"reach a speedup of {ratio(reached)} by CPU time."
        )
        data |= {"strategy": view.name(best), "cpu_time_speedup": reached}
    beyond = [row.speedup for row in evidence(sharing) if row.speedup and row.speedup > row.speedup_limit]
    serial_s = view.serial.over(lambda row: row.train_s) if view.serial else None
    if beyond and serial_s:
        text += (
            f" A speedup above that, of up to {ratio(max(beyond))}, comes from serial runs in which the "
            f"machine was slow (serial took {serial_s.range(seconds)})."
        )
        data["beyond_limit"] = max(beyond)
    yield Finding("shared_cores", text, evidence(sharing), data)


def _on(shapes: list[ClusterShape]) -> str:
    """`2, 4 and 5 nodes`; with ranks per node if there are several."""
    if any(shape.processes_per_node > 1 for shape in shapes):
        return listed([shape.label for shape in shapes])
    *others, last = shapes
    return listed([*(shape.short for shape in others), last.label])


def too_few_seeds(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Configurations with fewer seeds than a claim of a difference needs."""
    few = [group for group in view.groups if len(group.ok_rows) < MIN_SEEDS]
    if not few:
        return
    everything = len(few) == len(view.groups)
    which = "every configuration" if everything else _names(view, few)
    why = " Seeds were added only to what might be the choice at that time." if view.staged else ""
    yield Finding(
        "too_few_seeds",
        f"Fewer than {MIN_SEEDS} seeds finished for {which}: no difference from them is claimed.{why}",
        evidence(few),
        {
            "all": everything,
            "configurations": [f"{view.name(group)} on {group.shape.label}" for group in few],
        },
    )


def _names(view: WorkloadView, groups: list[Group]) -> str:
    """The first few names, and the number of the rest."""
    return first_few([f"{view.name(group)} on {group.shape.label}" for group in groups], MAX_NAMED)


def drift(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """How much slower the machine was at the end of the sweep than at its start."""
    rows = [
        row for group in view.groups if group.first.times_compare for row in group.ok_rows if row.train_s
    ]
    found = time_drift([(row.result.started_at, _configuration(row), row.train_s or 0.0) for row in rows])
    if found is None:
        return
    text = (
        f"From the first run to the last, {view.clock} times changed by a factor of {ratio(found.factor)} "
        f"({ratio(found.low)} to {ratio(found.high)})"
    )
    shown = not found.low <= 1 <= found.high
    if not shown:
        text += ": whether there is a drift is undecided"
    else:
        text += (
            ": the machine was not equally fast all the time. The order of runs is random, so no "
            "configuration is systematically favoured"
        )
    yield Finding(
        "drift" if shown or found.high > WIDE_DRIFT * found.low else "no_drift",
        f"{text}.",
        tuple(rows),
        {"factor": found.factor, "interval": (found.low, found.high)},
    )


def _configuration(row: Row) -> str:
    return json.dumps([config_of(row), row.location], sort_keys=True)


def not_learned(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Runs whose accuracy is not above chance, or whose loss rose."""
    rows = [row for group in view.groups for row in group.ok_rows if learned(row) is False]
    if rows:
        lost = {row.key for row in rows}
        names = [
            f"{view.name(group)} on {group.shape.label}"
            for group in view.groups
            if lost & {row.key for row in group.ok_rows}
        ]
        yield Finding(
            "not_learned",
            f"The final model of {count(len(rows), 'run')} is no better than a constant answer, given the "
            f"size of the test set, or its loss did not fall: {first_few(names, MAX_NAMED)}.",
            tuple(rows),
        )


def no_serial(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Runs without a reference for a speedup."""
    for reason in (NO_SERIAL, UNEQUAL_NODES):
        rows = [row for group in view.groups for row in group.ok_rows if row.no_speedup == reason]
        if rows:
            yield Finding(
                "no_serial",
                f"{count(len(rows), 'run')} without speedup and accuracy difference: {reason}.",
                tuple(rows),
                {"reason": reason},
            )


def other_seeds(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Runs that are compared with serial runs of other seeds."""
    based = [(row, row.baseline) for group in view.groups for row in group.ok_rows]
    rows = [row for row, baseline in based if baseline and not baseline.same_seed]
    if rows:
        yield Finding(
            "other_seeds",
            f"{count(len(rows), 'run')} without a serial run of the same seed: compared with the mean of "
            "serial runs of other seeds.",
            tuple(rows),
        )


def conditions_unequal(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Conditions that the compared configurations of a workload do not share."""
    if found := differences(view):
        yield Finding(
            "conditions_unequal",
            f"Compared at {view.shape.label} under unequal conditions: "
            f"{'; '.join(described(view, each) for each in found)}.",
            evidence(compared_groups(view)),
            {
                "shape": view.shape.short,
                "differences": {
                    each.condition: {
                        value: [view.name(group) for group in groups]
                        for value, groups in each.values.items()
                    }
                    for each in found
                },
            },
        )


def scaled_beyond_the_rule(view: WorkloadView, claims: Claims) -> Iterator[Finding]:
    """Runs with a scaled learning rate whose updates use one batch of those it was scaled by."""
    groups = [group for group in view.groups if scales_beyond_the_rule(group.first.run)]
    if groups:
        names = list(dict.fromkeys(group.strategy_label for group in groups))
        rows = evidence(groups)
        factors = sorted({row.run.batch_multiplier for row in rows})
        replicas = listed([str(factor) for factor in factors], "or")
        yield Finding(
            "scaled_beyond_the_rule",
            f"The learning rate of {first_few(names, MAX_NAMED)} was scaled with the number of replicas "
            f"({replicas}), but each of their updates uses the batch of one replica. The scaling rules are "
            "for updates with the mean gradient of all replicas (Goyal et al. 2017, Krizhevsky 2014) and "
            "do not cover these runs.",
            rows,
            {"strategies": names, "factors": factors},
        )


def failed(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs that failed or timed out, by cause."""
    causes: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.failed:
        verb = "timed out" if row.status == "timeout" else "failed"
        causes.setdefault((verb, row.cause or "no cause was reported"), []).append(row)
    for (verb, cause), rows in list(causes.items())[:MAX_NAMED]:
        subject = rows[0].key if len(rows) == 1 else count(len(rows), "run")
        yield Finding(
            "failed",
            f"{subject} {verb}: {cause.rstrip('.')}.",
            tuple(rows),
            {"status": rows[0].status, "cause": cause},
        )
    if rest := [row for rows in list(causes.values())[MAX_NAMED:] for row in rows]:
        text = f"{count(len(rest), 'more run')} failed; the table of runs lists their causes."
        yield Finding("failed", text, tuple(rest), {"status": None, "cause": None})


def pending(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs without a result."""
    missing, planned = len(comparison.pending), len(comparison.record.keys)
    if missing:
        text = (
            f"{missing} of {count(planned, 'run')} are pending: this report does not cover the whole sweep."
        )
        yield Finding("pending", text, (), {"pending": missing, "planned": planned})


def unverified(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs that did not train on the samples of the partition, or whose replicas differ."""
    for kind, rows, what in [
        (
            "not_verified",
            [row for row in comparison.rows if row.verified is False],
            "trained on other samples than the partition assigns",
        ),
        (
            "replicas_differ",
            [row for row in comparison.rows if row.replicas_equal is False],
            "ended with replicas that differ; the accuracy is that of rank 0",
        ),
    ]:
        if rows:
            yield Finding(kind, f"{count(len(rows), 'run')} {what}.", tuple(rows))


def thread_ranks(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs whose ranks were threads of one interpreter."""
    rows = [row for row in comparison.rows if row.ok and not row.result.times_compare]
    if rows:
        text = (
            f"The ranks of {count(len(rows), 'run')} were threads of one interpreter and slowed each other "
            "down: their times do not compare, and no finding about time includes them."
        )
        yield Finding("thread_ranks", text, tuple(rows))


def no_common_clock(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs on a runtime whose nodes share no clock, which have no straggler attribution."""
    rows = [row for row in comparison.rows if row.ok and not row.wall.result.runtime_info.one_clock]
    if rows:
        text = (
            f"The nodes of {count(len(rows), 'run')} share no clock. Straggler attribution compares the "
            "clocks of ranks, so these runs have none."
        )
        yield Finding("no_common_clock", text, tuple(rows))


def strategy_caveats(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """The caveats that a strategy's definition declares."""
    caveats: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.rows:
        if row.ok and row.run.strategy.caveat:
            caveats.setdefault((row.strategy, row.run.strategy.caveat), []).append(row)
    for (strategy, caveat), rows in caveats.items():
        yield Finding("strategy_caveat", f"{strategy}: {caveat}.", tuple(rows), {"strategy": strategy})


def out_of_memory(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs that finished although the kernel killed processes in their containers."""
    rows = [row for row in comparison.rows if row.ok and ran_out_of_memory(row.result.usage)]
    if rows:
        text = (
            f"The kernel killed processes in the containers of {count(len(rows), 'run')} that ran out of "
            "memory. The remaining processes finished, and the numbers are theirs: raise memory_mb."
        )
        yield Finding("out_of_memory", text, tuple(rows))


def conditions_differ(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Runs of one report with different machines or software."""
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
        for name in {name: None for row in rows for name in row.result.environment}:
            found = [str(row.result.environment.get(name, "unknown")) for row in rows]
            if len(set(found)) > 1:
                conditions[name] = [*conditions.get(name, []), *found]
    for name, found in conditions.items():
        values = list(dict.fromkeys(found))
        if len(values) > 1 and name != "cores":
            effect = (
                "they are not compared with each other"
                if name in SEPARATED
                else "their numbers may not compare"
            )
            yield Finding(
                "conditions_differ",
                f"The runs differ in {name} ({listed(values)}): {effect}.",
                (),
                {"condition": name, "values": values, "compared": name not in SEPARATED},
            )

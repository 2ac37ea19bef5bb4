"""Cautions: what keeps a number from being compared, or from being more than one observation."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.formats import count, listed, ratio, seconds
from orchestrator.report.metrics.containers import ran_out_of_memory
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.model.rows import NO_SERIAL, UNLIKE_NODES, Row
from orchestrator.results.limits import counted, written

MOST_NAMED = 6  # of a kind; the tables have them all
KEPT_APART = ("runtime", "image")  # see orchestrator.report.model.places


def shared_cores(scene: WorkloadView) -> Iterator[Finding]:
    """Wall-clock speedup is bounded where nodes share cores; the work speedup is not."""
    sharing = [group for group in scene.groups if group.first.shares_cores]
    if not sharing:
        return
    cores = max(row.result.cores for group in sharing for row in group.rows)
    limit = max(row.speedup_limit for group in sharing for row in group.rows)
    shapes = sorted({group.shape for group in sharing}, key=lambda shape: (shape.ranks, shape.nodes))
    text = (
        f"Runs on {_on(shapes)} shared {counted(cores, 'core')}: their wall-clock speedup cannot pass "
        f"{limit:.3g} and does not tell what as many machines would do."
    )
    most = shapes[-1]
    working = [
        (spread.mean, group)
        for group in sharing
        if group.shape == most and (spread := group.over(lambda row: row.work_speedup))
    ]
    if working:
        reached, best = max(working, key=lambda item: item[0])
        text += (
            f" By CPU time, as if every rank had a core of its own and communication were free, "
            f"{scene.name(best)} would reach a speedup of {ratio(reached)} on {most.label}."
        )
    beyond = [row.speedup for row in evidence(sharing) if row.speedup and row.speedup > row.speedup_limit]
    serial_s = scene.serial.over(lambda row: row.train_s) if scene.serial else None
    if beyond and serial_s:
        text += (
            f" Up to {ratio(max(beyond))} was measured all the same: so much do equal runs vary here "
            f"(serial took {serial_s.range(seconds)})."
        )
    yield Finding("caution", text, evidence(sharing))


def _on(shapes: list[ClusterShape]) -> str:
    """`2, 4 and 5 nodes`; with ranks in each where there are several."""
    if any(shape.processes_per_node > 1 for shape in shapes):
        return listed([shape.label for shape in shapes])
    *others, last = shapes
    return listed([*(shape.short for shape in others), last.label])


def not_repeated(scene: WorkloadView) -> Iterator[Finding]:
    """Cells with a single seed that is ok."""
    once = [group for group in scene.groups if not group.repeated]
    if not once:
        return
    whole = len(once) == len(scene.groups)
    subject = "Nothing was repeated" if whole else f"A single seed stands for {listed(_cells(scene, once))}"
    text = f"{subject}: a difference seen with one seed cannot be told from chance."
    yield Finding("caution", text, evidence(once))


def _cells(scene: WorkloadView, groups: list[Group]) -> list[str]:
    """Their names: the first few, and the number of the rest."""
    names = [f"{scene.name(group)} on {group.shape.label}" for group in groups]
    return names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]


def no_serial(scene: WorkloadView) -> Iterator[Finding]:
    """Runs without anything to measure a speedup against."""
    for reason in (NO_SERIAL, UNLIKE_NODES):
        rows = [row for group in scene.groups for row in group.ok_rows if row.no_speedup == reason]
        if rows:
            yield Finding(
                "caution",
                f"{count(len(rows), 'run')} without speedup and accuracy difference: {reason}.",
                tuple(rows),
            )


def other_seeds(scene: WorkloadView) -> Iterator[Finding]:
    """Runs that are measured against serial runs of other seeds."""
    based = [(row, row.baseline) for group in scene.groups for row in group.ok_rows]
    rows = [row for row, baseline in based if baseline and not baseline.same_seed]
    if rows:
        yield Finding(
            "caution",
            f"{count(len(rows), 'run')} measured against the mean of serial runs of other seeds: their own "
            f"seed has none.",
            tuple(rows),
        )


def failures(comparison: Comparison) -> Iterator[Finding]:
    """The runs that are not ok, by cause."""
    causes: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.failed:
        verb = "ran out of time" if row.status == "timeout" else "failed"
        causes.setdefault((verb, row.cause or "no cause was reported"), []).append(row)
    for (verb, cause), rows in list(causes.items())[:MOST_NAMED]:
        who = rows[0].key if len(rows) == 1 else count(len(rows), "run")
        yield Finding("caution", f"{who} {verb}: {cause.rstrip('.')}.", tuple(rows))
    if rest := [row for rows in list(causes.values())[MOST_NAMED:] for row in rows]:
        text = f"{count(len(rest), 'more run')} failed; the table of runs has their causes."
        yield Finding("caution", text, tuple(rest))


def pending(comparison: Comparison) -> Iterator[Finding]:
    """Runs that have no result yet."""
    missing, planned = len(comparison.pending), len(comparison.record.keys)
    if missing:
        text = f"{count(missing, 'run')} of {planned} not done yet: this is not the whole sweep."
        yield Finding("caution", text)


def unverified(comparison: Comparison) -> Iterator[Finding]:
    """Runs whose nodes did not train on what the split says, or ended apart."""
    for rows, what in [
        (
            [row for row in comparison.rows if row.verified is False],
            "trained on other samples than the split says",
        ),
        (
            [row for row in comparison.rows if row.replicas_equal is False],
            "ended with replicas that differ; the accuracy is of rank 0's",
        ),
    ]:
        if rows:
            yield Finding("caution", f"{count(len(rows), 'run')} {what}.", tuple(rows))


def caveats(comparison: Comparison) -> Iterator[Finding]:
    """What a strategy or transport says of itself that a reader must know before comparing."""
    ok = [row for row in comparison.rows if row.ok]
    if threads := [row for row in ok if not row.result.times_compare]:
        text = (
            f"The ranks of {count(len(threads), 'run')} were threads of one interpreter and hindered each "
            "other: their times do not compare, and no finding about time has them."
        )
        yield Finding("caution", text, tuple(threads))
    told: dict[str, list[Row]] = {}
    for row in ok:
        run = row.result.run
        if run.strategy.caveat:
            told.setdefault(f"{run.name_of('strategy')}: {run.strategy.caveat}.", []).append(row)
    for text, rows in told.items():
        yield Finding("caution", text, tuple(rows))


def out_of_memory(comparison: Comparison) -> Iterator[Finding]:
    """Runs that came to their end although the kernel had killed processes in their containers."""
    rows = [row for row in comparison.rows if row.ok and ran_out_of_memory(row.result.usage)]
    if rows:
        text = (
            f"The kernel killed processes in the containers of {count(len(rows), 'run')} for want of "
            "memory. What was left came to its end, and the numbers are of that: raise memory_mb."
        )
        yield Finding("caution", text, tuple(rows))


def unlike_conditions(comparison: Comparison) -> Iterator[Finding]:
    """Runs of one report that were made elsewhere, on other machines or with other software."""
    ok = [row for row in comparison.rows if row.ok]
    runtimes: dict[str, list[Row]] = {}
    for row in ok:
        runtimes.setdefault(row.result.runtime, []).append(row)
    conditions: dict[str, list[str]] = {
        "runtime": list(runtimes),
        "number of cores": [written(row.result.cores) for row in ok],
    }
    # What there is to know differs from runtime to runtime, and their rows are kept apart anyway.
    for rows in runtimes.values():
        for what in {name: None for row in rows for name in row.result.environment}:
            had = [str(row.result.environment.get(what, "unknown")) for row in rows]
            if len(set(had)) > 1:
                conditions[what] = [*conditions.get(what, []), *had]
    for what, had in conditions.items():
        values = list(dict.fromkeys(had))
        if len(values) > 1 and what != "cores":
            effect = (
                "rows of one are only set against each other"
                if what in KEPT_APART
                else "their numbers may not compare"
            )
            yield Finding("caution", f"The runs differ in {what} ({listed(values)}): {effect}.")

"""Runs: those that failed, are pending, have not learned, or have too few seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import compared_data
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, learned
from orchestrator.report.model.rows import NO_SERIAL, UNEQUAL_NODES, Row
from orchestrator.report.quantities.containers import ran_out_of_memory
from orchestrator.report.statistics.contrasts import MIN_SEEDS, MOST_SEEDS, PROBABLE
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 6  # causes; the table of runs lists all


def too_few_seeds(view: WorkloadView) -> Findings:
    """Configurations with fewer seeds than a claim of a difference needs."""
    few = [group for group in view.groups if len(group.ok_rows) < MIN_SEEDS]
    if not few:
        return
    yield Finding(
        "too_few_seeds",
        evidence(few),
        {
            "least": MIN_SEEDS,
            "all": len(few) == len(view.groups),
            "configurations": _names(view, few),
            "staged": view.staged,
        },
    )


def _names(view: WorkloadView, groups: Sequence[Group]) -> list[str]:
    return [f"{view.name(group)} on {group.shape.label}" for group in groups]


def not_learned(view: WorkloadView) -> Findings:
    """Runs whose accuracy is not above chance, or whose loss rose."""
    rows = [row for group in view.groups for row in group.ok_rows if learned(row) is False]
    if rows:
        lost = {row.key for row in rows}
        groups = [group for group in view.groups if lost & {row.key for row in group.ok_rows}]
        yield Finding(
            "not_learned", tuple(rows), {"runs": len(rows), "configurations": _names(view, groups)}
        )


def no_serial(view: WorkloadView) -> Findings:
    """Runs without a reference for a speedup."""
    for reason in (NO_SERIAL, UNEQUAL_NODES):
        rows = [row for group in view.groups for row in group.ok_rows if row.no_speedup == reason]
        if rows:
            yield Finding("no_serial", tuple(rows), {"runs": len(rows), "reason": reason})


def other_seeds(view: WorkloadView) -> Findings:
    """Runs that are compared with serial runs of other seeds."""
    rows = [row for group in view.groups for row in group.ok_rows if row.other_seeds]
    if rows:
        yield Finding("other_seeds", tuple(rows), {"runs": len(rows)})


def undecided(comparison: Comparison) -> Findings:
    """How many comparisons are undecided, and how many seeds would probably decide them."""
    compared = (yield []).all
    levels = Counter(each.level for each in compared if each.decided)
    not_shown = [each for each in compared if each.verdict == "undecided"]
    unknown = [each for each in not_shown if not each.within_tolerance]
    if not unknown:
        return
    equal, shown, likely = len(not_shown) - len(unknown), levels["shown"], levels["likely"]
    hopeless = [each for each in unknown if each.hopeless]
    needed = sorted(seeds for each in unknown if (seeds := each.seeds_to_decide))
    beyond = len(unknown) - len(needed) - len(hopeless)
    yield Finding(
        "undecided",
        (),
        {
            "undecided": len(unknown),
            "decided": shown + likely,
            "shown": shown,
            "likely": likely,
            "within_tolerance": equal,
            "seeds": needed,
            "half": deciding_half(needed),
            "unfinished": comparison.unfinished,
            "beyond": beyond,
            "most_seeds": MOST_SEEDS,
            "hopeless": len(hopeless),
            "hopeless_in_cluster_time": any(each.left.first.clock == "cluster" for each in hopeless),
            "probable": PROBABLE,
            "compared": compared_data(compared),
        },
    )


def deciding_half(needed: Sequence[int]) -> tuple[int, int] | None:
    """The seeds that would probably decide half of the comparisons that can be decided, and their number.

    needed: what each needs, in order.
    """
    if not needed:
        return None
    seeds = needed[(len(needed) - 1) // 2]
    return seeds, sum(each <= seeds for each in needed)


def failed(comparison: Comparison) -> Findings:
    """Runs that failed or timed out, by cause."""
    causes: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.failed:
        verb = "timed out" if row.status == "timeout" else "failed"
        causes.setdefault((verb, row.cause or "no cause was reported"), []).append(row)
    for (verb, cause), rows in list(causes.items())[:MAX_NAMED]:
        keys = [row.key for row in rows]
        data = {"runs": keys, "verb": verb, "status": rows[0].status, "cause": cause}
        yield Finding("failed", tuple(rows), data)
    if rest := [row for rows in list(causes.values())[MAX_NAMED:] for row in rows]:
        keys = [row.key for row in rest]
        yield Finding("failed", tuple(rest), {"runs": keys, "status": None, "cause": None})


def pending(comparison: Comparison) -> Findings:
    """Runs without a result."""
    missing, planned = len(comparison.pending), len(comparison.record.keys)
    if missing:
        yield Finding("pending", (), {"pending": missing, "planned": planned})


def out_of_memory(comparison: Comparison) -> Findings:
    """Runs that finished although the kernel killed processes in their containers."""
    rows = [row for row in comparison.rows if row.ok and ran_out_of_memory(row.result.usage)]
    if rows:
        yield Finding("out_of_memory", tuple(rows), {"runs": len(rows)})


TOPIC = Topic(
    rules=(no_serial, other_seeds),
    rules_with_faults=(too_few_seeds, not_learned),
    sweep_rules=(undecided, failed, pending, out_of_memory),
)

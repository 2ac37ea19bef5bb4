"""Runs: those that failed, are pending, have not learned, or have too few seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import compared_data
from orchestrator.report.formats import count, first_few, listed
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.learned import learned
from orchestrator.report.model.rows import NO_SERIAL, UNEQUAL_NODES, Row
from orchestrator.report.quantities.containers import ran_out_of_memory
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.power import MOST_SEEDS, PROBABLE
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 6  # per sentence; the tables list all


def too_few_seeds(view: WorkloadView) -> Findings:
    """Configurations with fewer seeds than a claim of a difference needs."""
    few = [group for group in view.groups if len(group.ok_rows) < MIN_SEEDS]
    if not few:
        return
    everything = len(few) == len(view.groups)
    names = _names(view, few)
    which = "every configuration" if everything else first_few(names, MAX_NAMED)
    why = " Seeds were added only to what might be the choice at that time." if view.staged else ""
    yield Finding(
        "too_few_seeds",
        f"Fewer than {MIN_SEEDS} seeds finished for {which}: no difference from them is claimed.{why}",
        evidence(few),
        {"all": everything, "configurations": names},
    )


def _names(view: WorkloadView, groups: Sequence[Group]) -> list[str]:
    return [f"{view.name(group)} on {group.shape.label}" for group in groups]


def not_learned(view: WorkloadView) -> Findings:
    """Runs whose accuracy is not above chance, or whose loss rose."""
    rows = [row for group in view.groups for row in group.ok_rows if learned(row) is False]
    if rows:
        lost = {row.key for row in rows}
        groups = [group for group in view.groups if lost & {row.key for row in group.ok_rows}]
        names = first_few(_names(view, groups), MAX_NAMED)
        yield Finding(
            "not_learned",
            f"The final model of {count(len(rows), 'run')} is no better than a constant answer, given the "
            f"size of the test set, or its loss did not fall: {names}.",
            tuple(rows),
        )


def no_serial(view: WorkloadView) -> Findings:
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


def other_seeds(view: WorkloadView) -> Findings:
    """Runs that are compared with serial runs of other seeds."""
    rows = [row for group in view.groups for row in group.ok_rows if row.other_seeds]
    if rows:
        yield Finding(
            "other_seeds",
            f"{count(len(rows), 'run')} without a serial run of the same seed: compared with the mean of "
            "serial runs of other seeds.",
            tuple(rows),
        )


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
    parts = [f"{shown} shown", f"{likely} likely"]
    parts += [f"{equal} equal within the tolerance"] if equal else []
    text = (
        f"Of {count(len(not_shown) + shown + likely, 'comparison')}, {listed(parts)}, and "
        f"{len(unknown)} undecided; findings.json has all of them."
    )
    if half := deciding_half(needed):
        seeds, number = half
        which = "it" if len(unknown) == 1 else f"{number} of them"
        text += f" {count(seeds, 'seed').capitalize()} per configuration would probably decide {which}"
        if not comparison.unfinished:
            text += (
                f": run the command of this sweep again with --repeat {seeds}. Runs that have finished are "
                "not repeated"
            )
        text += "."
    if hopeless:
        kept = ["the differences between two sessions"]
        if any(each.left.first.clock == "cluster" for each in hopeless):
            kept.append("the error of cluster time")
        text += (
            f" No number of seeds would decide {len(hopeless)} with a probability of {PROBABLE:.0%} or "
            f"more: seeds do not reduce {listed(kept, 'or')}."
        )
    if beyond:
        text += f" {beyond} would need more than {MOST_SEEDS} seeds each."
    data = {
        "undecided": len(unknown),
        "decided": shown + likely,
        "shown": shown,
        "likely": likely,
        "within_tolerance": equal,
        "seeds": needed,
        "beyond": beyond,
        "hopeless": len(hopeless),
        "compared": compared_data(compared),
    }
    yield Finding("undecided", text, (), data)


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


def pending(comparison: Comparison) -> Findings:
    """Runs without a result."""
    missing, planned = len(comparison.pending), len(comparison.record.keys)
    if missing:
        text = (
            f"{missing} of {count(planned, 'run')} are pending: this report does not cover the whole sweep."
        )
        yield Finding("pending", text, (), {"pending": missing, "planned": planned})


def out_of_memory(comparison: Comparison) -> Findings:
    """Runs that finished although the kernel killed processes in their containers."""
    rows = [row for row in comparison.rows if row.ok and ran_out_of_memory(row.result.usage)]
    if rows:
        text = (
            f"The kernel killed processes in the containers of {count(len(rows), 'run')} that ran out of "
            "memory. The remaining processes finished, and the numbers are theirs: raise memory_mb."
        )
        yield Finding("out_of_memory", text, tuple(rows))


TOPIC = Topic(
    rules=(no_serial, other_seeds),
    rules_with_faults=(too_few_seeds, not_learned),
    sweep_rules=(undecided, failed, pending, out_of_memory),
)

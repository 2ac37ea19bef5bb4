"""Runs: those that failed, are pending, have not learned, or have too few seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, learned
from orchestrator.report.model.rows import NO_SERIAL, UNEQUAL_NODES, Row
from orchestrator.report.quantities.containers import ran_out_of_memory
from orchestrator.report.statistics.contrasts import MIN_SEEDS, MOST_SEEDS, PROBABLE
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 6  # causes; the table of runs lists all


def of_runs(kind: str, rows: Iterable[Row], **data: object) -> Findings:
    """How many runs there are of which something is so; nothing if there are none."""
    if found := tuple(rows):
        yield Finding(kind, found, {"runs": len(found), **data})


def too_few_seeds(view: WorkloadView) -> Findings:
    """Configurations with fewer seeds than a claim of a difference needs."""
    few = [group for group in view.groups if len(group.ok_rows) < MIN_SEEDS]
    if few:
        yield Finding.of(
            "too_few_seeds",
            few,
            least=MIN_SEEDS,
            all=len(few) == len(view.groups),
            configurations=_names(view, few),
            staged=view.staged,
        )


def _names(view: WorkloadView, groups: Sequence[Group]) -> list[str]:
    return [f"{view.name(group)} on {group.shape.label}" for group in groups]


def not_learned(view: WorkloadView) -> Findings:
    """Runs whose accuracy is not above chance, or whose loss rose."""
    groups = [group for group in view.groups if not group.learned]
    rows = [row for row in evidence(groups) if learned(row) is False]
    return of_runs("not_learned", rows, configurations=_names(view, groups))


def no_serial(view: WorkloadView) -> Findings:
    """Runs without a reference for a speedup."""
    for reason in (NO_SERIAL, UNEQUAL_NODES):
        rows = [row for row in evidence(view.groups) if row.no_speedup == reason]
        yield from of_runs("no_serial", rows, reason=reason)


def other_seeds(view: WorkloadView) -> Findings:
    """Runs that are compared with serial runs of other seeds."""
    return of_runs("other_seeds", [row for row in evidence(view.groups) if row.other_seeds])


def undecided(comparison: Comparison) -> Findings:
    """How many comparisons are undecided, and how many seeds would probably decide them."""
    compared = (yield []).all
    levels = Counter(each.level for each in compared if each.decided)
    not_shown = [each for each in compared if each.verdict == "undecided"]
    unknown = [each for each in not_shown if not each.within_tolerance]
    if not unknown:
        return
    hopeless = [each for each in unknown if each.hopeless]
    needed = sorted(seeds for each in unknown if (seeds := each.seeds_to_decide))
    yield Finding.of(
        "undecided",
        (),
        compared,
        undecided=len(unknown),
        shown=levels["shown"],
        likely=levels["likely"],
        within_tolerance=len(not_shown) - len(unknown),
        seeds=needed,
        half=deciding_half(needed),
        unfinished=comparison.unfinished,
        beyond=len(unknown) - len(needed) - len(hopeless),
        most_seeds=MOST_SEEDS,
        hopeless=len(hopeless),
        hopeless_in_cluster_time=any(each.left.first.clock == "cluster" for each in hopeless),
        probable=PROBABLE,
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
        causes.setdefault((row.status, row.cause or "no cause was reported"), []).append(row)
    for (status, cause), rows in [*causes.items()][:MAX_NAMED]:
        yield from of_runs("failed", rows, first=rows[0].key, status=status, cause=cause)
    rest = [row for rows in [*causes.values()][MAX_NAMED:] for row in rows]
    yield from of_runs("failed", rest, cause=None)


def pending(comparison: Comparison) -> Findings:
    """Runs without a result."""
    missing, planned = len(comparison.pending), len(comparison.record.keys)
    if missing:
        yield Finding("pending", (), {"pending": missing, "planned": planned})


def out_of_memory(comparison: Comparison) -> Findings:
    """Runs that finished although the kernel killed processes in their containers."""
    rows = [row for row in comparison.rows if row.ok and ran_out_of_memory(row.result.usage)]
    return of_runs("out_of_memory", rows)


TOPIC = Topic(
    rules=(no_serial, other_seeds),
    rules_with_faults=(too_few_seeds, not_learned),
    sweep_rules=(undecided, failed, pending, out_of_memory),
)

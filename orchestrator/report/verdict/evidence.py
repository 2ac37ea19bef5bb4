"""What a report rests on, one line each: certificates, conditions, the clock, seeds, failures and drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, first_few, listed, percent
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Evidence

MOST_NAMED = 3


def evidence(comparison: Comparison, findings: Sequence[Finding]) -> list[Evidence]:
    """One line for each topic on which the sweep has something to say."""
    kinds = _Kinds(findings)
    rules: tuple[Callable[[Comparison, _Kinds], Evidence | None], ...] = (
        _samples,
        _conditions,
        _clock,
        _seeds,
        _failures,
        _drift,
        _learning,
        _serial,
        _machines,
    )
    return [line for rule in rules if (line := rule(comparison, kinds))]


class _Kinds:
    """Findings by kind."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._by_kind: dict[str, list[Finding]] = {}
        for finding in findings:
            self._by_kind.setdefault(finding.kind, []).append(finding)

    def of(self, kind: str) -> list[Finding]:
        return self._by_kind.get(kind, [])

    def anchor(self, *kinds: str) -> str:
        """The anchor of the first of these kinds that was found."""
        return next((found[0].anchor for kind in kinds if (found := self.of(kind))), "")

    def runs(self, *kinds: str) -> int:
        """How many runs findings of these kinds are about."""
        return len({row.key for kind in kinds for finding in self.of(kind) for row in finding.rows})


def _samples(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    known = [row.verified for row in comparison.rows if row.verified is not None]
    differing = kinds.runs("replicas_differ")
    if not known:
        return None
    text = f"verified in {sum(known):,} of {count(len(known), 'run')}"
    if differing:
        text += f"; the replicas of {count(differing, 'run')} differ"
    ok = all(known) and not differing
    return Evidence("Samples", text, ok, kinds.anchor("not_verified", "replicas_differ"))


def _conditions(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    if not comparison.workloads:
        return None
    unequal, scaled = kinds.of("conditions_unequal"), kinds.of("scaled_beyond_the_rule")
    if not unequal and not scaled:
        return Evidence("Fairness", "compared configurations have equal conditions", ok=True)
    names = list(dict.fromkeys(name for finding in unequal for name in finding.data["differences"]))
    parts = []
    if names:
        verb = "differs" if len(names) == 1 else "differ"
        parts.append(f"{count(len(names), 'condition')} {verb}: {first_few(names, MOST_NAMED)}")
    if scaled:
        parts.append("learning rates are scaled beyond the rule")
    return Evidence(
        "Fairness", "; ".join(parts), False, kinds.anchor("conditions_unequal", "scaled_beyond_the_rule")
    )


def _clock(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    clocks = {comparison.view(workload).clock for workload in comparison.workloads}
    if not clocks:
        return None
    parts, ok = [], True
    if "cluster" in clocks:
        unknown = [f for f in kinds.of("cluster_time_uncalibrated") if "worst_error" not in f.data]
        errors = [
            finding.data
            for kind in ("cluster_time", "cluster_time_uncalibrated")
            for finding in kinds.of(kind)
            if "worst_error" in finding.data
        ]
        ok = not kinds.of("cluster_time_uncalibrated")
        if errors:
            worst = max(errors, key=lambda data: data["worst_error"])
            parts.append(
                f"cluster time, off wall time by {percent(worst['median_error'])} in the median and "
                f"{percent(worst['worst_error'])} at most in {count(worst['checked'], 'run')} with a core "
                "for each rank"
            )
        if unchecked := sorted({ranks for data in errors for ranks in data["unchecked_ranks"]}):
            ok = False
            parts.append(
                f"runs of {listed([str(ranks) for ranks in unchecked])} ranks could not be checked"
            )
        if not any(workload.link for workload in comparison.workloads):
            parts.append(f"exchanges over {OWN_LINKS}")
        if unknown:
            parts.append("the error of cluster time is unknown" + (" elsewhere" if errors else ""))
    if "wall" in clocks:
        shared = [finding.data for finding in kinds.of("shared_cores")]
        wall = "wall time" if not parts else "elsewhere wall time"
        if shared:
            limit = min(data["limit"] for data in shared)
            parts.append(f"{wall} on shared cores, where no speedup can exceed {limit:.3g}")
            ok = False
        elif lost := {
            row.key: row.without_core
            for row in comparison.rows
            if row.ok and row.clock == "wall" and row.without_core > MAX_CONTENTION
        }:
            run, share = max(lost.items(), key=lambda item: item[1])
            most = f"{percent(share)} of the time in {run}"
            parts.append(f"{wall}; in {count(len(lost), 'run')}, ranks waited for cores, most {most}")
            ok = False
        else:
            parts.append(f"{wall}; ranks shared no cores")
    if missing := kinds.runs("no_cluster_time", "thread_ranks"):
        parts.append(f"{count(missing, 'run')} without a time that compares")
    anchor = kinds.anchor(
        "cluster_time_uncalibrated", "cluster_time", "shared_cores", "no_cluster_time", "thread_ranks"
    )
    return Evidence("Clock", "; ".join(parts), ok, anchor)


def _seeds(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    seeds = [len(group.ok_rows) for group in comparison.groups if group.first.trains and group.ok]
    if not seeds:
        return None
    low, high = min(seeds), max(seeds)
    each = count(high, "seed") if low == high else f"{low} to {count(high, 'seed')}"
    parts = [f"{each} per configuration"]
    if stages := comparison.record.stages:
        parts[0] += f", added until {stages.ended}"
    if high < MIN_SEEDS:
        parts.append(f"with fewer than {MIN_SEEDS}, no difference is claimed")
    enough = (high if comparison.record.stages else low) >= MIN_SEEDS
    for finding in kinds.of("undecided"):
        data = finding.data
        enough = enough and data["undecided"] <= data["decided"]
        parts.append(
            f"{count(data['shown'], 'difference')} shown, {data['likely']} likely, "
            f"{data['undecided']} undecided"
        )
        if needed := data["seeds"]:
            half = needed[(len(needed) - 1) // 2]
            would = sum(one <= half for one in needed)
            parts.append(f"{half} seeds would probably decide {would} of those")
    return Evidence("Seeds", "; ".join(parts), enough, kinds.anchor("undecided", "too_few_seeds"))


def _failures(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    planned, failed = len(comparison.record.keys), len(comparison.failed)
    pending = len(comparison.pending)
    if not planned:
        return None
    if not failed and not pending:
        number = "the only run" if planned == 1 else f"all {count(planned, 'run')}"
        return Evidence("Runs", f"{number} finished", ok=True)
    parts = [f"{failed} failed"] if failed else []
    parts += [f"{pending} pending"] if pending else []
    return Evidence(
        "Runs", f"of {count(planned, 'run')}, {listed(parts)}", False, kinds.anchor("failed", "pending")
    )


def _drift(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    cautions = kinds.of("drift")
    found = [
        (finding.data["interval"], finding.data["factor"]) for finding in [*cautions, *kinds.of("no_drift")]
    ]
    if not found:
        return None
    changed = [each for each in found if not each[0][0] <= 1 <= each[0][1]]
    (low, high), factor = max(changed or found, key=lambda each: abs(each[1] - 1))
    by = f"{factor - 1:+.0%} from the first run to the last ({low - 1:+.0%} to {high - 1:+.0%})"
    by = by.replace("-", "−")
    if not changed:
        text = f"{'undecided' if cautions else 'none shown'}: times changed by {by}"
        return Evidence("Drift", text, not cautions, kinds.anchor("drift", "no_drift"))
    where = f"in {len(changed)} of {len(found)} workloads, times" if len(found) > 1 else "times"
    most = "; the largest change is " if len(changed) > 1 else " by "
    text = f"{where} changed{most}{by}"
    return Evidence("Drift", text, False, kinds.anchor("drift"))


def _learning(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    if not any(row.ok and row.chance_accuracy is not None for row in comparison.rows):
        return None
    if not kinds.of("not_learned"):
        return Evidence("Learning", "every model learned", ok=True)
    rows = {row.key: row for finding in kinds.of("not_learned") for row in finding.rows}.values()
    names = list(dict.fromkeys(row.strategy_label for row in rows))
    return Evidence(
        "Learning",
        f"the final model of {count(len(rows), 'run')} has not learned: {first_few(names, MOST_NAMED)}",
        False,
        kinds.anchor("not_learned"),
    )


def _serial(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    missing, other = kinds.runs("no_serial"), kinds.runs("other_seeds")
    parts = [f"{count(missing, 'run')} without a serial run to compare with"] if missing else []
    parts += [f"{count(other, 'run')} compared with serial runs of other seeds"] if other else []
    if not parts:
        return None
    return Evidence("Serial", "; ".join(parts), False, kinds.anchor("no_serial", "other_seeds"))


def _machines(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    names = [finding.data["condition"] for finding in kinds.of("conditions_differ")]
    parts = [f"runs differ in {first_few(names, MOST_NAMED)}"] if names else []
    if number := kinds.runs("out_of_memory"):
        parts.append(f"{count(number, 'run')} lost processes for lack of memory")
    if number := kinds.runs("link_not_enforced"):
        parts.append(f"{count(number, 'run')} over links that were not enforced")
    if not parts:
        return None
    anchor = kinds.anchor("conditions_differ", "out_of_memory", "link_not_enforced")
    return Evidence("Machines", "; ".join(parts), False, anchor)

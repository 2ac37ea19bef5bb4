"""What a report rests on, one line each: certificates, conditions, the clock, seeds, failures and drift."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, first_few, listed, percent
from orchestrator.report.metrics.fairness import compared_groups
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.drift import Drift
from orchestrator.report.topics.runs import deciding_half
from orchestrator.report.verdict.base import Evidence

MOST_NAMED = 3


def evidence(comparison: Comparison, findings: Sequence[Finding]) -> list[Evidence]:
    """One line for each topic on which the sweep has something to say. Its anchor is that of a finding."""
    kinds = _Kinds(findings)
    views = [comparison.view(workload) for workload in comparison.workloads]
    found = [
        _samples(comparison, kinds),
        _conditions(views, kinds),
        _clock(comparison, views, kinds),
        _seeds(comparison, kinds),
        _failures(comparison, kinds),
        _drift(kinds),
        _learning(comparison, kinds),
        _serial(kinds),
        _machines(kinds),
    ]
    return [line for line in found if line]


class _Kinds:
    """Findings by kind."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._by_kind: dict[str, list[Finding]] = {}
        for finding in findings:
            self._by_kind.setdefault(finding.kind, []).append(finding)

    def of(self, *kinds: str) -> list[Finding]:
        return [finding for kind in kinds for finding in self._by_kind.get(kind, [])]

    def anchor(self, *kinds: str) -> str:
        """The anchor of the first of these kinds that was found."""
        return next((finding.anchor for finding in self.of(*kinds)), "")

    def runs(self, *kinds: str) -> int:
        """How many runs findings of these kinds are about."""
        return len({row.key for finding in self.of(*kinds) for row in finding.rows})


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


def _conditions(views: Sequence[WorkloadView], kinds: _Kinds) -> Evidence | None:
    if not views:
        return None
    unequal = [finding.data["differences"] for finding in kinds.of("conditions_unequal")]
    names, parts = list(dict.fromkeys(name for each in unequal for name in each)), []
    if names:
        verb = "differs" if len(names) == 1 else "differ"
        parts.append(f"{count(len(names), 'condition')} {verb}: {first_few(names, MOST_NAMED)}")
    if kinds.of("scaled_beyond_the_rule"):
        parts.append("learning rates are scaled beyond the rule")
    if not parts and all(len(compared_groups(view)) < 2 for view in views):
        return Evidence("Fairness", "not applicable: there are no two configurations to compare", ok=None)
    if not parts:
        return Evidence("Fairness", "compared configurations have equal conditions", ok=True)
    return Evidence(
        "Fairness", "; ".join(parts), False, kinds.anchor("conditions_unequal", "scaled_beyond_the_rule")
    )


def _clock(comparison: Comparison, views: Sequence[WorkloadView], kinds: _Kinds) -> Evidence | None:
    clocks = {view.clock for view in views if view.groups}
    if not clocks:
        return Evidence("Clock", "not applicable: no run has finished", ok=None) if views else None
    parts, ok = [], True
    if "cluster" in clocks:
        found = kinds.of("cluster_time", "cluster_time_uncalibrated")
        known = [finding for finding in found if finding.data["checked"]]
        unknown = len(known) < len(found)
        ok = not kinds.of("cluster_time_uncalibrated")
        if known:
            worst = max((finding.data for finding in known), key=lambda data: data["worst_error"])
            real = "clocks" in worst
            median, most = (percent(worst[f"{which}_error"]) for which in ("median", "worst"))
            true = "that of real nodes" if real else "wall time"
            parts.append(
                f"cluster time, off {true} by {median} in the median and {most} at most in "
                f"{count(worst['checked'], 'run')}{'' if real else ' with a core for each rank'}"
            )
        # A finding that is the same for several workloads has the runs of all.
        if lacking := sum(
            each.data["of"] * len(each.rows) // each.data["checked"] - len(each.rows)
            for each in known
            if "clocks" in each.data
        ):
            parts.append(f"{count(lacking, 'other run')} could not be checked")
        virtual = any(row.is_virtual for row in comparison.rows)
        sampled = any(row.is_sampled for row in comparison.rows)
        if virtual and (sampled or unknown):
            parts.append(f"cluster time of virtual nodes{' that train nothing' if sampled else ''}")
        if unchecked := sorted({of for each in known for of in each.data.get("unchecked_ranks", ())}):
            ok = False
            parts.append(
                f"runs of {listed([str(ranks) for ranks in unchecked])} ranks could not be checked"
            )
        if not virtual and not any(workload.link for workload in comparison.workloads):
            parts.append(f"exchanges over {OWN_LINKS}")
        if unknown:
            parts.append("the error of cluster time is unknown" + (" elsewhere" if known else ""))
    if "wall" in clocks:
        limits = [finding.data["limit"] for finding in kinds.of("shared_cores")]
        wall = "wall time" if not parts else "elsewhere wall time"
        if limits:
            parts.append(f"{wall} on shared cores, where no speedup can exceed {min(limits):.3g}")
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
    enough = (high if stages else low) >= MIN_SEEDS and not (stages and stages.out_of_budget)
    for data in [finding.data for finding in kinds.of("undecided")]:
        shown, likely, undecided = data["shown"], data["likely"], data["undecided"]
        enough = enough and undecided <= shown + likely
        parts.append(f"{count(shown, 'difference')} shown, {likely} likely, {undecided} undecided")
        if half := deciding_half(data["seeds"]):
            parts.append("{} seeds would probably decide {} of those".format(*half))
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


def _drift(kinds: _Kinds) -> Evidence | None:
    found = [
        Drift(data["factor"], low, high, data["span_s"])
        for data in (each.data for each in kinds.of("drift", "no_drift"))
        for low, high in [data["interval"]]
    ]
    if not found:
        return None
    changed = [drift for drift in found if drift.shown]
    most = max(changed or found, key=lambda drift: abs(drift.factor - 1))
    factor, low, high = (f"{each - 1:+.0%}" for each in (most.factor, most.low, most.high))
    by = f"{factor} from the first run to the last ({low} to {high})".replace("-", "−")
    if not changed:
        wide = any(drift.wide for drift in found)
        text = f"{'undecided' if wide else 'none shown'}: times changed by {by}"
        return Evidence("Drift", text, not wide, kinds.anchor("drift", "no_drift"))
    where = f"in {len(changed)} of {len(found)} workloads, times" if len(found) > 1 else "times"
    largest = "; the largest change is " if len(changed) > 1 else " by "
    text = f"{where} changed{largest}{by}"
    return Evidence("Drift", text, False, kinds.anchor("drift"))


def _learning(comparison: Comparison, kinds: _Kinds) -> Evidence | None:
    if not any(row.ok and row.chance_accuracy is not None for row in comparison.rows):
        return None
    if not kinds.of("not_learned"):
        return Evidence("Learning", "every model learned", ok=True)
    rows = [row for finding in kinds.of("not_learned") for row in finding.rows]
    names = list(dict.fromkeys(row.strategy_label for row in rows))
    runs = count(kinds.runs("not_learned"), "run")
    text = f"the final model of {runs} has not learned: {first_few(names, MOST_NAMED)}"
    return Evidence("Learning", text, False, kinds.anchor("not_learned"))


def _serial(kinds: _Kinds) -> Evidence | None:
    missing, other = kinds.runs("no_serial"), kinds.runs("other_seeds")
    parts = [f"{count(missing, 'run')} without a serial run to compare with"] if missing else []
    parts += [f"{count(other, 'run')} compared with serial runs of other seeds"] if other else []
    if not parts:
        return None
    return Evidence("Serial", "; ".join(parts), False, kinds.anchor("no_serial", "other_seeds"))


def _machines(kinds: _Kinds) -> Evidence | None:
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

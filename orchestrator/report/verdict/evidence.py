"""What a report rests on, one line each: certificates, conditions, the clock, seeds, failures and drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, first_few, listed, percent
from orchestrator.report.metrics.fairness import compared_groups
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.drift import Drift

MOST_NAMED = 3
MARKS = {"ok": "✓", "limited": "!", "inapplicable": "–"}


@dataclass(frozen=True)
class Evidence:
    """One line on what the report rests on."""

    topic: str  # a word or two
    text: str
    ok: bool | None  # False if it limits what may be concluded; None if there is nothing to check
    anchor: str = ""  # that of the finding with the full text

    @property
    def state(self) -> str:
        """`ok`, `limited` or `inapplicable`."""
        return "inapplicable" if self.ok is None else "ok" if self.ok else "limited"

    @property
    def mark(self) -> str:
        return MARKS[self.state]


def evidence(comparison: Comparison, findings: Sequence[Finding]) -> list[Evidence]:
    """One line for each topic on which the sweep has something to say. Its anchor is that of a finding."""
    lines = _Lines(comparison, findings)
    found = [
        lines.samples(),
        lines.conditions(),
        lines.clock(),
        lines.seeds(),
        lines.failures(),
        lines.drift(),
        lines.learning(),
        lines.serial(),
        lines.machines(),
    ]
    return [line for line in found if line]


class _Lines:
    def __init__(self, comparison: Comparison, findings: Sequence[Finding]) -> None:
        self._comparison, self._findings = comparison, findings
        self._views = [comparison.view(workload) for workload in comparison.workloads]

    def _of(self, *kinds: str) -> list[Finding]:
        return [each for kind in kinds for each in self._findings if each.kind == kind]

    def _data(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [finding.data for finding in self._of(*kinds)]

    def _runs(self, text: str, *kinds: str) -> str:
        """The text, with the number of runs that findings of these kinds are about; empty without any."""
        runs = len({row.key for finding in self._of(*kinds) for row in finding.rows})
        return text.format(count(runs, "run")) if runs else ""

    def _line(self, topic: str, parts: Sequence[str], ok: bool, *kinds: str) -> Evidence | None:
        """The parts that are not empty, with the anchor of the first of these kinds that was found."""
        anchor = next((finding.anchor for finding in self._of(*kinds)), "")
        text = "; ".join(filter(None, parts))
        return Evidence(topic, text, ok, anchor) if text else None

    def samples(self) -> Evidence | None:
        known = [row.verified for row in self._comparison.rows if row.verified is not None]
        if not known:
            return None
        verified = f"verified in {sum(known):,} of {count(len(known), 'run')}"
        differing = self._runs("the replicas of {} differ", "replicas_differ")
        ok = all(known) and not differing
        return self._line("Samples", [verified, differing], ok, "not_verified", "replicas_differ")

    def conditions(self) -> Evidence | None:
        if not self._views:
            return None
        unequal = [data["differences"] for data in self._data("conditions_unequal")]
        names = list(dict.fromkeys(name for each in unequal for name in each))
        parts = []
        if names:
            verb = "differs" if len(names) == 1 else "differ"
            parts.append(f"{count(len(names), 'condition')} {verb}: {first_few(names, MOST_NAMED)}")
        if self._of("scaled_beyond_the_rule"):
            parts.append("learning rates are scaled beyond the rule")
        if not parts and all(len(compared_groups(view)) < 2 for view in self._views):
            text = "not applicable: there are no two configurations to compare"
            return Evidence("Fairness", text, ok=None)
        equal = "" if parts else "compared configurations have equal conditions"
        kinds = ("conditions_unequal", "scaled_beyond_the_rule")
        return self._line("Fairness", [*parts, equal], not parts, *kinds)

    def clock(self) -> Evidence | None:
        clocks = {view.clock for view in self._views if view.groups}
        if not clocks:
            text = "not applicable: no run has finished"
            return Evidence("Clock", text, ok=None) if self._views else None
        parts: list[str] = []
        ok = True
        if "cluster" in clocks:
            parts, unchecked = self._cluster_time()
            ok = not unchecked and not self._of("cluster_time_uncalibrated")
        if "wall" in clocks:
            limits = [data["limit"] for data in self._data("shared_cores")]
            lost = {
                row.key: row.without_core
                for row in self._comparison.rows
                if row.ok and row.clock == "wall" and row.without_core > MAX_CONTENTION
            }
            wall = "elsewhere wall time" if parts else "wall time"
            if limits:
                wall += f" on shared cores, where no speedup can exceed {min(limits):.3g}"
            elif lost:
                run = max(lost, key=lambda key: lost[key])
                most = f"{percent(lost[run])} of the time in {run}"
                wall += f"; in {count(len(lost), 'run')}, ranks waited for cores, most {most}"
            else:
                wall += "; ranks shared no cores"
            parts, ok = [*parts, wall], ok and not limits and not lost
        parts.append(self._runs("{} without a time that compares", "no_cluster_time", "thread_ranks"))
        kinds = ("cluster_time_uncalibrated", "cluster_time", "shared_cores")
        return self._line("Clock", parts, ok, *kinds, "no_cluster_time", "thread_ranks")

    def _cluster_time(self) -> tuple[list[str], bool]:
        """How far cluster time is off, and whether ranks that shared cores could not be checked."""
        found = self._data("cluster_time", "cluster_time_uncalibrated")
        known = [data for data in found if data["checked"]]
        unknown = len(known) < len(found)
        virtual = any(row.is_virtual for row in self._comparison.rows)
        sampled = any(row.is_sampled for row in self._comparison.rows)
        parts = []
        if known:
            worst = max(known, key=lambda data: data["worst_error"])
            median, most = percent(worst["median_error"]), percent(worst["worst_error"])
            real, runs = "clocks" in worst, count(worst["checked"], "run")
            parts.append(
                f"cluster time, off {'that of real nodes' if real else 'wall time'} by {median} in the "
                f"median and {most} at most in {runs}{'' if real else ' with a core for each rank'}"
            )
        # A finding that is the same for several workloads has the runs of all.
        if lacking := sum(
            each.data["of"] * len(each.rows) // each.data["checked"] - len(each.rows)
            for each in self._of("cluster_time", "cluster_time_uncalibrated")
            if each.data["checked"] and "clocks" in each.data
        ):
            parts.append(f"{count(lacking, 'other run')} could not be checked")
        if virtual and (sampled or unknown):
            parts.append(f"cluster time of virtual nodes{' that train nothing' if sampled else ''}")
        unchecked = sorted({ranks for data in known for ranks in data.get("unchecked_ranks", ())})
        if unchecked:
            parts.append(f"runs of {listed([*map(str, unchecked)])} ranks could not be checked")
        if not virtual and not any(workload.link for workload in self._comparison.workloads):
            parts.append(f"exchanges over {OWN_LINKS}")
        if unknown:
            parts.append("the error of cluster time is unknown" + (" elsewhere" if known else ""))
        return parts, bool(unchecked)

    def seeds(self) -> Evidence | None:
        groups = [group for group in self._comparison.groups if group.first.trains and group.ok]
        if not groups:
            return None
        seeds = [len(group.ok_rows) for group in groups]
        low, high = min(seeds), max(seeds)
        stages = self._comparison.record.stages
        each = count(high, "seed") if low == high else f"{low} to {count(high, 'seed')}"
        parts = [f"{each} per configuration{f', added until {stages.ended}' if stages else ''}"]
        if high < MIN_SEEDS:
            parts.append(f"with fewer than {MIN_SEEDS}, no difference is claimed")
        enough = (high if stages else low) >= MIN_SEEDS and not (stages and stages.out_of_budget)
        for data in self._data("undecided"):
            shown, likely, undecided = data["shown"], data["likely"], data["undecided"]
            enough = enough and undecided <= shown + likely
            parts.append(f"{count(shown, 'difference')} shown, {likely} likely, {undecided} undecided")
            if data["half"]:
                parts.append("{} seeds would probably decide {} of those".format(*data["half"]))
        return self._line("Seeds", parts, enough, "undecided", "too_few_seeds")

    def failures(self) -> Evidence | None:
        planned = len(self._comparison.record.keys)
        missing = {"failed": len(self._comparison.failed), "pending": len(self._comparison.pending)}
        lacking = [f"{number} {kind}" for kind, number in missing.items() if number]
        if lacking:
            text = f"of {count(planned, 'run')}, {listed(lacking)}"
        elif planned:
            all_runs = f"all {count(planned, 'run')}"
            text = f"{'the only run' if planned == 1 else all_runs} finished"
        else:
            return None
        return self._line("Runs", [text], not lacking, *missing)

    def drift(self) -> Evidence | None:
        found = [
            Drift(data["factor"], low, high, data["span_s"])
            for data in self._data("drift", "no_drift")
            for low, high in [data["interval"]]
        ]
        if not found:
            return None
        changed = [drift for drift in found if drift.shown]
        most = max(changed or found, key=lambda drift: abs(drift.factor - 1))
        factor, low, high = (f"{each - 1:+.0%}" for each in (most.factor, most.low, most.high))
        by = f"{factor} from the first run to the last ({low} to {high})".replace("-", "−")
        if changed:
            where = f"in {len(changed)} of {len(found)} workloads, times" if len(found) > 1 else "times"
            largest = "; the largest change is " if len(changed) > 1 else " by "
            return self._line("Drift", [f"{where} changed{largest}{by}"], False, "drift")
        wide = any(drift.wide for drift in found)
        text = f"{'undecided' if wide else 'none shown'}: times changed by {by}"
        return self._line("Drift", [text], not wide, "drift", "no_drift")

    def learning(self) -> Evidence | None:
        if not any(row.ok and row.chance_accuracy is not None for row in self._comparison.rows):
            return None
        rows = [row for finding in self._of("not_learned") for row in finding.rows]
        if not rows:
            return Evidence("Learning", "every model learned", ok=True)
        names = list(dict.fromkeys(row.strategy_label for row in rows))
        runs = self._runs("{}", "not_learned")
        text = f"the final model of {runs} has not learned: {first_few(names, MOST_NAMED)}"
        return self._line("Learning", [text], False, "not_learned")

    def serial(self) -> Evidence | None:
        parts = [
            self._runs("{} without a serial run to compare with", "no_serial"),
            self._runs("{} compared with serial runs of other seeds", "other_seeds"),
        ]
        return self._line("Serial", parts, False, "no_serial", "other_seeds")

    def machines(self) -> Evidence | None:
        names = [data["condition"] for data in self._data("conditions_differ")]
        parts = [
            f"runs differ in {first_few(names, MOST_NAMED)}" if names else "",
            self._runs("{} lost processes for lack of memory", "out_of_memory"),
            self._runs("{} over links that were not enforced", "link_not_enforced"),
        ]
        kinds = ("conditions_differ", "out_of_memory", "link_not_enforced")
        return self._line("Machines", parts, False, *kinds)

"""The verdict on a workload with faults: what they cost each configuration."""

from __future__ import annotations

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.formats import percent, ratio
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.topics.faults import fault_costs
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.options import MOST, option


def under_faults(view: WorkloadView, comparison: Comparison, claims: Claims) -> Verdict:
    """What faults cost, the least time first; configurations with faults are not compared."""
    keys = {group.first.key for group in view.groups}
    costs = [
        (found, cost.group, cost.undisturbed)
        for cost in fault_costs(comparison)
        if cost.undisturbed
        and cost.group.first.key in keys
        and (found := claims.between(Q.elapsed_s, cost.group, cost.undisturbed))
    ]
    if not costs:
        return Verdict(
            view.workload,
            "What the faults cost is unknown: no configuration finished both with and without them.",
            "No choice is claimed.",
            decided=False,
        )
    costs.sort(key=lambda cost: cost[0].values[0] / cost[0].values[1])
    least, most = costs[0], costs[-1]
    if most is least:
        text = f"{view.name(least[1])} took {_cost(*least)}"
    else:
        text = (
            f"{view.name(least[1])} was measured to lose least time, {_cost(*least)}; "
            f"{view.name(most[1])} to lose most, {_cost(*most)}"
        )
    certainty = (
        "Each configuration is compared with its own runs without faults. Those with faults are not "
        "compared with each other, so no choice is claimed."
    )
    options = tuple(option(view, group, claims, Q.elapsed_s) for _, group, _ in costs[:MOST])
    return Verdict(view.workload, f"Under {view.workload.faults}, {text}.", certainty, False, options)


def _cost(found: Compared, group: Group, undisturbed: Group) -> str:
    """`1.52 times as long (1.40 to 1.70), at 88.0% accuracy instead of 89.0%`."""
    bounds = ""
    if found.interval:
        low, high = map(Q.elapsed_s.write_bound, found.interval)
        bounds = f" ({low} to {high}{found.certainty})"
    text = f"{ratio(found.values[0] / found.values[1])} times as long{bounds}"
    if not Q.accuracy.sample(group) or not Q.accuracy.sample(undisturbed):
        return text
    own, other = (percent(Q.accuracy.mean_of(each)) for each in (group, undisturbed))
    return f"{text}, at {own} accuracy" + ("" if own == other else f" instead of {other}")

"""Short names of workloads: what they have in common is said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities.links import OWN_LINKS

# Names of a workload that has only what all have.
AS_STATED = "no further conditions"


@dataclass(frozen=True)
class WorkloadNames:
    """shared: what all workloads have in common; empty if there is one. own: what else each has."""

    shared: str
    own: dict[Workload, str]

    def of(self, workload: Workload) -> str:
        """What else a workload has. A finding may be about one whose runs belong to several workloads."""
        return self.own.get(workload, workload.label)


def workload_names(workloads: Sequence[Workload]) -> WorkloadNames:
    """The names of a sweep's workloads. A single one needs none."""
    labels = [workload.label for workload in workloads]
    if len(labels) < 2:
        return WorkloadNames("", dict.fromkeys(workloads, ""))
    columns = zip(*(f"{label}, " for label in labels), strict=False)
    shared = "".join(column[0] for column in takewhile(lambda column: len({*column}) == 1, columns))
    shared = shared[: shared.rfind(", ") + 1].rstrip(", ")
    over_links = any(workload.link for workload in workloads)
    own = [
        label.removeprefix(shared).removeprefix(", ")
        or (OWN_LINKS if over_links and not workload.link else AS_STATED)
        for workload, label in zip(workloads, labels, strict=True)
    ]
    return WorkloadNames(shared, dict(zip(workloads, own, strict=True)))

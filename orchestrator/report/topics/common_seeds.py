"""Common seeds: accuracies that are estimated on seeds which a configuration does not have."""

from __future__ import annotations

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.formats import percent
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic


def common_seeds(view: WorkloadView) -> Findings:
    """Configurations whose mean accuracy on the seeds of all is another one than that on their own."""
    found = []
    for group in view.groups:
        own = Q.accuracy.values(group)
        if own and percent(Q.accuracy.mean(own)) != percent(Q.accuracy.mean_of(group)):
            found.append((group, own))
    if not found:
        return
    yield Finding(
        "common_seeds",
        evidence([group for group, _ in found]),
        {
            "configurations": [view.name_on(group) for group, _ in found],
            "accuracy": [Q.accuracy.mean_of(group) for group, _ in found],
            "own_accuracy": [Q.accuracy.mean(own) for _, own in found],
            "runs": [[row.key for row in group.ok_rows] for group, _ in found],
        },
    )


TOPIC = Topic(rules_with_faults=(common_seeds,))

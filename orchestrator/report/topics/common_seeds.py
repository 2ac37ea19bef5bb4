"""Common seeds: accuracies that are estimated on seeds which a configuration does not have."""

from __future__ import annotations

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import percent
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic


def common_seeds(view: WorkloadView) -> Findings:
    """Configurations whose mean accuracy on the seeds of all is another one than that on their own."""
    known = [(group, Q.accuracy.values(group)) for group in view.groups if Q.accuracy.values(group)]
    means = [(group, Q.accuracy.mean_of(group), Q.accuracy.mean(own)) for group, own in known]
    found = [(group, mean, own) for group, mean, own in means if percent(mean) != percent(own)]
    if found:
        groups, accuracy, own_accuracy = zip(*found, strict=True)
        yield Finding.of(
            "common_seeds",
            groups,
            configurations=[*map(view.name_on, groups)],
            accuracy=accuracy,
            own_accuracy=own_accuracy,
            runs=[[row.key for row in group.ok_rows] for group in groups],
        )


TOPIC = Topic(rules_with_faults=(common_seeds,))

"""The means of configurations with their errors, for all comparisons and choices of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt

from orchestrator.report.metrics.clock import error_of_difference
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.moderated import Estimate, Sample, moderated
from orchestrator.report.statistics.seed_effect import pairing_helps, without_seed_effect

# By how much the time of a configuration differs if a sweep is repeated minutes later on a quiet machine:
# the standard deviation of its logarithm. Measured with tests/bench/sessions.py of commit d1f43bb7.
BETWEEN_SESSIONS = 0.027
LEAST_SEEDS = 2  # of an estimate

Sampling = Callable[[Quantity, Group], Sample]


def clock_errors(comparison: Comparison) -> dict[Workload, float]:
    """The relative error of a difference of cluster times, by workload.

    Runs on one node are compared over each link, and so have the largest error over all of them.
    """
    errors: dict[Workload, float] = {}
    for view in map(comparison.view, comparison.workloads):
        error = error_of_difference(view)
        for workload in (view.workload, view.workload.without_links):
            errors[workload] = max(error, errors.get(workload, 0.0))
    return errors


def estimates(
    quantity: Quantity,
    groups: Sequence[Group],
    errors: Mapping[Workload, float],
    sample: Sampling = Quantity.sample,
) -> list[Estimate]:
    """The means over seeds of configurations that share their variance, on the quantity's scale.

    Their differences are more certain than the spread over seeds suggests if a seed adds the same to all:
    such an effect is left out.

    Args:
        groups: each with at least LEAST_SEEDS values.
        errors: the relative error of a difference of cluster times, by workload. It is in the error of the
            means of times, as are the differences between sessions: neither becomes smaller with seeds.
        sample: the values of a group by seed.
    """
    samples, own_dof = [sample(quantity, group) for group in groups], 1.0
    if pairing_helps(samples):
        samples, own_dof = without_seed_effect(samples), 1 - 1 / len(samples)
    resolution = max(quantity.resolution(row) for group in groups for row in group.ok_rows)
    found = moderated(samples, resolution, own_dof)
    if not quantity.timed:
        return found
    return [_between(each, group, errors) for each, group in zip(found, groups, strict=True)]


def _between(estimate: Estimate, group: Group, errors: Mapping[Workload, float]) -> Estimate:
    error = errors.get(group.workload, 0.0) if group.first.clock == "cluster" else 0.0
    return replace(estimate, between=hypot(BETWEEN_SESSIONS, error / sqrt(2)) ** 2)

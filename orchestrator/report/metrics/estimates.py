"""The means of configurations with their errors, for all comparisons and choices of a report."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt
from statistics import fmean

from orchestrator.report.metrics.clock import error_of_difference
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.common_seeds import SeedFit
from orchestrator.report.statistics.moderated import Estimate, Sample, moderated

# By how much the time of a configuration differs if a sweep is repeated minutes later on a quiet machine:
# the standard deviation of its logarithm. Measured with tests/bench/sessions.py of commit d1f43bb7.
BETWEEN_SESSIONS = 0.027
LEAST_SEEDS = 2  # of an estimate


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
    quantity: Quantity, groups: Sequence[Group], errors: Mapping[Workload, float]
) -> list[Estimate]:
    """The means over seeds of configurations that share their variance, on the quantity's scale.

    Their differences are more certain than the spread over seeds suggests if a seed adds the same to all:
    such an effect is left out. It is that on these configurations if they have the same seeds, and
    otherwise, if seeds determine the quantity, that on all that it was fitted to.

    Args:
        groups: each with at least LEAST_SEEDS values.
        errors: the relative error of a difference of cluster times, by workload. It is in the error of the
            means of times, as are the differences between sessions: neither becomes smaller with seeds.
    """
    samples = [quantity.sample(group) for group in groups]
    alone = SeedFit(dict(enumerate(samples)))
    fits = [(alone, at) if alone.balanced else quantity.fit(group) for at, group in enumerate(groups)]
    freed = [_without_seeds(*each) for each in zip(samples, fits, strict=True)]
    resolution = max(quantity.resolution(row) for group in groups for row in group.ok_rows)
    found = moderated([sample for sample, _ in freed], resolution, [own_dof for _, own_dof in freed])
    found = [
        replace(each, shifted={id(fit[0]): fit[0].shift_errors(fit[1])} if fit else {})
        for each, fit in zip(found, fits, strict=True)
    ]
    if not quantity.timed:
        return found
    return [_between(each, group, errors) for each, group in zip(found, groups, strict=True)]


def _without_seeds(sample: Sample, fit: tuple[SeedFit, Hashable] | None) -> tuple[Sample, float]:
    """A sample without what seeds add to all, if they do, and its degrees of freedom per further seed."""
    if fit is None or not fit[0].pairing_helps:
        return sample, 1.0
    left, own_dof = fit[0].residuals(fit[1])
    mean = fmean(sample.values())
    return {seed: mean + each for seed, each in left.items()}, own_dof


def _between(estimate: Estimate, group: Group, errors: Mapping[Workload, float]) -> Estimate:
    error = errors.get(group.workload, 0.0) if group.first.clock == "cluster" else 0.0
    return replace(estimate, between=hypot(BETWEEN_SESSIONS, error / sqrt(2)) ** 2)

"""Noise scale: what a global batch costs in samples, and what it saves in steps.

With B samples a step, a loss takes E = E_min (1 + B/C) samples in S = S_min (1 + C/B) steps, where C, the
critical batch, is about the gradient noise scale (McCandlish et al. 2018, Sec. 2.3).
"""

from __future__ import annotations

from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.quantities import Q
from orchestrator.report.topics.topic import Findings, Topic

MIN_STEPS = 50  # of a run: the noise scale is a ratio of two noisy sums
MOST_WIDE = 4.0  # the ratio of an interval's bounds from which on it says little


def noise_scale(view: WorkloadView) -> Findings:
    """The batch of the configuration whose noise scale is known best, by the critical batch."""
    found = [
        (bounds[1] / bounds[0], bounds, group)
        for group in view.candidates
        if group.learned
        and (bounds := Q.noise_scale_samples.interval(group))
        and min(row.steps or 0 for row in group.ok_rows) >= MIN_STEPS
    ]
    known = [each for each in found if each[0] < MOST_WIDE]
    if not known:
        return
    _, bounds, group = min(known, key=lambda each: each[0])
    run, critical = group.first.run, Q.noise_scale_samples.mean_of(group)
    batch = run.batch_per_replica * run.num_replicas
    yield Finding.of(
        "noise_scale",
        [group],
        strategy=view.name_on(group),
        seeds=len(group.ok_rows),
        batch=batch,
        critical_batch=critical,
        interval=bounds,
        samples=1 + batch / critical,
        samples_interval=sorted(1 + batch / bound for bound in bounds),
        steps=1 + critical / batch,
    )


TOPIC = Topic(rules=(noise_scale,))

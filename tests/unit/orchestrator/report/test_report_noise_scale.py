"""Mistakes in the noise scale of a report: what is added and divided, why it is absent, what it says."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest

from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import Q
from orchestrator.report.render.columns import columns_of
from orchestrator.report.statistics.spread import geometric_interval, t_quantile
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    cells,
    finding_of,
    findings_of,
    on_360_images,
    with_epochs,
)

SCALES = (90.0, 100.0, 110.0)
RUN: dict[str, Any] = {"nodes": 2, "batch_size": 64, "noise_scale": True}


def measured(noise: float, signal: float = 1.0, **fields: Any) -> RunResult:
    """A run whose ranks have unequal parts of these sums, of which one is negative."""
    run = a_run(**{"strategy": "all_reduce", **RUN, **fields})
    share = {(0, 1): 2.0, (0, 2): 0.5, (1, 1): -1.5, (1, 2): 0.0}
    return with_epochs(
        run,
        lambda point: {
            "gradient_noise": noise * share[point.rank, point.epoch],
            "gradient_signal": signal * (1.0 if (point.rank, point.epoch) == (1, 2) else 0.0),
        },
    )


def runs_of(scales: Sequence[float], **fields: Any) -> list[RunResult]:
    return [measured(scale, seed=seed, **fields) for seed, scale in enumerate(scales)]


def over_seeds(*scales: float, **fields: Any) -> Comparison:
    return a_comparison(*runs_of(scales, **fields))


def test_a_noise_scale_is_the_ratio_of_the_sums_of_all_ranks_and_epochs() -> None:
    (row,) = a_comparison(measured(90.0, 0.5)).rows
    assert Q.noise_scale_samples.of(row) == pytest.approx(180.0)
    group = over_seeds(*SCALES).groups[0]
    assert Q.noise_scale_samples.mean_of(group) == pytest.approx(np.prod(SCALES) ** (1 / 3))
    logs = [log(scale) for scale in SCALES]
    half = t_quantile(2) * np.std(logs, ddof=1) / sqrt(3)
    low, high = Q.noise_scale_samples.interval(group) or (0.0, 0.0)
    assert (low, high) == pytest.approx((exp(np.mean(logs) - half), exp(np.mean(logs) + half)))
    assert geometric_interval(SCALES[:2]) is None


def test_a_missing_noise_scale_has_its_reason() -> None:
    for run, reason in (
        (measured(90.0, -1.0), "not above"),
        (measured(-90.0, 1.0), "not above"),
        (a_run("all_reduce", **RUN), "–"),
        (a_run("local_sgd", **RUN), "this strategy"),
        (a_run(noise_scale=True), "one replica"),
    ):
        (row,) = a_comparison(run).rows
        assert Q.noise_scale_samples.of(row) is None
        assert reason in Q.noise_scale_samples.missing(row)
    both = a_comparison(measured(90.0), a_run("local_sgd", **RUN)).groups
    shown = [each["noise_scale_samples"] for each in cells(columns_of("results"), both)]
    assert shown == ["90.0", Q.noise_scale_samples.missing(both[1].first)]
    one_rank_lacks_it = measured(90.0)
    one_rank_lacks_it.epochs[0] = one_rank_lacks_it.epochs[0].model_copy(update={"gradient_noise": None})
    assert Q.noise_scale_samples.of(a_comparison(one_rank_lacks_it).rows[0]) is None


def test_the_batch_of_a_step_is_weighed_by_the_critical_batch() -> None:
    data = finding_of(over_seeds(*SCALES), "noise_scale").data
    critical = np.prod(SCALES) ** (1 / 3)
    low, high = data["interval"]
    assert (data["batch"], data["seeds"]) == (128, 3)
    assert data["critical_batch"] == pytest.approx(critical)
    assert data["samples"] == pytest.approx(1 + 128 / critical)
    assert data["samples_interval"] == pytest.approx([1 + 128 / high, 1 + 128 / low])
    assert data["steps"] == pytest.approx(1 + critical / 128)
    in_all = finding_of(over_seeds(*SCALES, batch_per="run"), "noise_scale").data
    assert in_all["batch"] == 64


def test_little_is_not_said() -> None:
    for few in (
        over_seeds(*SCALES[:2]),
        over_seeds(1.0, 100.0, 10_000.0),
        over_seeds(*SCALES, steps=49),
        over_seeds(*SCALES, -1.0),
        a_comparison(*(on_360_images(run) for run in runs_of(SCALES, accuracy=0.11))),
    ):
        assert findings_of(few, "noise_scale") == []

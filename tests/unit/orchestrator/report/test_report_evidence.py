"""Mistakes in what a report rests on: limits that are not said, which of several counts, dead links."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.topics import asked_by, find
from orchestrator.report.verdict import Evidence, evidence
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run, around, in_cluster_time, repeated, verdicts_of

EQUAL: dict[str, Any] = {"batch_size": 32, "batch_per": "run"}
FAILED: dict[str, Any] = {"status": "failed", "cause": "it crashed"}
# Runs without a caution but what is undecided.
SOUND = [
    *repeated("serial", around(8.0, 0.05), **EQUAL),
    *repeated("all_reduce", around(4.0, 0.05), nodes=2, **EQUAL),
]


def lines(*results: RunResult, **fields: Any) -> dict[str, Evidence]:
    """The lines by topic. What limits conclusions has the anchor of a finding."""
    comparison = a_comparison(*results, **fields)
    claims = asked_by(comparison).decided()
    findings = find(comparison, claims)
    found = evidence(comparison, findings, claims)
    assert {line.anchor for line in found if line.ok is False} <= {finding.anchor for finding in findings}
    return {line.topic: line for line in found}


def test_a_sound_sweep() -> None:
    found = lines(*SOUND)
    assert {topic: line.ok for topic, line in found.items()} == dict.fromkeys(
        ("Samples", "Fairness", "Clock", "Seeds", "Runs"), True
    )
    assert "10" in found["Samples"].text


@pytest.mark.parametrize(
    ("changed", "topic", "anchor"),
    [
        ({"verified": False}, "Samples", "finding-not_verified"),
        ({"digests": ["one", "other"]}, "Samples", "finding-replicas_differ"),
        (FAILED, "Runs", "finding-failed"),
        ({"samples": 300}, "Fairness", "finding-conditions_unequal"),
        ({"cores": 1}, "Clock", "finding-shared_cores"),
        ({}, "Seeds", "finding-too_few_seeds"),  # of one configuration
    ],
)
def test_what_limits_conclusions_links_to_its_finding(
    changed: dict[str, Any], topic: str, anchor: str
) -> None:
    line = lines(*SOUND, a_run("ddp", nodes=2, train_s=5.0, **EQUAL, **changed))[topic]
    assert (line.ok, line.anchor) == (False, anchor)


@pytest.mark.parametrize("more", [{}, {"target_accuracy": 0.8}], ids=["no target", "target"])
def test_nothing_is_checked_over_runs_that_did_not_finish(more: dict[str, Any]) -> None:
    results = [a_run(**FAILED, **more), a_run("all_reduce", nodes=2, **FAILED, **more)]
    states = {"Fairness": "inapplicable", "Clock": "inapplicable", "Runs": "limited"}
    assert {topic: line.state for topic, line in lines(*results).items()} == states
    (verdict,) = verdicts_of(a_comparison(*results))
    assert "serial" not in verdict.headline
    assert not verdict.decided
    one = lines(a_run(), a_run("ddp", nodes=2, **FAILED))
    assert (one["Fairness"].state, one["Clock"].state) == ("inapplicable", "ok")


def test_the_clock_is_that_of_workloads_with_a_time() -> None:
    cluster, failed = a_run("all_reduce", nodes=2, cores=1), a_run("all_reduce", nodes=2, lr=0.01, **FAILED)
    found = lines(cluster, failed, clusters=[in_cluster_time(cluster, 4.0)])
    assert "wall time;" not in found["Clock"].text


def test_pending_runs_are_not_finished() -> None:
    line = lines(*SOUND, pending=["ddp-gloo-n2-s0-0"])["Runs"]
    assert (line.ok, line.anchor) == (False, "finding-pending")


def test_the_largest_drift_is_shown_whether_times_grow_or_fall() -> None:
    results = [
        run.model_copy(update={"started_at": 100.0 * run.run.seed})
        for lr, factor in ((0.1, 0.5), (0.2, 1.3))  # two workloads
        for run in repeated("all_reduce", [factor ** (at / 8) for at in range(9)], nodes=2, lr=lr)
    ]
    line = lines(*results)["Drift"]
    assert "in 2 of 2 workloads, times changed; the largest change is −50%" in line.text
    assert (line.ok, line.anchor) == (False, "finding-drift")

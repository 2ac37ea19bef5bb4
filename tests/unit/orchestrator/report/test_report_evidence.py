"""Evidence: one line per topic, whether it limits the conclusions, and where its full text is."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.findings.base import KINDS, Finding
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.topics import asked_by, find
from orchestrator.report.verdict import Evidence, evidence
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_golden import golden_comparison
from tests.unit.report_support import a_comparison, a_run, around, in_cluster_time, repeated, verdicts_of


def lines(comparison: Comparison) -> dict[str, Evidence]:
    return {line.topic: line for line in evidence_of(comparison)[0]}


def evidence_of(comparison: Comparison) -> tuple[list[Evidence], list[Finding]]:
    claims = asked_by(comparison).decided()
    findings = find(comparison, claims)
    return evidence(comparison, findings, claims), findings


def sound() -> list[RunResult]:
    """Runs without a caution but what is undecided."""
    fields: dict[str, Any] = {"batch_size": 32, "batch_per": "run"}
    return [
        *repeated("serial", around(8.0, 0.05), **fields),
        *repeated("all_reduce", around(4.0, 0.05), nodes=2, **fields),
    ]


def test_a_sound_sweep() -> None:
    found = lines(a_comparison(*sound()))
    assert {topic: line.ok for topic, line in found.items()} == {
        "Samples": True,
        "Fairness": True,
        "Clock": True,
        "Seeds": True,
        "Runs": True,
    }
    assert "10" in found["Samples"].text


@pytest.mark.parametrize(
    ("changed", "topic", "anchor"),
    [
        ({"verified": False}, "Samples", "finding-not_verified"),
        ({"digests": ["one", "other"]}, "Samples", "finding-replicas_differ"),
        ({"status": "failed", "cause": "it crashed"}, "Runs", "finding-failed"),
        ({"samples": 300}, "Fairness", "finding-conditions_unequal"),
        ({"cores": 1}, "Clock", "finding-shared_cores"),
    ],
)
def test_what_limits_conclusions_links_to_its_finding(
    changed: dict[str, Any], topic: str, anchor: str
) -> None:
    other = a_run("ddp", nodes=2, batch_size=32, batch_per="run", train_s=5.0, **changed)
    line = lines(a_comparison(*sound(), other))[topic]
    assert (line.ok, line.anchor) == (False, anchor)


FAILED: dict[str, Any] = {"status": "failed", "cause": "it crashed"}


@pytest.mark.parametrize("more", [{}, {"target_accuracy": 0.8}], ids=["no target", "target"])
def test_nothing_is_checked_over_runs_that_did_not_finish(more: dict[str, Any]) -> None:
    comparison = a_comparison(a_run(**FAILED, **more), a_run("all_reduce", nodes=2, **FAILED, **more))
    found = lines(comparison)
    assert {topic: line.state for topic, line in found.items()} == {
        "Fairness": "inapplicable",
        "Clock": "inapplicable",
        "Runs": "limited",
    }
    (verdict,) = verdicts_of(comparison)
    assert "serial" not in verdict.headline
    assert not verdict.decided


def test_one_configuration_has_no_equal_conditions() -> None:
    for finished in (a_run(), a_run("all_reduce", nodes=2)):
        failed = a_run("ddp", nodes=2, **FAILED)
        found = lines(a_comparison(finished, failed))
        assert (found["Fairness"].state, found["Clock"].state) == ("inapplicable", "ok")


def test_the_clock_is_that_of_workloads_with_a_time() -> None:
    cluster = a_run("all_reduce", nodes=2, cores=1)
    failed = a_run("all_reduce", nodes=2, lr=0.01, **FAILED)
    found = lines(a_comparison(cluster, failed, clusters=[in_cluster_time(cluster, 4.0)]))
    assert "wall time;" not in found["Clock"].text


def test_pending_runs_and_few_seeds() -> None:
    found = lines(a_comparison(*sound()[:2], *sound()[5:7], pending=["ddp-gloo-n2-s0-0"]))
    assert (found["Runs"].ok, found["Runs"].anchor) == (False, "finding-pending")
    assert (found["Seeds"].ok, found["Seeds"].anchor) == (False, "finding-too_few_seeds")


def test_every_line_of_a_sweep_with_all_cautions_has_an_anchor_that_exists() -> None:
    comparison = golden_comparison()
    found, findings = evidence_of(comparison)
    anchors = {finding.anchor for finding in findings}
    assert anchors == {f"finding-{kind}" for kind in KINDS if kind != "disturbed"}
    assert {line.anchor for line in found if not line.ok} <= anchors
    assert not any(line.ok for line in found)
    assert all("\n" not in line.text and line.text for line in found)

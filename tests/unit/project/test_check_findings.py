"""The check of a report's claims against its rows: it holds for a report, and fails for a wrong claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.check_findings import main
from tests.unit.report_support import a_run, around, write_page


def runs(strategy: str, times: list[float], accuracies: list[float], **fields: Any) -> list[RunResult]:
    return [
        a_run(strategy, seed=seed, train_s=train_s, accuracy=accuracy, **fields)
        for seed, (train_s, accuracy) in enumerate(zip(times, accuracies, strict=True))
    ]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    write_page(
        tmp_path,
        *runs("serial", around(8, 0.1), around(0.95)),
        *runs("ddp", around(5, 0.2)[::-1], around(0.93, 0.01), nodes=2),
        *runs("all_reduce", around(5.1, 0.1), around(0.88)[::-1], nodes=2),
        *runs("one_shot", around(4, 0.5, seeds=2), around(0.8, seeds=2), nodes=2),
    )
    return tmp_path


def test_the_claims_of_a_report_follow_from_its_rows(report: Path) -> None:
    assert main(report) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"decision": "more"}, {"p": 0.0}, {"values": [1.0, 2.0]}, {"interval": None}],
    ids=lambda change: next(iter(change)),
)
def test_a_claim_that_does_not_follow_is_found(report: Path, change: dict[str, Any]) -> None:
    path = report / "findings.json"
    findings = json.loads(path.read_text())
    (changed, *_) = [
        each
        for finding in findings
        for each in finding["data"].get("compared", ())
        if each["quantity"] == "train_s" and each["decision"] == "undecided"
    ]
    changed.update(change)
    path.write_text(json.dumps(findings))
    assert main(report) == 1

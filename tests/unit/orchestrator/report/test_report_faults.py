"""The report of runs with faults: their rows are told from others, and what the faults cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.model.rows import FAULTS as FAULTY
from orchestrator.report.quantities import ELAPSED_S
from orchestrator.report.render import columns
from orchestrator.report.topics import find
from orchestrator.report.topics.faults import NO_COMMON_SEED, NO_COUNTERPART, fault_costs
from orchestrator.results.records import InjectedFault, RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    write_page,
)

KILL = [{"kill": {"node": 2}, "at": {"epoch": 2}}]


def disturbed(
    elapsed_s: float = 9.0, repeated_steps: int = 0, samples_lost: int = 0, **fields: Any
) -> RunResult:
    """A run on three nodes; of those with faults, all have fired."""
    run = a_run(**{"strategy": "all_reduce", "nodes": 3, "transport": "gloo", **fields})
    numbers = {"elapsed_s": elapsed_s, "repeated_steps": repeated_steps, "samples_lost": samples_lost}
    fired = [
        InjectedFault(fault=number, node=2, rank=2, action="kill", epoch=2, step=30, second=1.5)
        for number in range(len(run.spec["faults"]))
    ]
    return run.model_copy(update={**numbers, "faults": fired})


def seeds(*elapsed_s: float, accuracies: tuple[float, ...] = (), **fields: Any) -> list[RunResult]:
    """One run per seed."""
    known = accuracies or (0.9,) * len(elapsed_s)
    return [
        disturbed(each, seed=seed, accuracy=known[seed], **fields) for seed, each in enumerate(elapsed_s)
    ]


def with_and_without(count: int = 3) -> list[RunResult]:
    without = seeds(*(8.0, 9.0, 10.0, 8.5, 9.5)[:count], accuracies=(0.9, 0.9, 0.93, 0.9, 0.9)[:count])
    more = {"checkpoint_epochs": 1, "restarts": 1, "repeated_steps": 7}
    return [
        *without,
        *seeds(
            *(10.0, 12.0, 14.0, 11.0, 13.0)[:count],
            accuracies=(0.9, 0.89, 0.91, 0.89, 0.89)[:count],
            faults=KILL,
            **more,
        ),
    ]


def test_cost_is_the_difference_of_runs_with_equal_seeds() -> None:
    comparison = a_comparison(*with_and_without())
    (cost,) = fault_costs(comparison)
    assert cost.missing is None
    extra = cost.difference(ELAPSED_S.of)
    assert extra is not None
    assert (extra.low, extra.high, extra.mean) == (2.0, 4.0, 3.0)
    (shown,) = cells(columns.FAULTS, [cost])
    assert shown["faults"] == "kill of node 2 at epoch 2"
    assert shown["on_loss"] == "1 restart"
    assert shown["time_with"].startswith("12.0 s")
    assert shown["extra_time"].startswith("3.00 s")
    assert shown["repeated_steps"].startswith("7")
    assert "missing" not in shown


def test_finding_claims_a_difference_from_five_seeds_on() -> None:
    finding = finding_of(a_comparison(*with_and_without(5)), "fault_cost")
    time, accuracy = finding.data["compared"]
    assert (time["quantity"], accuracy["quantity"]) == ("elapsed_s", "accuracy")
    assert time["values"] == [finding.data["elapsed_s"], finding.data["undisturbed_s"]]
    assert accuracy["values"][0] - accuracy["values"][1] == pytest.approx(-0.01)
    assert (time["decision"], time["level"], finding.data["repeated_steps"]) == ("more", "shown", 7)
    assert len(finding.rows) == 10
    fewer = finding_of(a_comparison(*with_and_without(4)), "fault_cost").data["compared"]
    assert [each["decision"] for each in fewer] == ["too_few_seeds"] * 2


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], NO_COUNTERPART),
        ([disturbed(seed=5)], NO_COMMON_SEED),
        ([disturbed(status="failed", cause="disk full")], "disk full"),
        ([disturbed(lr=0.3)], NO_COUNTERPART),
        ([disturbed(transport="mpi")], NO_COUNTERPART),
    ],
)
def test_row_without_counterpart_says_so(others: list[RunResult], why: str) -> None:
    comparison = a_comparison(*others, disturbed(faults=KILL))
    (cost,) = fault_costs(comparison)
    (shown,) = cells(columns.FAULTS, [cost])
    assert why in shown["missing"]
    assert {"extra_time", "repeated_steps", "accuracy_difference"}.isdisjoint(shown)
    assert findings_of(comparison, "fault_cost") == []


def test_row_that_failed_says_so() -> None:
    lost = disturbed(faults=KILL, status="failed", cause="node 2 was killed by SIGKILL")
    (cost,) = fault_costs(a_comparison(disturbed(), lost))
    assert "SIGKILL" in str(cost.missing)


def test_counterpart_with_equal_checkpoints_comes_first() -> None:
    plain, saved = disturbed(8.0), disturbed(8.5, checkpoint_epochs=1)
    (cost,) = fault_costs(a_comparison(plain, saved, disturbed(9.0, faults=KILL, checkpoint_epochs=1)))
    assert cost.undisturbed
    assert cost.undisturbed.first.key == saved.key


@pytest.mark.slow
def test_runs_with_faults_are_a_workload_of_their_own(tmp_path: Path) -> None:
    """Their wall times, which lack lost work, are not compared with those of other runs."""
    results = [a_run(), *with_and_without()]
    comparison = a_comparison(*results)
    first, second = comparison.workloads
    assert (first.faults, second.faults) == ("", "kill of node 2 at epoch 2")
    assert second.faults in second.label
    assert second.faults not in first.label
    faulty = [row for row in comparison.rows if row.run.faults]
    assert {row.no_speedup for row in faulty} == {FAULTY}
    about_time = {"fastest", "slower_than_serial", "best_accuracy"}
    about = {finding.kind for finding in find(comparison) if finding.workload == second}
    assert about.isdisjoint(about_time)
    lines = [line for line in csv_lines(comparison) if line["faults"]]
    assert len(lines) == 3
    assert {line["faults_injected"] for line in lines} == {"1"}
    paths = write_page(tmp_path, *results)
    for page in (paths.markdown, paths.html):
        text = page.read_text()
        assert "What faults cost" in text
        assert "kill of node 2 at epoch 2" in text

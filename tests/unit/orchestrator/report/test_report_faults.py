"""Mistakes in what faults cost: which run without faults and which seeds are compared, and the sign of a
cost."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.model.rows import FAULTS as FAULTY
from orchestrator.report.quantities import ELAPSED_S
from orchestrator.report.render import columns
from orchestrator.report.topics import find
from orchestrator.report.topics.faults import NO_COMMON_SEED, NO_COUNTERPART, fault_costs
from orchestrator.results.records import InjectedFault, RunResult
from tests.unit.report_support import a_comparison, a_run, cells, csv_lines, finding_of, findings_of

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


def with_and_without(count: int = 3) -> list[RunResult]:
    faulty = {"faults": KILL, "checkpoint_epochs": 1, "restarts": 1, "repeated_steps": 7}
    seeds = zip((8.0, 9.0, 10.0, 8.5, 9.5), (2.0, 3.0, 4.0, 2.5, 3.5), range(count), strict=False)
    pairs = [
        (
            disturbed(elapsed_s, seed=seed, accuracy=0.9),
            disturbed(elapsed_s + more_s, seed=seed, accuracy=0.895 - seed % 2 / 100, **faulty),
        )
        for elapsed_s, more_s, seed in seeds
    ]
    return [*(one for one, _ in pairs), *(other for _, other in pairs)]


def test_cost_is_the_difference_of_runs_with_equal_seeds() -> None:
    alone = disturbed(99.0, seed=7, faults=KILL, checkpoint_epochs=1, restarts=1)
    (cost,) = fault_costs(a_comparison(*with_and_without(), alone))
    extra = cost.difference(ELAPSED_S.of)
    assert extra is not None
    assert (cost.missing, extra.low, extra.high, extra.mean) == (None, 2.0, 4.0, 3.0)
    (shown,) = cells(columns.FAULTS, [cost])
    assert {name: shown[name] for name in ("faults", "on_loss", "seeds", "time_with", "extra_time")} == {
        "faults": "kill of node 2 at epoch 2",
        "on_loss": "1 restart",
        "seeds": "3",
        "time_with": "12.0 s | 10.0–14.0 s",
        "extra_time": "3.00 s | 2.00–4.00 s",
    }
    assert shown["accuracy_difference"].startswith("−0.8 points")
    assert "missing" not in shown


def test_the_table_says_what_a_run_does_about_a_loss() -> None:
    kept = disturbed(strategy="local_sgd", faults=KILL, on_loss="continue")
    costs = fault_costs(a_comparison(kept, disturbed(faults=KILL)))
    assert [cells(columns.FAULTS, [cost])[0]["on_loss"] for cost in costs] == ["continue", "stop"]


@pytest.mark.parametrize(("count", "decisions"), [(5, ["more", "less"]), (4, ["too_few_seeds"] * 2)])
def test_a_cost_is_claimed_from_five_seeds_on(count: int, decisions: list[str]) -> None:
    finding = finding_of(a_comparison(*with_and_without(count)), "fault_cost")
    compared = finding.data["compared"]
    assert [each["quantity"] for each in compared] == ["elapsed_s", "accuracy"]
    assert [each["decision"] for each in compared] == decisions
    assert compared[0]["values"] == [finding.data["elapsed_s"], finding.data["undisturbed_s"]]
    assert (finding.data["repeated_steps"], len(finding.rows)) == (7, 2 * count)


@pytest.mark.parametrize(
    ("others", "fields", "why"),
    [
        ([], {}, NO_COUNTERPART),
        ([disturbed(seed=5)], {}, NO_COMMON_SEED),
        ([disturbed(status="failed", cause="disk full")], {}, "disk full"),
        ([disturbed(lr=0.3)], {}, NO_COUNTERPART),
        ([disturbed(transport="mpi")], {}, NO_COUNTERPART),
        ([disturbed()], {"status": "failed", "cause": "killed by SIGKILL"}, "SIGKILL"),
    ],
    ids=["none", "other seed", "failed", "other rate", "other transport", "failed itself"],
)
def test_a_run_without_counterpart_says_so(
    others: list[RunResult], fields: dict[str, str], why: str
) -> None:
    comparison = a_comparison(*others, disturbed(faults=KILL, **fields))
    (cost,) = fault_costs(comparison)
    (shown,) = cells(columns.FAULTS, [cost])
    assert why in shown["missing"]
    assert {"extra_time", "repeated_steps", "accuracy_difference"}.isdisjoint(shown)
    assert findings_of(comparison, "fault_cost") == []


def test_the_counterpart_is_the_most_similar_that_finished() -> None:
    plain, saved = disturbed(8.0), disturbed(8.5, checkpoint_epochs=1)
    lost = saved.model_copy(update={"status": "failed", "cause": "gone"})
    for other, expected in ((saved, saved), (lost, plain)):
        (cost,) = fault_costs(a_comparison(plain, other, disturbed(faults=KILL, checkpoint_epochs=1)))
        assert cost.undisturbed
        assert cost.undisturbed.first.key == expected.key


def test_runs_with_faults_are_a_workload_of_their_own() -> None:
    """Their wall times, which lack lost work, are not compared with those of other runs."""
    comparison = a_comparison(a_run(), *with_and_without())
    first, second = comparison.workloads
    assert (first.faults, second.faults) == ("", "kill of node 2 at epoch 2")
    assert (second.faults in second.label, second.faults in first.label) == (True, False)
    assert {row.no_speedup for row in comparison.rows if row.run.faults} == {FAULTY}
    about = {finding.kind for finding in find(comparison) if finding.workload == second}
    assert about.isdisjoint({"fastest", "slower_than_serial", "best_accuracy"})
    assert [line["faults_injected"] for line in csv_lines(comparison) if line["faults"]] == ["1"] * 3

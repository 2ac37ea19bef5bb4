"""Findings: their kinds, numbers and runs, and when they appear."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.findings import find
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.report.statistics.spread import Spread, compare_spreads
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    finding_of,
    findings_of,
    repeated,
)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Spread(1, 0.9, 1.1, 3), Spread(2, 1.9, 2.1, 3), "beyond_range"),
        (Spread(1, 0.9, 1.1, 3), Spread(1.2, 1.1, 1.3, 3), "within_range"),
        (Spread(1, 0.9, 1.1, 3), Spread(1.05, 1.05, 1.05, 1), "within_range"),
        (Spread(1, 0.9, 1.1, 3), Spread(2, 2, 2, 1), "single_seed"),
        (Spread(1, 1, 1, 1), Spread(2, 2, 2, 1), "single_seed"),
        (Spread(1, 1, 1, 1), Spread(1, 1, 1, 1), "equal"),
    ],
)
def test_spreads_are_compared_by_their_ranges(left: Spread, right: Spread, expected: str) -> None:
    assert compare_spreads(left, right) == compare_spreads(right, left) == expected


def test_fastest_has_its_numbers_and_runs() -> None:
    serial, slow = repeated("serial", [8, 8.2]), repeated("ddp", [6, 6.2], nodes=2)
    fast = repeated("all_reduce", [4, 4.2], nodes=2)
    finding = finding_of(a_comparison(*serial, *slow, *fast), "fastest")
    assert finding.data == {
        "strategy": "all_reduce over mpi",
        "ranks": 2,
        "train_s": pytest.approx(4.1),
        "serial_train_s": pytest.approx(8.1),
        "speedup": pytest.approx((8 / 4 + 8.2 / 4.2) / 2),
        "efficiency": pytest.approx((8 / 4 + 8.2 / 4.2) / 4),
        "second": "ddp over gloo",
        "second_train_s": pytest.approx(6.1),
        "verdict": "beyond_range",
    }
    assert {row.key for row in finding.rows} == {result.key for result in [*serial, *slow, *fast]}
    swapped = a_comparison(*serial, *repeated("ddp", [3, 3.1], nodes=2), *fast)
    assert finding_of(swapped, "fastest").data["strategy"] == "ddp over gloo"


@pytest.mark.parametrize(
    ("slower", "faster", "verdict"),
    [
        ([4.1, 4.6], [4, 4.2], "within_range"),
        ([5.1, 5.6], [4, 4.2], "beyond_range"),
        ([5], [4], "single_seed"),
    ],
)
def test_lead_is_compared_with_the_range_over_seeds(
    slower: list[float], faster: list[float], verdict: str
) -> None:
    comparison = a_comparison(*repeated("ddp", slower, nodes=2), *repeated("all_reduce", faster, nodes=2))
    assert finding_of(comparison, "fastest").data["verdict"] == verdict
    single = [finding.data["all"] for finding in findings_of(comparison, "not_repeated")]
    assert single == ([True] if verdict == "single_seed" else [])


def test_strategies_slower_than_serial_and_than_fewer_nodes() -> None:
    comparison = a_comparison(
        *repeated("serial", [8, 8.1]),
        *repeated("ddp", [5, 5.1], nodes=2),
        *repeated("ddp", [9, 9.1], nodes=4, communicate_s=4.0),
    )
    fewer = finding_of(comparison, "fewer_nodes_faster").data
    assert (fewer["ranks"], fewer["train_s"]) == (2, pytest.approx(5.05))
    assert (fewer["compared_ranks"], fewer["compared_train_s"]) == (4, pytest.approx(9.05))
    slower = finding_of(comparison, "slower_than_serial").data
    assert slower["train_s"] == {"ddp over gloo": pytest.approx(9.05)}
    assert slower["serial_train_s"] == pytest.approx(8.05)


def test_of_many_slower_strategies_the_first_and_the_last_are_named() -> None:
    names = ["all_reduce", "all_gather", "reduce_broadcast", "local_sgd", "gossip"]
    runs = [a_run(name, nodes=2, transport="mpi", train_s=9.0 + at) for at, name in enumerate(names)]
    data = finding_of(a_comparison(SERIAL, *runs), "slower_than_serial").data
    assert data["named"] == ["all_reduce over mpi", "gossip over mpi"]
    assert (len(data["train_s"]), data["compared"]) == (5, 5)


def test_transports_and_ddp_are_compared() -> None:
    comparison = a_comparison(
        *repeated("all_reduce", [4, 4.1], nodes=2, transport="mpi", communicate_s=0.5),
        *repeated("all_reduce", [8, 8.2], nodes=2, transport="gloo", communicate_s=4.0),
        *repeated("ddp", [6, 6.1], nodes=2, communicate_s=3.0),
    )
    data = finding_of(comparison, "transports").data
    assert data["train_s"] == {"mpi": pytest.approx(4.05), "gloo": pytest.approx(8.1)}
    assert data["communicate_s"] == {"mpi": 0.5, "gloo": 4.0}
    data = finding_of(comparison, "all_reduce_and_ddp").data
    assert data["exchange_share"] == {
        "all_reduce": pytest.approx(0.494, abs=1e-3),
        "ddp": pytest.approx(0.496, abs=1e-3),
    }


def test_accuracy_is_compared_with_serial() -> None:
    serial = repeated("serial", [0.95, 0.96], "accuracy", steps=90)
    ddp = repeated("ddp", [0.90, 0.91], "accuracy", nodes=2, steps=45)
    one_shot = repeated("one_shot", [0.50, 0.52], "accuracy", nodes=2, steps=45)
    comparison = a_comparison(*serial, *ddp, *one_shot)
    assert finding_of(comparison, "best_accuracy").data == {
        "best": "ddp over gloo",
        "accuracy": pytest.approx(0.905),
        "serial_accuracy": pytest.approx(0.955),
        "verdict": "beyond_range",
        "worst": "one_shot over mpi",
        "worst_accuracy": pytest.approx(0.51),
    }
    assert finding_of(comparison, "fewer_steps").data == {"steps": (45, 45), "serial_steps": (90, 90)}
    close = a_comparison(*serial, *repeated("ddp", [0.95, 0.97], "accuracy", nodes=2))
    assert finding_of(close, "best_accuracy").data["verdict"] == "within_range"
    assert findings_of(close, "fewer_steps") == []


@pytest.mark.parametrize(
    ("finals", "gain", "effect"),
    [
        ([0.80, 0.82], 0.21, "gains"),
        ([0.20, 0.22], -0.39, "loses"),
        ([0.60, 0.60], 0.0, "equal"),
        ([0.55, 0.65], 0.0, "within_range"),
    ],
)
def test_averaging_gains_or_loses(finals: list[float], gain: float, effect: str) -> None:
    runs = repeated("one_shot", finals, "accuracy", nodes=2, own=[0.5, 0.7])
    data = finding_of(a_comparison(*runs), "averaging").data
    assert data["local_accuracy"] == pytest.approx(0.6)
    assert (data["gain"], data["effect"]) == (pytest.approx(gain), effect)


def test_variants_of_a_strategy_are_compared_with_its_default() -> None:
    runs = [
        *repeated("one_shot", [0.80, 0.82], "accuracy", nodes=2),
        *repeated(ONE_SHOT_ALONE, [0.20, 0.22], "accuracy", nodes=2),
    ]
    data = finding_of(a_comparison(*runs), "variant").data
    assert data["parameters"] == ({"init": "broadcast"}, {"init": "independent"})
    assert data["accuracy"] == (pytest.approx(0.81), pytest.approx(0.21))
    assert findings_of(a_comparison(*runs[:2]), "variant") == []


def test_compressions_are_compared_with_none_by_accuracy_and_bytes() -> None:
    def compressed(name: str, **fields: Any) -> list[RunResult]:
        return repeated({"name": "all_reduce", "compression": name}, [0.80, 0.82], "accuracy", **fields)

    common = {"nodes": 2, "transport": "gloo"}
    comparison = a_comparison(
        *compressed("sign", bytes_sent=2e4, **common),
        *repeated("all_reduce", [0.90, 0.92], "accuracy", **common),
        *compressed("fp16", bytes_sent=5e5, **common),
        *repeated("ddp", [0.90, 0.92], "accuracy", **common),
    )
    data = [
        finding.data for finding in findings_of(comparison, "variant")
    ]  # each with the default, not with each other
    assert [each["parameters"] for each in data] == [
        ({"compression": "none"}, {"compression": name}) for name in ("sign", "fp16")
    ]
    assert [each["bytes_sent"] for each in data] == [(1e6, 2e4), (1e6, 5e5)]
    # A compression changes the mathematics: only the plain all_reduce is compared with ddp.
    assert len(findings_of(comparison, "all_reduce_and_ddp")) == 1


def test_partitioners_are_compared_by_coverage_overlap_and_accuracy() -> None:
    sampling = {"partitioner": "random_sampling", "coverage": 0.75, "overlap": 0.25}
    comparison = a_comparison(
        *repeated("ddp", [0.90, 0.92], "accuracy", nodes=2),
        *repeated("ddp", [0.80, 0.82], "accuracy", nodes=2, **sampling),
    )
    data = finding_of(comparison, "partitioner_effect").data
    assert (data["partitioner"], data["reference"]) == ("random_sampling", "random_partition")
    assert data["changes"] == {"ddp over gloo": pytest.approx(-0.1)}
    assert (data["coverage"], data["overlap"]) == (0.75, 0.25)


def skewed(strategy: str, accuracies: list[float], label: str = "contiguous") -> list[RunResult]:
    return repeated(strategy, accuracies, "accuracy", nodes=4, transport="mpi", partitioner=label)


EVEN = [
    *skewed("one_shot", [0.90, 0.92], "random_partition"),
    *skewed("local_sgd", [0.94, 0.95], "random_partition"),
]


@pytest.mark.parametrize(
    ("one_shot", "local_sgd", "loss", "recovered"),
    [
        ([0.60, 0.62], [0.80, 0.82], 0.3, 0.2),
        ([0.60, 0.62], [0.93, 0.95], 0.3, 0.33),
        ([0.80, 0.91], [0.93, 0.95], None, None),  # within the range over seeds: no loss
        ([0.60, 0.62], [0.55, 0.63], 0.3, None),  # within the range over seeds: recovers nothing
    ],
)
def test_the_loss_under_a_partitioner_and_its_recovery(
    one_shot: list[float], local_sgd: list[float], loss: float | None, recovered: float | None
) -> None:
    comparison = a_comparison(*EVEN, *skewed("one_shot", one_shot), *skewed("local_sgd", local_sgd))
    if loss is None:
        assert findings_of(comparison, "partitioner_loss") == []
        return
    data = finding_of(comparison, "partitioner_loss").data
    if recovered is None:
        assert "best" not in data
    else:
        assert (data["best"], data["recovered"]) == ("local_sgd over mpi", pytest.approx(recovered))
        assert (data["strategy"], data["loss"]) == ("one_shot over mpi", pytest.approx(loss))


@pytest.mark.parametrize("accuracies", [[0.893, 0.894], [0.95, 0.96]])
def test_a_small_loss_or_a_gain_is_not_a_loss(accuracies: list[float]) -> None:
    even = skewed("one_shot", [0.9, 0.901], "random_partition")
    comparison = a_comparison(*even, *skewed("one_shot", accuracies))
    assert len(findings_of(comparison, "partitioner_effect")) == 1
    assert findings_of(comparison, "partitioner_loss") == []


def test_loss_from_a_single_seed_is_marked() -> None:
    runs = [*skewed("one_shot", [0.9], "random_partition"), *skewed("one_shot", [0.6])]
    data = finding_of(a_comparison(*runs), "partitioner_loss").data
    assert (data["loss"], data["repeated"]) == (pytest.approx(0.3), False)


def test_many_partitioners_without_effect_share_a_finding() -> None:
    labels = ["random_partition", "stratified", "quantity", "feature", "contiguous"]
    means = [0.9, 0.905, 0.897, 0.9, 0.7]
    runs = [
        run for label, mean in zip(labels, means, strict=True) for run in skewed("one_shot", [mean], label)
    ]
    comparison = a_comparison(*runs)
    harmless = finding_of(comparison, "partitioners_harmless").data
    assert harmless["partitioners"] == ["stratified", "quantity", "feature"]
    assert finding_of(comparison, "partitioner_effect").data["changes"] == {
        "one_shot over mpi": pytest.approx(-0.2)
    }


def test_gradient_averaging_strategies_are_compared_by_step() -> None:
    runs = [
        *repeated("all_reduce", [4, 4.1], nodes=2, transport="mpi", communicate_s=0.9, steps=90),
        *repeated("all_gather", [8, 8.2], nodes=2, transport="mpi", communicate_s=1.8, steps=90),
        *repeated("one_shot", [8, 8.2], nodes=2, transport="mpi", communicate_s=0.1, steps=90),
        *repeated({"name": "all_reduce", "compression": "sign"}, [8], nodes=2, transport="mpi"),
    ]
    data = finding_of(a_comparison(*runs), "mean_gradient").data
    assert data["exchange_s_per_step"] == {
        "all_reduce": pytest.approx(0.01),
        "all_gather": pytest.approx(0.02),
    }
    assert data["bytes_per_step"]["all_reduce"] == pytest.approx(1e6 / 90)
    assert findings_of(a_comparison(*runs[:2]), "mean_gradient") == []


def test_shared_cores_bound_the_wall_clock_speedup() -> None:
    run = a_run("ddp", nodes=4, cores=2, train_s=8.0, work_cpu_s=2.5)
    data = finding_of(a_comparison(SERIAL, run), "shared_cores").data
    assert (data["shapes"], data["cores"], data["limit"]) == (["4"], 2, 2)
    assert data["cpu_time_speedup"] == pytest.approx(3.2)
    assert findings_of(a_comparison(SERIAL, a_run("ddp", nodes=4, cores=4)), "shared_cores") == []


def test_quotas_that_fit_share_no_cores() -> None:
    small = {"runtime": "docker", "cores": 2, "cpus": 0.4}
    serial = a_run(train_s=8.0, **small)
    assert findings_of(a_comparison(serial, a_run("ddp", nodes=5, **small)), "shared_cores") == []
    for train_s, beyond in ((8.0, None), (1.0, 8.0), (2.0, None)):
        run = a_run("ddp", nodes=6, train_s=train_s, **small)
        data = finding_of(a_comparison(serial, run), "shared_cores").data
        assert (data["limit"], data.get("beyond_limit")) == (5, beyond)


def test_ranks_per_node_are_part_of_the_shape() -> None:
    comparison = a_comparison(
        *repeated("serial", [8, 8.1], cores=1.5),
        *repeated("ddp", [4, 4.1], nodes=1, processes_per_node=2, cores=1.5),
        *repeated("ddp", [9, 9.1], nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", [7, 7.1], nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", [3, 3.1], nodes=2, cores=1.5),
    )
    fastest = finding_of(comparison, "fastest").data
    assert (fastest["strategy"], fastest["ranks"]) == ("all_reduce over mpi", 4)
    assert fastest["efficiency"] == pytest.approx(fastest["speedup"] / 4)
    fewer = finding_of(comparison, "fewer_nodes_faster").data
    assert (fewer["strategy"], fewer["ranks"]) == ("all_reduce over mpi", 2)
    shared = finding_of(comparison, "shared_cores").data
    assert (shared["shapes"], shared["limit"]) == (["1 × 2", "2", "2 × 2"], 1.5)


def test_a_speedup_beyond_the_cores_is_reported_as_noise() -> None:
    runs = [*repeated("serial", [8, 10]), a_run("ddp", nodes=4, seed=1, cores=2, train_s=4.0)]
    assert finding_of(a_comparison(*runs), "shared_cores").data["beyond_limit"] == 2.5


def test_cautions() -> None:
    unverified = a_run("ddp", nodes=2, verified=False, cores=4)
    apart = a_run("all_reduce", nodes=2, digests=["one", "other"], runtime="docker")
    late = a_run("fault_injection", status="timeout", cause="stopped after 9 s")
    comparison = a_comparison(unverified, apart, late, pending=["ddp-gloo-n4-s0-0"])
    assert [row.key for row in finding_of(comparison, "not_verified").rows] == [unverified.key]
    assert [row.key for row in finding_of(comparison, "replicas_differ").rows] == [apart.key]
    conditions = {
        finding.data["condition"]: finding.data for finding in findings_of(comparison, "conditions_differ")
    }
    assert conditions["runtime"]["values"] == ["local", "docker"]
    assert not conditions["runtime"]["compared"]
    assert conditions["number of cores"]["values"] == ["4", "8"]
    assert finding_of(comparison, "failed").data == {"status": "timeout", "cause": "stopped after 9 s"}
    assert finding_of(comparison, "pending").data == {"pending": 1, "planned": 4}
    assert {finding.data["reason"] for finding in findings_of(comparison, "no_serial")} == {NO_SERIAL}


def test_failures_with_one_cause_are_one_finding() -> None:
    runs = [a_run("ddp", nodes=2, seed=seed, status="failed", cause="no room") for seed in range(9)]
    finding = finding_of(a_comparison(*runs), "failed")
    assert (finding.data["cause"], len(finding.rows)) == ("no room", 9)


def test_workloads_have_separate_findings() -> None:
    comparison = a_comparison(SERIAL, FAST, a_run("ddp", nodes=2, lr=0.01, train_s=1.0))
    first, second = findings_of(comparison, "fastest")
    assert [finding.workload.lr for finding in (first, second) if finding.workload] == [0.05, 0.01]
    assert "speedup" in first.data
    assert "speedup" not in second.data


def test_a_finding_on_every_workload_is_merged() -> None:
    comparison = a_comparison(SERIAL, *(a_run(lr=lr) for lr in (0.1, 0.2)))
    finding = finding_of(comparison, "not_repeated")
    assert (finding.workload, len(finding.rows)) == (None, 3)


def test_a_finding_on_some_workloads_names_them() -> None:
    comparison = a_comparison(*repeated("serial", [8.0, 8.1]), *(a_run(lr=lr) for lr in (0.1, 0.2)))
    found = findings_of(comparison, "not_repeated")
    assert [finding.workload.lr for finding in found if finding.workload] == [0.1, 0.2]


def test_findings_without_runs_are_about_the_sweep() -> None:
    comparison = a_comparison(SERIAL, FAST, pending=["ddp-gloo-n4-s0-0"])
    assert {finding.kind for finding in find(comparison) if not finding.rows} == {"pending"}

"""The report's findings: sentences that follow from numbers and change with them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.findings import find
from orchestrator.report.findings.base import verdict
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Spread
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.results.records import RunResult
from tests.unit.report_support import FAST, ONE_SHOT_ALONE, SERIAL, a_comparison, a_run, repeated


def texts(comparison: Comparison, topic: str) -> str:
    """What the findings on a topic say."""
    said = " ".join(finding.text for finding in find(comparison) if finding.topic == topic)
    return said.replace(formats.JOIN, " ")


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Spread(1, 0.9, 1.1, 3), Spread(2, 1.9, 2.1, 3), "beyond"),
        (Spread(1, 0.9, 1.1, 3), Spread(1.2, 1.1, 1.3, 3), "within"),
        (Spread(1, 0.9, 1.1, 3), Spread(1.05, 1.05, 1.05, 1), "within"),
        (Spread(1, 0.9, 1.1, 3), Spread(2, 2, 2, 1), "once"),
        (Spread(1, 1, 1, 1), Spread(2, 2, 2, 1), "once"),
        (Spread(1, 1, 1, 1), Spread(1, 1, 1, 1), "equal"),
    ],
)
def test_a_difference_counts_only_beyond_the_spread(left: Spread, right: Spread, expected: str) -> None:
    assert verdict(left, right) == verdict(right, left) == expected


def test_the_fastest_is_named_with_its_numbers_and_its_runs() -> None:
    serial, slow = repeated("serial", [8, 8.2]), repeated("ddp", [6, 6.2], nodes=2)
    fast = repeated("all_reduce", [4, 4.2], nodes=2)
    comparison = a_comparison(*serial, *slow, *fast)
    finding = find(comparison)[0]
    said = finding.text.replace(formats.JOIN, " ")
    assert "At 2 nodes all_reduce over mpi was the fastest: 4.10 s against 8.10 s" in said
    assert "a speedup of 1.98, efficiency 98.8%" in said
    assert "Next came ddp over gloo with 6.10 s." in said
    assert {row.key for row in finding.rows} == {result.key for result in [*serial, *slow, *fast]}
    swapped = a_comparison(*serial, *repeated("ddp", [3, 3.1], nodes=2), *fast)
    assert "ddp over gloo was the fastest: 3.05 s" in texts(swapped, "Time")


def test_a_lead_within_the_spread_of_seeds_is_called_that() -> None:
    near = a_comparison(*repeated("ddp", [4.1, 4.6], nodes=2), *repeated("all_reduce", [4, 4.2], nodes=2))
    assert "within the spread of seeds" in texts(near, "Time")
    far = a_comparison(*repeated("ddp", [5.1, 5.6], nodes=2), *repeated("all_reduce", [4, 4.2], nodes=2))
    assert "within the spread" not in texts(far, "Time")
    once = a_comparison(a_run("ddp", nodes=2, train_s=5), a_run("all_reduce", nodes=2, train_s=4))
    assert "not repeated" in texts(once, "Time")
    assert "Nothing was repeated" in texts(once, "Not repeated")


def test_losing_to_serial_and_to_fewer_nodes_is_said() -> None:
    runs = [
        *repeated("serial", [8, 8.1]),
        *repeated("ddp", [5, 5.1], nodes=2),
        *repeated("ddp", [9, 9.1], nodes=4, communicate_s=4.0),
    ]
    said = texts(a_comparison(*runs), "Time")
    assert "No strategy was faster than serial at 4 nodes" in said
    assert "the shortest time of all is that of ddp over gloo on 2 nodes, 5.05 s" in said
    assert "Slower than serial (8.05 s) at 4 nodes: ddp over gloo (9.05 s, 44.2%" in said


def test_transports_and_the_library_are_compared() -> None:
    runs = [
        *repeated("all_reduce", [4, 4.1], nodes=2, transport="mpi", communicate_s=0.5),
        *repeated("all_reduce", [8, 8.2], nodes=2, transport="gloo", communicate_s=4.0),
        *repeated("ddp", [6, 6.1], nodes=2, communicate_s=3.0),
    ]
    said = texts(a_comparison(*runs), "Transport")
    assert "4.05 s over mpi with 0.500 s communicating" in said
    assert "over gloo 8.10 s with 4.00 s communicating, 2.00 times as long" in said
    said = texts(a_comparison(*runs), "Exchange")
    assert "all_reduce over gloo spent 49.4%" in said
    assert "ddp over gloo 49.6%" in said


def test_accuracy_is_told_against_serial_and_with_the_steps() -> None:
    runs = [
        *repeated("serial", [0.95, 0.96], "accuracy", steps=90),
        *repeated("ddp", [0.90, 0.91], "accuracy", nodes=2, steps=45),
        *repeated("one_shot", [0.50, 0.52], "accuracy", nodes=2, steps=45),
    ]
    said = texts(a_comparison(*runs), "Accuracy")
    assert "ddp over gloo reached the best accuracy, 90.5%, −5.0 points from serial's 95.5%." in said
    assert "The worst was one_shot over mpi: 51.0%, −44.5 points" in said
    assert "took 45 optimiser steps in the run where serial took 90" in said
    close = [*runs[:2], *repeated("ddp", [0.95, 0.97], "accuracy", nodes=2)]
    assert "within the spread of seeds" in texts(a_comparison(*close), "Accuracy")


@pytest.mark.parametrize(
    ("finals", "expected"),
    [
        ([0.80, 0.82], "Averaging them gains 21.0 points: 81.0%"),
        ([0.20, 0.22], "Averaging them loses 39.0 points: 21.0%"),
        ([0.60, 0.60], "Averaging them changes nothing: 60.0%"),
        ([0.55, 0.65], "changes that by ±0.0 points, which is within the spread of seeds"),
    ],
)
def test_averaging_gains_or_loses(finals: list[float], expected: str) -> None:
    runs = repeated("one_shot", finals, "accuracy", nodes=2, own=[0.5, 0.7])
    assert expected in texts(a_comparison(*runs), "Averaging")


def test_initial_weights_are_compared_where_both_were_tried() -> None:
    runs = [
        *repeated("one_shot", [0.80, 0.82], "accuracy", nodes=2),
        *repeated(ONE_SHOT_ALONE, [0.20, 0.22], "accuracy", nodes=2),
    ]
    said = texts(a_comparison(*runs), "Parameters")
    assert "81.0% with init=broadcast and 21.0% with init=independent: −60.0 points." in said
    assert texts(a_comparison(*runs[:2]), "Parameters") == ""


def test_compressions_are_compared_with_none_by_accuracy_and_bytes() -> None:
    def compressed(name: str, **fields: Any) -> list[RunResult]:
        return repeated({"name": "all_reduce", "compression": name}, [0.80, 0.82], "accuracy", **fields)

    common = {"nodes": 2, "transport": "gloo"}
    runs = [
        *compressed("sign", bytes_sent=2e4, **common),
        *repeated("all_reduce", [0.90, 0.92], "accuracy", **common),
        *compressed("fp16", bytes_sent=5e5, **common),
        *repeated("ddp", [0.90, 0.92], "accuracy", **common),
    ]
    said = texts(a_comparison(*runs), "Parameters")
    for name, sent in (("sign", "20.0 kB"), ("fp16", "500 kB")):
        assert (
            f"reached 91.0% with compression=none and 81.0% with compression={name}: −10.0 points; "
            f"a rank sent 1.00 MB and {sent}."
        ) in said
    assert said.count("reached") == 2  # not each with each
    # With a compression the mathematics is no longer that of ddp: not only the exchange differs.
    said = texts(a_comparison(*runs), "Exchange")
    assert said.count("spent") == 1
    assert "compression" not in said


def test_partitioners_are_compared_by_coverage_overlap_and_accuracy() -> None:
    runs = [
        *repeated("ddp", [0.90, 0.92], "accuracy", nodes=2),
        *repeated(
            "ddp",
            [0.80, 0.82],
            "accuracy",
            nodes=2,
            partitioner="random_sampling",
            coverage=0.75,
            overlap=0.25,
        ),
    ]
    said = texts(a_comparison(*runs), "Partitioning")
    assert "random_sampling used 75.0% of the training set in epoch 1, 25.0% on several nodes" in said
    assert "random_partition used 100.0% of the training set in epoch 1, none on several nodes" in said
    assert "ddp over gloo −10.0 points." in said


def skewed(strategy: str, accuracies: list[float], label: str = "contiguous") -> list[RunResult]:
    return repeated(strategy, accuracies, "accuracy", nodes=4, transport="mpi", partitioner=label)


def test_what_a_partitioner_costs_and_who_wins_it_back() -> None:
    even = [
        *skewed("one_shot", [0.90, 0.92], "random_partition"),
        *skewed("local_sgd", [0.94, 0.95], "random_partition"),
    ]
    said = texts(
        a_comparison(*even, *skewed("one_shot", [0.60, 0.62]), *skewed("local_sgd", [0.80, 0.82])),
        "Partitioning",
    )
    assert (
        "Under contiguous, one_shot over mpi loses 30.0 points against random_partition at 4 nodes" in said
    )
    assert "local_sgd over mpi recovers 20.0 of them." in said
    said = texts(
        a_comparison(*even, *skewed("one_shot", [0.60, 0.62]), *skewed("local_sgd", [0.93, 0.95])),
        "Partitioning",
    )
    assert "local_sgd over mpi recovers all of them." in said
    # What may be chance is no loss, and what may be chance recovers nothing.
    said = texts(
        a_comparison(*even, *skewed("one_shot", [0.80, 0.91]), *skewed("local_sgd", [0.93, 0.95])),
        "Partitioning",
    )
    assert "loses" not in said
    said = texts(
        a_comparison(*even, *skewed("one_shot", [0.60, 0.62]), *skewed("local_sgd", [0.55, 0.63])),
        "Partitioning",
    )
    assert "random_partition at 4 nodes." in said
    assert "recovers" not in said


def test_a_small_loss_or_a_gain_is_not_called_a_loss() -> None:
    even = skewed("one_shot", [0.9, 0.901], "random_partition")
    for accuracies in ([0.893, 0.894], [0.95, 0.96]):
        said = texts(a_comparison(*even, *skewed("one_shot", accuracies)), "Partitioning")
        assert "Accuracy with contiguous" in said
        assert "loses" not in said


def test_a_loss_that_was_not_repeated_is_called_that() -> None:
    runs = [*skewed("one_shot", [0.9], "random_partition"), *skewed("one_shot", [0.6])]
    said = texts(a_comparison(*runs), "Partitioning")
    assert "loses 30.0 points against random_partition at 4 nodes, a difference not repeated often" in said


def test_of_many_partitioners_those_that_change_nothing_share_a_sentence() -> None:
    labels = ["random_partition", "stratified", "quantity", "feature", "contiguous"]
    means = [0.9, 0.905, 0.897, 0.9, 0.7]
    runs = [
        run for label, mean in zip(labels, means, strict=True) for run in skewed("one_shot", [mean], label)
    ]
    said = texts(a_comparison(*runs), "Partitioning")
    assert (
        "no strategy's accuracy changed by 1.0 points or more with stratified, quantity or feature rather "
        "than random_partition" in said
    )
    assert said.count("rather than") == 2
    assert "with contiguous rather than random_partition: one_shot over mpi −20.0 points" in said


def test_ways_to_take_the_same_mean_are_compared_by_step() -> None:
    runs = [
        *repeated("all_reduce", [4, 4.1], nodes=2, transport="mpi", communicate_s=0.9, steps=90),
        *repeated("all_gather", [8, 8.2], nodes=2, transport="mpi", communicate_s=1.8, steps=90),
        *repeated("one_shot", [8, 8.2], nodes=2, transport="mpi", communicate_s=0.1, steps=90),
        *repeated({"name": "all_reduce", "compression": "sign"}, [8], nodes=2, transport="mpi"),
    ]
    said = texts(a_comparison(*runs), "Exchange")
    assert "sign" not in said  # another mean
    assert "The same mean gradient over mpi at 2 nodes" in said
    assert "all_reduce 0.0100 s for 11.1 kB sent by a rank; all_gather 0.0200 s" in said
    assert "one_shot" not in said
    assert texts(a_comparison(*runs[:2]), "Exchange") == ""


def test_of_many_that_lost_time_the_first_and_the_last_are_named() -> None:
    names = ["all_reduce", "all_gather", "reduce_broadcast", "local_sgd", "gossip"]
    runs = [a_run(name, nodes=2, transport="mpi", train_s=9.0 + at) for at, name in enumerate(names)]
    said = texts(a_comparison(SERIAL, *runs), "Time")
    assert "at 2 nodes were 5 of 5, all_reduce over mpi (9.00 s" in said
    assert "to gossip over mpi (13.0 s" in said
    assert "reduce_broadcast" not in said


def test_shared_cores_bound_the_clock_and_not_the_work() -> None:
    run = a_run("ddp", nodes=4, cores=2, train_s=8.0, work_cpu_s=2.5)
    said = texts(a_comparison(SERIAL, run), "Shared cores")
    assert "Runs on 4 nodes shared 2 cores: their wall-clock speedup cannot pass 2" in said
    assert "speedup of 3.20 on 4 nodes" in said
    assert texts(a_comparison(SERIAL, a_run("ddp", nodes=4, cores=4)), "Shared cores") == ""


def test_quotas_that_fit_share_no_cores_and_those_that_do_not_are_bound_by_them() -> None:
    small = {"runtime": "docker", "cores": 2, "cpus": 0.4}
    serial = a_run(train_s=8.0, **small)
    assert texts(a_comparison(serial, a_run("ddp", nodes=5, **small)), "Shared cores") == ""
    said = texts(a_comparison(serial, a_run("ddp", nodes=6, **small)), "Shared cores")
    assert "Runs on 6 nodes shared 2 cores: their wall-clock speedup cannot pass 5" in said
    beyond = a_run("ddp", nodes=6, train_s=1.0, **small)
    assert "Up to 8.00 was measured all the same" in texts(a_comparison(serial, beyond), "Shared cores")
    within = a_run("ddp", nodes=6, train_s=2.0, **small)
    assert "measured all the same" not in texts(a_comparison(serial, within), "Shared cores")


def test_ranks_are_told_with_their_nodes() -> None:
    runs = [
        *repeated("serial", [8, 8.1], cores=1.5),
        *repeated("ddp", [4, 4.1], nodes=1, processes_per_node=2, cores=1.5),
        *repeated("ddp", [9, 9.1], nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", [7, 7.1], nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", [3, 3.1], nodes=2, cores=1.5),
    ]
    comparison = a_comparison(*runs)
    time = texts(comparison, "Time")
    assert "At 2 nodes × 2 ranks all_reduce over mpi was the fastest: 7.05 s" in time
    assert "a speedup of 1.14, efficiency 28.5%" in time
    assert (
        "More ranks were not faster: the shortest time of all is that of all_reduce over mpi on 2 nodes"
        in time
    )
    shared = texts(comparison, "Shared cores")
    assert "Runs on 1 node × 2 ranks, 2 nodes and 2 nodes × 2 ranks shared 1.5 cores" in shared
    assert "cannot pass 1.5" in shared


def test_a_speedup_beyond_the_cores_is_called_noise() -> None:
    runs = [*repeated("serial", [8, 10]), a_run("ddp", nodes=4, seed=1, cores=2, train_s=4.0)]
    said = texts(a_comparison(*runs), "Shared cores")
    assert "Up to 2.50 was measured all the same" in said
    assert "(serial took 8.00–10.0 s)" in said


def test_what_keeps_numbers_from_being_trusted_is_said() -> None:
    comparison = a_comparison(
        a_run("ddp", nodes=2, verified=False, cores=4),
        a_run("all_reduce", nodes=2, digests=["one", "other"], runtime="docker"),
        a_run("fault_injection", status="timeout", cause="stopped after 9 s"),
        pending=["ddp-gloo-n4-s0-0"],
    )
    assert "1 run trained on other samples than the split says" in texts(comparison, "Not verified")
    assert "1 run ended with replicas that differ" in texts(comparison, "Not verified")
    assert "differ in runtime (local and docker)" in texts(comparison, "Not alike")
    assert "differ in number of cores (4 and 8)" in texts(comparison, "Not alike")
    assert "ran out of time: stopped after 9 s." in texts(comparison, "Not ok")
    assert "1 run of 4 not done yet" in texts(comparison, "Not done")
    assert NO_SERIAL in texts(comparison, "No serial run")


def test_many_failures_of_one_cause_are_one_caution() -> None:
    runs = [a_run("ddp", nodes=2, seed=seed, status="failed", cause="no room") for seed in range(9)]
    assert texts(a_comparison(*runs), "Not ok") == "9 runs failed: no room."


def test_works_are_kept_apart() -> None:
    runs = [SERIAL, FAST, a_run("ddp", nodes=2, lr=0.01, train_s=1.0)]
    fastest = [finding for finding in find(a_comparison(*runs)) if finding.topic == "Time"]
    assert [finding.work.lr for finding in fastest if finding.work] == [0.05, 0.01]
    assert "speedup" not in fastest[1].text


def test_what_is_said_of_every_work_is_said_once() -> None:
    others = [a_run(lr=lr) for lr in (0.1, 0.2)]
    told = [finding for finding in find(a_comparison(SERIAL, *others)) if finding.topic == "Not repeated"]
    assert [(finding.work, len(finding.rows)) for finding in told] == [(None, 3)]


def test_what_is_said_of_some_works_names_them() -> None:
    once = [a_run(lr=lr) for lr in (0.1, 0.2)]
    told = [
        finding
        for finding in find(a_comparison(*repeated("serial", [8.0, 8.1]), *once))
        if finding.topic == "Not repeated"
    ]
    assert [finding.work.lr for finding in told if finding.work] == [0.1, 0.2]

"""Rows and groups: comparison with the serial run, spreads over seeds, and results.csv."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import NO_SERIAL, NO_TRAINING, NOT_OK
from orchestrator.report.statistics.spread import Spread
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    csv_lines,
    finding_of,
    row_of,
    value,
)

# Against the serial run


def test_speedups_are_relative_to_the_serial_run_of_the_same_seed() -> None:
    other_seed = a_run(seed=1, train_s=80.0)
    row = row_of(a_comparison(SERIAL, other_seed, FAST), "all_reduce")
    assert row.speedup == pytest.approx(8 / 5)
    assert value(row, "efficiency") == pytest.approx(8 / 5 / 2)
    assert value(row, "cpu_time_speedup") == pytest.approx(8 / 4)
    assert value(row, "accuracy_difference") == pytest.approx(-0.05)
    assert row.baseline
    assert row.baseline.keys == (SERIAL.key,)


def test_without_a_serial_run_of_the_seed_the_baseline_is_the_mean_of_other_seeds() -> None:
    serials = [a_run(seed=1, train_s=6.0), a_run(seed=2, train_s=10.0)]
    comparison = a_comparison(*serials, FAST)
    row = row_of(comparison, "all_reduce")
    assert row.speedup == pytest.approx(8 / 5)
    assert row.baseline
    assert not row.baseline.same_seed
    assert finding_of(comparison, "other_seeds").rows == (row,)


def test_the_baseline_has_the_same_checkpoint_interval() -> None:
    """Checkpoints cost time, so a mean of serial runs with and without them would describe neither."""
    plain, kept = a_run(train_s=8.0), a_run(train_s=12.0, checkpoint_epochs=1)
    fast = [a_run("ddp", nodes=2, train_s=4.0), a_run("ddp", nodes=2, train_s=4.0, checkpoint_epochs=1)]
    rows = {row.key: row for row in a_comparison(plain, kept, *fast).rows}
    assert [rows[run.key].speedup for run in (plain, kept, *fast)] == [1.0, 1.0, 2.0, 3.0]
    (row,) = [row for row in a_comparison(plain, fast[1]).rows if row.strategy == "ddp"]
    assert row.speedup == 2.0
    (row,) = [row for row in a_comparison(kept, fast[0]).rows if row.strategy == "ddp"]
    assert row.speedup is None


def test_serial_has_speedup_one() -> None:
    row = row_of(a_comparison(SERIAL), "serial")
    assert (row.speedup, value(row, "cpu_time_speedup"), value(row, "accuracy_difference")) == (
        1.0,
        1.0,
        0.0,
    )


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 16},
        {"epochs": 3},
        {"threads": 2},
        {"cpus": 0.4},
        {"memory_mb": 1024},
        {"pids": 64},
        {"shm_mb": 64},
        {"dataset": "synthetic"},
        {"model": "mlp"},
        {"optimizer": {"name": "momentum", "momentum": 0.5}},
    ],
)
def test_serial_run_of_another_workload_is_not_a_baseline(other: dict[str, Any]) -> None:
    row = row_of(a_comparison(a_run(**other), FAST), "all_reduce")
    assert (
        row.speedup,
        value(row, "efficiency"),
        value(row, "cpu_time_speedup"),
        value(row, "accuracy_difference"),
    ) == (None,) * 4
    assert row.no_speedup == NO_SERIAL


def test_cpu_run_is_not_a_baseline_for_a_gpu_run() -> None:
    on_gpu = a_run("all_reduce", nodes=4, transport="nccl", cores=2)
    comparison = a_comparison(SERIAL, FAST, on_gpu)
    row = next(row for row in comparison.rows if row.transport == "nccl")
    assert row.no_speedup == NO_SERIAL
    assert row.workload.label.endswith(", 2 epochs, on GPUs")
    assert not row.shares_cores
    assert row_of(a_comparison(SERIAL, FAST), "all_reduce").workload.label.endswith(", 2 epochs")


def test_failed_runs_have_no_metrics_and_are_not_baselines() -> None:
    crashed = a_run("ddp", nodes=2, status="failed", cause="node 1: gone")
    rows = a_comparison(a_run(status="timeout", cause="stopped"), FAST, crashed)
    assert row_of(rows, "all_reduce").no_speedup == NO_SERIAL
    row = row_of(rows, "ddp")
    assert row.no_speedup == NOT_OK
    assert (row.train_s, row.accuracy, value(row, "coverage"), row.seconds) == (None, None, None, {})


def test_fault_injection_has_no_speedup() -> None:
    comparison = a_comparison(SERIAL, a_run("fault_injection", accuracy=None))
    assert row_of(comparison, "fault_injection").no_speedup == NO_TRAINING
    assert len(comparison.workloads) == 1


def test_row_has_partition_metrics_and_averaging_gain() -> None:
    run = a_run("one_shot", nodes=3, accuracy=0.8, own=[0.5, 0.6, 0.7], coverage=0.7, overlap=0.2)
    row = row_of(a_comparison(run), "one_shot")
    assert value(row, "local_accuracy_mean") == pytest.approx(0.6)
    assert value(row, "averaging_gain") == pytest.approx(0.2)
    assert (value(row, "coverage"), value(row, "overlap")) == (0.7, 0.2)
    assert (value(row, "js_divergence_mean_bits"), value(row, "js_divergence_max_bits")) == (
        pytest.approx(0.01),
        pytest.approx(0.02),
    )
    assert row.node_samples == [200, 200, 200]


def test_communication_share_excludes_evaluation() -> None:
    row = row_of(a_comparison(a_run("ddp", nodes=2, train_s=4.0, communicate_s=1.0)), "ddp")
    assert value(row, "exchange_share") == pytest.approx(1 / 4)


def test_labels_name_non_default_parameters() -> None:
    rows = a_comparison(a_run("one_shot"), a_run(ONE_SHOT_ALONE)).rows
    assert [row.strategy_label for row in rows] == ["one_shot", "one_shot init=independent"]
    few = {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.1}}
    low_rank = {"name": "all_reduce", "compression": {"name": "power_sgd", "rank": 2}}  # the default
    rows = a_comparison(
        a_run({"name": "all_reduce", "compression": "none"}), a_run(few), a_run(low_rank)
    ).rows
    assert sorted(row.strategy_label for row in rows) == [
        "all_reduce",
        "all_reduce compression=power_sgd",
        "all_reduce compression=top_k(ratio=0.1)",
    ]
    assert row_of(a_comparison(SERIAL), "serial").partitioner_label == ""
    split = a_run("ddp", partitioner={"name": "dirichlet", "alpha": 0.1, "equal_sizes": True})
    assert row_of(a_comparison(split), "ddp").partitioner_label == "dirichlet alpha=0.1 equal_sizes=true"


def test_labels_write_values_as_in_sweep_files() -> None:
    run = a_run({"name": "local_sgd", "local_steps": None}, nodes=2).run
    assert component_label(run, "strategy") == "local_sgd local_steps=null"


def test_efficiency_is_speedup_divided_by_ranks() -> None:
    run = a_run("all_reduce", nodes=2, processes_per_node=4, train_s=2.0)
    row = row_of(a_comparison(SERIAL, run), "all_reduce")
    assert (row.speedup, value(row, "efficiency")) == (4.0, 0.5)


def test_workload_label_names_non_default_node_limits() -> None:
    (workload,) = a_comparison(SERIAL, FAST).workloads
    assert workload.label == "digits, lenet, sgd lr 0.05, batch 32 per rank, 2 epochs"
    limits: dict[str, Any] = {"cpus": 0.4, "memory_mb": 512}
    for runtime, enforced in (("docker", ""), ("local", " (not enforced)")):
        runs = [a_run(runtime=runtime, **limits), a_run("all_reduce", nodes=2, runtime=runtime, **limits)]
        (workload,) = a_comparison(*runs).workloads
        assert workload.label.endswith(f"2 epochs, cpus 0.4 and 512 MiB memory per node{enforced}")
    (workload,) = a_comparison(a_run(cpus=2, pids=64, shm_mb=32, runtime="docker")).workloads
    assert workload.label.endswith("2 threads per rank, cpus 2, 64 pids and 32 MiB /dev/shm per node")


def test_byzantine_nodes_are_a_workload_of_their_own() -> None:
    """Rules are compared under the same attack, and not with honest nodes."""
    byzantine = {"nodes": [-1], "attack": {"name": "noise", "std": 2.0}}
    krum, mean = {"name": "local_sgd", "aggregation": {"name": "krum", "f": 1}}, "local_sgd"
    attacked = [a_run(strategy, nodes=5, byzantine=byzantine) for strategy in (krum, mean)]
    comparison = a_comparison(SERIAL, a_run(mean, nodes=5), *attacked)
    honest, other = comparison.workloads
    assert other.label == f"{honest.label}, with Byzantine node 4: noise(std=2.0)"
    assert [group.strategy_label for group in comparison.groups_in(other)] == [
        "local_sgd aggregation=krum",
        "local_sgd",
    ]
    assert [row.no_speedup for row in comparison.rows if row.run.byzantine] == [NO_SERIAL] * 2
    assert [line["byzantine"] for line in csv_lines(comparison)] == [
        "",
        "",
        *["Byzantine node 4: noise(std=2.0)"] * 2,
    ]


def test_cpu_quotas_count_only_where_they_are_enforced() -> None:
    def shared(**fields: Any) -> bool:
        (row,) = a_comparison(a_run("ddp", nodes=4, cores=2, **fields)).rows
        return row.shares_cores

    assert shared()
    assert shared(cpus=0.5)  # not enforced
    assert shared(runtime="docker")
    assert not shared(runtime="docker", cpus=0.5)


# Groups over seeds


def test_group_contains_runs_that_differ_only_in_seed() -> None:
    runs = [
        a_run("all_reduce", nodes=2, seed=seed, train_s=train_s)
        for seed, train_s in enumerate([4.0, 6.0, 5.0])
    ]
    failed = a_run("all_reduce", nodes=2, seed=3, status="failed", cause="node 0: gone")
    others = [a_run("all_reduce", nodes=2, transport="gloo"), a_run("all_reduce", nodes=4)]
    first, *rest = a_comparison(*runs, failed, *others).groups
    assert len(first.rows) == 4
    assert [len(group.rows) for group in rest] == [1, 1]
    assert first.over(lambda row: row.train_s) == Spread(mean=5.0, low=4.0, high=6.0, seeds=3)
    assert first.repeated
    assert not rest[0].repeated


@pytest.mark.parametrize(
    "other",
    [{"processes_per_node": 2}, {"cpus": 0.4}, {"memory_mb": 64}, {"pids": 64}, {"shm_mb": 64}],
    ids=str,
)
def test_runs_with_different_nodes_are_separate_groups(other: dict[str, Any]) -> None:
    comparison = a_comparison(a_run("ddp", nodes=2), a_run("ddp", nodes=2, **other))
    assert [len(group.rows) for group in comparison.groups] == [1, 1]
    workloads, lines = (
        {getattr(group, name) for group in comparison.groups} for name in ("workload", "line")
    )
    assert len(workloads) * len(lines) == 2  # otherwise a figure would draw them as one line


def test_group_without_a_metric_has_no_spread() -> None:
    assert a_comparison(FAST).groups[0].over(lambda row: row.speedup) is None


# Parameter servers


STALE = a_run("async_parameter_server", nodes=3, staleness=[(0.5, 2), (1.5, 7)])


def test_staleness_is_averaged_over_all_gradients() -> None:
    two, one = (a_comparison(run).rows[0] for run in (STALE, FAST))
    assert (value(two, "staleness_mean"), value(two, "staleness_max")) == (1.0, 7)
    assert (value(one, "staleness_mean"), value(one, "staleness_max")) == (None, None)
    ranks = [rank.model_copy(update={"steps": 30 * rank.rank}) for rank in STALE.ranks]
    row = a_comparison(STALE.model_copy(update={"ranks": ranks})).rows[0]
    assert value(row, "staleness_mean") == pytest.approx((30 * 0.5 + 60 * 1.5) / 90)


def test_results_without_staleness_can_be_read() -> None:
    written = FAST.model_dump(mode="json")
    for rank in written["ranks"]:
        del rank["staleness_mean"], rank["staleness_max"]
    assert RunResult.model_validate(written) == FAST


def test_dropped_choices_are_a_share_of_those_of_all_ranks() -> None:
    counts = [(1000, 100), (3000, 900)]
    ranks = [
        rank.model_copy(update={"expert_choices": choices, "dropped_choices": dropped})
        for rank, (choices, dropped) in zip(FAST.ranks, counts, strict=True)
    ]
    row, without = (a_comparison(run).rows[0] for run in (FAST.model_copy(update={"ranks": ranks}), FAST))
    assert (value(row, "dropped_choices"), value(without, "dropped_choices")) == (0.25, None)


def test_server_counts_in_efficiency_and_has_no_samples() -> None:
    row = row_of(a_comparison(SERIAL, STALE), "async_parameter_server")
    assert value(row, "efficiency") == pytest.approx(1.0 / 3)  # as slow as serial, on three nodes
    assert row.node_samples == [300, 300]


# results.csv


def test_csv_has_one_row_per_run_in_sweep_order() -> None:
    failed = a_run("ddp", nodes=2, status="failed", cause="node 1: lost, with a comma")
    first, second, third, last = csv_lines(a_comparison(FAST, failed, SERIAL, pending=["ddp-gloo-n4-s0-0"]))
    assert [line["status"] for line in (first, second, third, last)] == ["ok", "failed", "ok", "pending"]
    assert float(first["speedup"]) == pytest.approx(1.6)
    assert first["baseline"] == SERIAL.key
    assert second["cause"] == "node 1: lost, with a comma"
    assert second["strategy"] == "ddp"
    assert second["train_s"] == second["accuracy"] == ""
    assert third["partitioner"] == ""
    assert {name for name, value in last.items() if value} == {"key", "status"}


def test_csv_counts_ranks_and_nodes() -> None:
    one, several = csv_lines(a_comparison(FAST, a_run("ddp", nodes=2, processes_per_node=3, cores=1.5)))
    assert (one["nodes"], one["processes_per_node"], one["ranks"], one["cores"]) == ("2", "1", "2", "8")
    assert one["bytes_sent_per_rank"] == "1000000.0"
    assert (several["nodes"], several["processes_per_node"], several["ranks"]) == ("2", "3", "6")
    assert several["cores"] == "1.5"
    assert several["bytes_sent_per_rank"] == "1000000.0"
    assert (one["cpus"], one["memory_mb"], one["pids"], one["shm_mb"]) == ("1.0", "2048", "512", "256")


def test_csv_has_the_staleness() -> None:
    stale, fast = csv_lines(a_comparison(STALE, FAST))
    assert (stale["staleness_mean"], stale["staleness_max"]) == ("1.0", "7")
    assert (fast["staleness_mean"], fast["staleness_max"]) == ("", "")


def test_csv_has_the_reason_for_a_missing_speedup() -> None:
    (line,) = csv_lines(a_comparison(FAST))
    assert line["speedup"] == ""
    assert line["no_speedup_reason"] == NO_SERIAL

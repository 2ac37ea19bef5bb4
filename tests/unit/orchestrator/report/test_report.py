"""Mistakes in the rows and groups of a report: which serial run a run is compared with, which ranks and
seeds a number is of, and which runs are one configuration, one workload or neither."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.labels import component_label, strategy_label
from orchestrator.report.model.rows import NO_SERIAL, NO_TRAINING, NOT_OK
from orchestrator.report.quantities import AVERAGING_GAIN
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

KEPT = {"checkpoint_epochs": 1}
BASELINES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[int]]] = {
    # the fields of serial runs, those of a run, and which serial runs it is compared with
    "same seed": ([{"seed": 0}, {"seed": 1}], {"seed": 1}, [1]),
    "mean of other seeds": ([{"seed": 1}, {"seed": 2}], {"seed": 0}, [0, 1]),
    "same checkpoints": ([{}, KEPT], KEPT, [1]),
    "checkpoints before seed": ([{"seed": 0}, {"seed": 1, **KEPT}], {"seed": 0, **KEPT}, [1]),
    "without checkpoints": ([{}, {"checkpoint_steps": 10}], KEPT, [0]),
    "checkpoints cost time": ([KEPT], {}, []),
    "the only rate": ([{"lr": 0.1}], {"lr": 0.2}, [0]),
    "its own of several rates": ([{"lr": 0.1}, {"lr": 0.2}], {"lr": 0.2}, [1]),
    "none of several rates": ([{"lr": 0.1}, {"lr": 0.2}], {"lr": 0.3}, []),
    "its own warm-up": ([{"warm_up_epochs": 1}, {"warm_up_epochs": 2}], {"warm_up_epochs": 2}, [1]),
    "the shortest warm-up": ([{"warm_up_epochs": 2}, {"warm_up_epochs": 1}], {}, [1]),
    "finished": ([{"seed": 0, "status": "failed", "cause": "gone"}, {"seed": 1}], {"seed": 0}, [1]),
    "none finished": ([{"status": "timeout", "cause": "stopped"}], {}, []),
}


@pytest.mark.parametrize("case", BASELINES)
def test_the_serial_run_that_a_run_is_compared_with(case: str) -> None:
    fields, own, chosen = BASELINES[case]
    serial = [
        a_run(train_s=2.0 ** (at + 3), work_cpu_s=3.0 ** (at + 3), accuracy=0.9 - at / 10, **each)
        for at, each in enumerate(fields)
    ]
    run = a_run("ddp", nodes=2, train_s=4.0, work_cpu_s=3.0, accuracy=0.5, **own)
    comparison = a_comparison(*serial, run)
    row = comparison.rows[-1]
    if not chosen:
        assert (row.baseline, row.speedup, row.no_speedup) == (None, None, NO_SERIAL)
        return
    assert row.baseline
    assert row.baseline.keys == tuple(serial[at].key for at in chosen)
    assert row.speedup == pytest.approx(fmean(2.0 ** (at + 3) for at in chosen) / 4)
    assert value(row, "cpu_time_speedup") == pytest.approx(fmean(3.0 ** (at + 3) for at in chosen) / 3)
    assert value(row, "accuracy_difference") == pytest.approx(fmean(at / 10 - 0.4 for at in chosen))
    same_seed = [each.get("seed", 0) for each in fields if "status" not in each].count(own.get("seed", 0))
    assert row.baseline.same_seed is (same_seed > 0 and case != "checkpoints before seed")
    others = [each for each in comparison.rows if each.baseline and not each.baseline.same_seed]
    if others:
        assert finding_of(comparison, "other_seeds").rows == tuple(others)


OTHER_WORKLOADS: tuple[dict[str, Any], ...] = (
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
    {"clip_norm": 0.5},
    {"precision": "bf16"},
    {"batch_per": "run"},
    {"vary": ["split"]},
)


def test_only_runs_of_one_workload_are_compared() -> None:
    for other in OTHER_WORKLOADS:
        comparison = a_comparison(a_run(**other), FAST)
        row = row_of(comparison, "all_reduce")
        known = [value(row, name) for name in ("speedup", "efficiency", "cpu_time_speedup")]
        assert (*known, value(row, "accuracy_difference"), row.no_speedup) == (*[None] * 4, NO_SERIAL)
        labels = [workload.label for workload in comparison.workloads]
        assert len({*labels}) == 2, other
    on_gpu = a_run("all_reduce", nodes=4, transport="nccl", cores=2)
    row = next(row for row in a_comparison(SERIAL, FAST, on_gpu).rows if row.transport == "nccl")
    assert (row.no_speedup, row.shares_cores) == (NO_SERIAL, False)


def test_runs_on_one_node_belong_to_each_link_and_others_to_their_own() -> None:
    link = {"bandwidth_mbit": 10}
    unlinked = [a_run("ddp", nodes=1), a_run("ddp", nodes=2)]
    linked = [a_run("gossip", nodes=2, link=each) for each in (link, {"bandwidth_mbit": 100})]
    comparison = a_comparison(SERIAL, *unlinked, *linked)
    shown = {
        workload.link: [(group.strategy, group.shape.nodes) for group in comparison.groups_in(workload)]
        for workload in comparison.workloads
    }
    everywhere = [("serial", 1), ("ddp", 1)]
    assert shown == {
        "": [*everywhere, ("ddp", 2)],
        "10 Mbit/s": [*everywhere, ("gossip", 2)],
        "100 Mbit/s": [*everywhere, ("gossip", 2)],
    }


def test_runs_without_a_result_have_no_numbers_and_no_speedup() -> None:
    crashed = a_run("ddp", nodes=2, status="failed", cause="node 1: gone")
    comparison = a_comparison(SERIAL, crashed, a_run("fault_injection", accuracy=None))
    row = row_of(comparison, "ddp")
    assert (row.no_speedup, row.train_s, row.accuracy, row.seconds) == (NOT_OK, None, None, {})
    assert value(row, "coverage") is None
    assert row_of(comparison, "fault_injection").no_speedup == NO_TRAINING
    assert len(comparison.workloads) == 1


# Numbers of a run, of its ranks


def unequal() -> RunResult:
    """A run of two ranks, of which the second does three times as much of everything."""
    run = a_run("ddp", nodes=2, train_s=4.0)
    changed = [
        {
            "train_s": 2.0 * times,
            "work_cpu_s": 1.0 * times,
            "steps": 10 * times,
            "samples": 100 * times,
            "bytes_sent": 1e3 * times,
            "peak_memory_mb": 100.0 * times,
            "parameters": 50 * times,
            "state_bytes": {"weights": 200 * times, "gradient": 100 * times},
            "activation_bytes": 400 * times,
            "seconds": {
                "data": 0.0,
                "compute": 1.0 * times,
                "communicate": 1.0 * times,
                "wait": 0.5,
                "other": 0.0,
                "evaluate": 9.0,
            },
            "expert_choices": 1000 * times,
            "dropped_choices": 0 if times == 1 else 1000,
        }
        for times in (1, 3)
    ]
    ranks = [rank.model_copy(update=each) for rank, each in zip(run.ranks, changed, strict=True)]
    return run.model_copy(update={"ranks": ranks})


def test_each_number_of_a_run_is_that_of_the_right_ranks() -> None:
    run = unequal()
    row = a_comparison(run).rows[0]
    expected = {
        "train_s": 6.0,  # of the slowest
        "work_cpu_s": 3.0,
        "steps": 30,
        "step_s": 6.0 / 30,
        "samples_per_s": 400 / 6.0,  # of all, in the time of the slowest
        "cpu_s_per_sample": 4.0 / 400,
        "bytes_sent_per_rank": 2e3,
        "bytes_sent_per_rank_per_step": 2e3 / 30,
        "peak_memory_mib": 300.0,
        "parameters_per_rank_max": 150,
        "state_bytes_per_rank_max": 900,
        "activation_bytes_per_rank_max": 1200,
        "compute_s": 2.0,  # mean
        "communicate_s": 2.0,
        "exchange_share": 2.5 / 4.5,  # without evaluation
        "exchange_s_per_step": 2.5 / 30,
        "load_balance": (1 + 3) / 2 / 3,
        "dropped_choices": 1000 / 4000,
    }
    assert {name: value(row, name) for name in expected} == pytest.approx(expected)
    one, other = run.ranks
    unknown = other.model_copy(update={"work_cpu_s": None, "peak_memory_mb": None, "state_bytes": {}})
    row = a_comparison(run.model_copy(update={"ranks": [one, unknown]})).rows[0]
    assert (value(row, "cpu_s_per_sample"), value(row, "peak_memory_mib")) == (None, 100.0)
    assert value(row, "state_bytes_per_rank_max") == 300


def test_steps_that_exchange_nothing_have_no_exchange() -> None:
    runs = [a_run(name, nodes=2, communicate_s=1.8) for name in ("one_shot", "hogwild")]
    rows = a_comparison(*runs, a_run("ddp", communicate_s=1.8)).rows
    assert [value(row, "exchange_s_per_step") for row in rows] == [None] * 3
    assert [value(row, "bytes_sent_per_rank_per_step") for row in rows[:2]] == [None] * 2


def test_efficiency_and_shape_count_ranks_and_servers() -> None:
    in_nodes = a_run("all_reduce", nodes=2, processes_per_node=4, train_s=2.0)
    row = row_of(a_comparison(SERIAL, in_nodes), "all_reduce")
    assert (row.speedup, value(row, "efficiency"), row.shape.short) == (4.0, 0.5, "2 × 4")
    server = row_of(a_comparison(SERIAL, STALE), "async_parameter_server")
    assert value(server, "efficiency") == pytest.approx(1.0 / 3)  # as slow as serial, on three nodes
    assert server.node_samples == [300, 300]
    serial = row_of(a_comparison(SERIAL), "serial")
    assert [value(serial, name) for name in ("speedup", "cpu_time_speedup", "accuracy_difference")] == [
        1,
        1,
        0,
    ]


def test_partition_metrics_and_the_gain_of_averaging() -> None:
    run = a_run("one_shot", nodes=3, accuracy=0.8, own=[0.5, 0.6, 0.7], coverage=0.7, overlap=0.2)
    comparison = a_comparison(run)
    expected = {
        "local_accuracy_min": 0.5,
        "local_accuracy_mean": 0.6,
        "local_accuracy_max": 0.7,
        "averaging_gain": 0.2,
        "coverage": 0.7,
        "overlap": 0.2,
        "js_divergence_mean_bits": 0.01,
        "js_divergence_max_bits": 0.02,
    }
    (row,) = comparison.rows
    assert {name: value(row, name) for name in expected} == pytest.approx(expected)
    even = a_comparison(a_run("one_shot", nodes=2, accuracy=0.5, own=[0.25, 0.75])).groups[0]
    assert AVERAGING_GAIN.sample(even) == {0: 0.0}  # zero is a value


STALE = a_run("async_parameter_server", nodes=3, staleness=[(0.5, 2), (1.5, 7)])


def test_staleness_is_averaged_over_all_gradients() -> None:
    ranks = [rank.model_copy(update={"steps": 30 * rank.rank}) for rank in STALE.ranks]
    stale, fast = a_comparison(STALE.model_copy(update={"ranks": ranks}), FAST).rows
    assert value(stale, "staleness_mean") == pytest.approx((30 * 0.5 + 60 * 1.5) / 90)
    assert (value(stale, "staleness_max"), value(fast, "staleness_mean")) == (7, None)


def test_consensus_distance_and_loss_are_those_of_the_end() -> None:
    run = a_run("gossip", nodes=2, dataset="copy", model="gpt")
    points = [p.model_copy(update={"consensus_distance": 1 / p.epoch}) for p in run.epochs]
    gossip, serial = a_comparison(run.model_copy(update={"epochs": points}), SERIAL).rows
    assert (value(gossip, "consensus_distance"), value(serial, "consensus_distance")) == (0.5, None)
    assert value(gossip, "bits_per_token") == pytest.approx(0.3 / 0.693147, rel=1e-5)
    assert value(serial, "bits_per_token") is None


# Groups, labels and the shape at which strategies are compared


def test_a_group_has_the_runs_that_differ_only_in_seed() -> None:
    runs = [
        a_run("all_reduce", nodes=2, seed=seed, train_s=train_s)
        for seed, train_s in enumerate([4.0, 6.0, 5.0])
    ]
    lost = {"nodes": 2, "status": "failed", "cause": "node 0: gone"}
    one_left = [a_run("gossip", nodes=2), a_run("gossip", seed=1, **lost)]
    others = [
        a_run("all_reduce", nodes=2, transport="gloo"),
        a_run("all_reduce", nodes=4),
        a_run("all_reduce", nodes=2, processes_per_node=2),
        a_run("all_reduce", nodes=2, accumulate=2),
    ]
    first, *rest = a_comparison(*runs, a_run("all_reduce", seed=3, **lost), *one_left, *others).groups
    assert [len(group.rows) for group in (first, *rest)] == [4, 2, 1, 1, 1, 1]
    assert first.over(lambda row: row.train_s) == Spread(mean=5.0, low=4.0, high=6.0, seeds=3)
    assert first.over(lambda row: row.speedup) is None
    assert [first.repeated, rest[0].repeated] == [True, False]
    assert len({group.line for group in (first, *rest)}) == 5  # those of 4 nodes are on the line of 2


def view_of(*results: RunResult) -> WorkloadView:
    comparison = a_comparison(*results)
    (workload,) = comparison.workloads
    return comparison.view(workload)


def test_strategies_are_compared_at_the_most_common_shape_and_the_largest_of_equals() -> None:
    def shape(*of: tuple[str, int]) -> int:
        return view_of(SERIAL, *(a_run(name, nodes=nodes) for name, nodes in of)).shape.nodes

    assert shape(("ddp", 2), ("gossip", 2), ("ddp", 4)) == 2
    assert shape(("ddp", 2), ("ddp", 4)) == 4
    assert view_of(SERIAL).shape.nodes == 1


def test_many_partitioners_are_those_of_which_one_is_shown() -> None:
    several = ["contiguous", "random_partition", "shards", "stratified"]

    def shown(number: int) -> list[str]:
        view = view_of(SERIAL, *(a_run("ddp", nodes=2, partitioner=name) for name in several[:number]))
        assert view.partitioners[0] == "random_partition"  # the reference, whatever comes first
        assert [group.partitioner_label for group in view.reference_candidates] == ["random_partition"]
        return [group.partitioner_label for group in view.line_groups]

    assert shown(3) == ["", "contiguous", "random_partition", "shards"]
    assert shown(4) == ["", "random_partition"]


def test_labels_name_what_is_not_the_default_as_sweep_files_write_it() -> None:
    labels: dict[str, Any] = {
        "one_shot": "one_shot",
        "one_shot init=independent": ONE_SHOT_ALONE,
        "all_reduce": {"name": "all_reduce", "compression": "none"},
        "all_reduce compression=top_k(ratio=0.1)": {
            "name": "all_reduce",
            "compression": {"name": "top_k", "ratio": 0.1},
        },
        "local_sgd local_steps=null": {"name": "local_sgd", "local_steps": None},
        "pipeline split_points=[conv2]": {"name": "pipeline", "split_points": ["conv2"]},
        "hybrid mesh={data: 2}": {"name": "hybrid", "mesh": {"data": 2, "tensor": 1}},
    }
    runs = {label: a_run(strategy, nodes=2).run for label, strategy in labels.items()}
    assert [component_label(run, "strategy") for run in runs.values()] == [*labels]
    skew = {"name": "dirichlet", "alpha": 0.1, "equal_sizes": True}
    row, serial = a_comparison(a_run("ddp", nodes=2, partitioner=skew), SERIAL).rows
    assert (row.partitioner_label, serial.partitioner_label) == ("dirichlet alpha=0.1 equal_sizes=true", "")
    kept = a_run("ddp", nodes=2, checkpoint_epochs=1, accumulate=2)
    assert strategy_label(kept.run) == "ddp accumulate=2 checkpoint_epochs=1"
    lossy = a_run("local_sgd", nodes=2, transport="gloo", on_loss="continue")
    assert strategy_label(lossy.run) == "local_sgd on_loss=continue"


def test_the_label_of_a_workload_names_what_is_not_the_default() -> None:
    def label(**fields: Any) -> str:
        (workload,) = a_comparison(a_run(**{"strategy": "ddp", "nodes": 2, **fields})).workloads
        plain = "digits, lenet, sgd lr 0.05, batch 32 per rank, 2 epochs"
        return workload.label.removeprefix(plain)

    limits = {"cpus": 0.4, "memory_mb": 512}
    assert label() == ""
    assert label(runtime="docker", **limits) == ", cpus 0.4 and 512 MiB memory per node"
    assert label(**limits) == ", cpus 0.4 and 512 MiB memory per node (not enforced)"
    assert label(cpus=2.0, pids=64, shm_mb=32, runtime="docker") == (
        ", 2 threads per rank, cpus 2, 64 pids and 32 MiB /dev/shm per node"
    )
    assert label(node_speed=[1, 0.5], cpus=1.0).endswith(", one node at speed 0.5")
    assert label(clip_norm=0.5, precision="bf16") == ", gradients clipped to norm 0.5, in bf16"
    assert label(vary=[]) == ", seeds vary nothing"
    assert label(target_accuracy=0.9) == " or until 90.0% accuracy"
    assert label(target_accuracy=0.9, patience=2) == " or until 90.0% accuracy in 2 in a row"


def test_runs_under_attack_are_compared_with_each_other() -> None:
    byzantine = {"nodes": [-1], "attack": {"name": "noise", "std": 2.0}}
    attacked = a_run("local_sgd", nodes=5, byzantine=byzantine)
    comparison = a_comparison(SERIAL, a_run("local_sgd", nodes=5), attacked)
    honest, other = comparison.workloads
    label = "Byzantine node 4: noise(std=2.0)"
    assert other.label == f"{honest.label}, with {label}"
    assert comparison.rows[2].no_speedup == NO_SERIAL
    assert [line["byzantine"] for line in csv_lines(comparison)] == ["", "", label]


# results.csv


def test_csv_has_one_row_per_run_in_sweep_order() -> None:
    failed = a_run("ddp", nodes=2, status="failed", cause="node 1: lost, with a comma")
    several = a_run("gossip", nodes=2, processes_per_node=3, cores=1.5, lr=0.1)
    results = (FAST, failed, SERIAL, several)
    lines = csv_lines(a_comparison(*results, pending=["ddp-gloo-n4-s0-0"]))
    assert [line["status"] for line in lines] == ["ok", "failed", "ok", "ok", "pending"]
    assert [line["key"] for line in lines[:4]] == [each.key for each in results]
    first, second, _, fourth, last = lines
    assert float(first["speedup"]) == pytest.approx(1.6)
    assert (first["baseline"], first["no_speedup_reason"]) == (SERIAL.key, "")
    assert (second["cause"], second["strategy"]) == ("node 1: lost, with a comma", "ddp")
    assert second["train_s"] == second["accuracy"] == ""
    names = ("nodes", "processes_per_node", "ranks", "cores", "bytes_sent_per_rank")
    assert [first[name] for name in names] == ["2", "1", "2", "8", "1000000.0"]
    assert [fourth[name] for name in names] == ["2", "3", "6", "1.5", "1000000.0"]
    assert {name for name, text in last.items() if text} == {"key", "status"}

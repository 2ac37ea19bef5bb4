"""Mistakes in the rows and groups of a report: which serial run a run is compared with, which ranks and
seeds a number is of, which runs are one configuration or workload, and which conditions differ."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from orchestrator.report.metrics.fairness import (
    differences,
    global_batch,
    scales_beyond_the_rule,
    unequal_conditions,
)
from orchestrator.report.model.labels import ROLES
from orchestrator.report.model.rows import NO_SERIAL, NO_TRAINING, NOT_OK
from orchestrator.report.statistics.spread import Spread
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    FAILED,
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    finding_of,
    findings_of,
    row_of,
    value,
    view_of,
    with_certificate,
    with_epochs,
    with_ranks,
)
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

KEPT = {"checkpoint_epochs": 1}
WARM_UP = {"warm_up_epochs": 2}
NOISE = {"nodes": [-1], "attack": {"name": "noise", "std": 2.0}}
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
    "the warm-up of its rate": ([{"warm_up_epochs": 1}, {"lr": 0.2, **WARM_UP}], WARM_UP, [0]),
    "the shortest warm-up": ([{"warm_up_epochs": 2}, {"warm_up_epochs": 1}], {}, [1]),
    "finished": ([{"seed": 0, **FAILED}, {"seed": 1}], {"seed": 0}, [1]),
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
        assert (row.serial, row.speedup, row.no_speedup) == ((), None, NO_SERIAL)
        return
    assert [each.key for each in row.serial] == [serial[at].key for at in chosen]
    assert row.speedup == pytest.approx(fmean(2.0 ** (at + 3) for at in chosen) / 4)
    assert value(row, "cpu_time_speedup") == pytest.approx(fmean(3.0 ** (at + 3) for at in chosen) / 3)
    assert value(row, "accuracy_difference") == pytest.approx(fmean(at / 10 - 0.4 for at in chosen))
    assert row.other_seeds is not all(serial[at].run.seed == run.run.seed for at in chosen)
    others = [each for each in comparison.rows if each.other_seeds]
    if others:
        assert finding_of(comparison, "other_seeds").rows == tuple(others)


@pytest.mark.parametrize(
    "other",
    [
        *({"batch_size": 16}, {"epochs": 3}, {"threads": 2}, {"cpus": 0.4}, {"memory_mb": 1024}),
        *({"pids": 64}, {"shm_mb": 64}, {"dataset": "synthetic"}, {"model": "mlp"}, {"vary": ["split"]}),
        *({"optimizer": {"name": "momentum", "momentum": 0.5}}, {"clip_norm": 0.5}, {"batch_per": "run"}),
        *({"precision": "bf16"}, {"byzantine": NOISE, "nodes": 5, "strategy": "local_sgd"}),
    ],
    ids=lambda other: next(iter(other)),
)
def test_only_runs_of_one_workload_are_compared(other: dict[str, Any]) -> None:
    comparison = a_comparison(a_run(**other), FAST)
    row = row_of(comparison, "all_reduce")
    names = ("speedup", "efficiency", "cpu_time_speedup", "accuracy_difference")
    assert [value(row, name) for name in names] == [None] * 4
    assert row.no_speedup == NO_SERIAL
    assert len({workload.label for workload in comparison.workloads}) == 2


def test_runs_on_one_node_belong_to_each_link_and_others_to_their_own() -> None:
    linked = [a_run("gossip", nodes=2, link={"bandwidth_mbit": each}) for each in (10, 100)]
    comparison = a_comparison(SERIAL, a_run("ddp", nodes=1), a_run("ddp", nodes=2), *linked)
    shown = {
        workload.link: [(group.strategy, group.shape.nodes) for group in comparison.groups_in(workload)]
        for workload in comparison.workloads
    }
    everywhere = [("serial", 1), ("ddp", 1)]
    over_links = {f"{mbit} Mbit/s": [*everywhere, ("gossip", 2)] for mbit in (10, 100)}
    assert shown == {"": [*everywhere, ("ddp", 2)], **over_links}


def test_runs_without_a_result_or_serial_have_no_numbers_and_no_speedup() -> None:
    on_gpu = a_run("all_reduce", nodes=4, transport="nccl", cores=2)
    runs = [SERIAL, a_run("ddp", nodes=2, **FAILED), a_run("fault_injection", accuracy=None), on_gpu]
    _, crashed, untrained, gpu = a_comparison(*runs).rows
    assert [crashed.train_s, crashed.accuracy, value(crashed, "coverage")] == [None] * 3
    assert [row.no_speedup for row in (crashed, untrained, gpu)] == [NOT_OK, NO_TRAINING, NO_SERIAL]
    assert not gpu.shares_cores


# Numbers of a run, of its ranks


def test_each_number_of_a_run_is_that_of_the_right_ranks() -> None:
    """Of two ranks, the second does three times as much of everything."""
    amounts = {"steps": 10, "samples": 100, "bytes_sent": 1e3, "peak_memory_mb": 100.0, "parameters": 50}
    amounts |= {"train_s": 2.0, "work_cpu_s": 1.0, "activation_bytes": 400, "expert_choices": 1000}
    waited = {"data": 0.0, "wait": 0.5, "other": 0.0, "evaluate": 9.0}
    run = with_ranks(
        a_run("ddp", nodes=2),
        *(
            {
                **{name: amount * times for name, amount in amounts.items()},
                "state_bytes": {"weights": 200 * times, "gradient": 100 * times},
                "seconds": {**dict.fromkeys(("compute", "communicate"), 1.0 * times), **waited},
                "dropped_choices": 0 if times == 1 else 1000,
            }
            for times in (1, 3)
        ),
    )
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
    unknown = {"work_cpu_s": None, "peak_memory_mb": None, "state_bytes": {}}
    row = a_comparison(with_ranks(run, {}, unknown)).rows[0]
    names = ("cpu_s_per_sample", "peak_memory_mib", "state_bytes_per_rank_max")
    assert [value(row, name) for name in names] == [None, 100.0, 300]


STALE = a_run("async_parameter_server", nodes=3, staleness=[(0.5, 2), (1.5, 7)])


def test_efficiency_and_shape_count_ranks_and_servers() -> None:
    in_nodes = a_run("all_reduce", nodes=2, processes_per_node=4, train_s=2.0)
    serial, row, server = a_comparison(SERIAL, in_nodes, STALE).rows
    assert (row.speedup, value(row, "efficiency"), row.shape.short) == (4.0, 0.5, "2 × 4")
    assert value(server, "efficiency") == pytest.approx(1.0 / 3)  # as slow as serial, on three nodes
    assert server.node_samples == [300, 300]
    names = ("speedup", "cpu_time_speedup", "accuracy_difference")
    assert [value(serial, name) for name in names] == [1, 1, 0]


def test_staleness_is_averaged_over_all_gradients() -> None:
    ranks = with_ranks(STALE, *({"steps": 30 * rank} for rank in range(3)))
    stale, fast = a_comparison(ranks, FAST).rows
    assert value(stale, "staleness_mean") == pytest.approx((30 * 0.5 + 60 * 1.5) / 90)
    assert (value(stale, "staleness_max"), value(fast, "staleness_mean")) == (7, None)


# Groups, labels and the shape at which strategies are compared


def test_a_group_has_the_runs_that_differ_only_in_seed() -> None:
    times = enumerate([4.0, 6.0, 5.0])
    runs = [a_run("all_reduce", nodes=2, seed=seed, train_s=train_s) for seed, train_s in times]
    one_left = [a_run("gossip", nodes=2), a_run("gossip", nodes=2, seed=1, **FAILED)]
    others = [
        a_run("all_reduce", **{"nodes": 2, **fields})
        for fields in ({"transport": "gloo"}, {"nodes": 4}, {"processes_per_node": 2}, {"accumulate": 2})
    ]
    lost = a_run("all_reduce", nodes=2, seed=3, **FAILED)
    first, *rest = a_comparison(*runs, lost, *one_left, *others).groups
    assert [len(group.rows) for group in (first, *rest)] == [4, 2, 1, 1, 1, 1]
    assert first.over(lambda row: row.train_s) == Spread(mean=5.0, low=4.0, high=6.0, seeds=3)
    assert first.over(lambda row: row.speedup) is None
    assert [first.repeated, rest[0].repeated] == [True, False]
    assert len({group.line for group in (first, *rest)}) == 5  # those of 4 nodes are on the line of 2


def test_strategies_are_compared_at_the_most_common_shape_and_the_largest_of_equals() -> None:
    runs = [("ddp", 2), ("ddp", 4), ("gossip", 2)]
    for count, nodes in ((3, 2), (2, 4), (0, 1)):
        made = [a_run(name, nodes=of) for name, of in runs[:count]]
        assert view_of(SERIAL, *made).shape.nodes == nodes


# Conditions


PER_RUN: dict[str, Any] = {"batch_per": "run", "batch_size": 32}
EQUAL = [a_run(**PER_RUN), a_run("all_reduce", nodes=2, **PER_RUN), a_run("ddp", nodes=2, **PER_RUN)]


def found_in(*results: RunResult) -> dict[str, list[str]]:
    """The values of every condition that differs."""
    return {each.condition: list(each.values) for each in differences(view_of(*results))}


def another(strategy: str | dict[str, Any] = "gossip", **fields: Any) -> RunResult:
    return a_run(strategy, nodes=2, **PER_RUN, **fields)


def on_images(run: RunResult, images: int) -> RunResult:
    return with_ranks(run, test_samples=images)


def with_parts(run: RunResult, epoch: int, samples: int) -> RunResult:
    """The run with further parts of its certificate, of an epoch."""
    assert run.certificate
    first = run.certificate.parts
    more = [part.model_copy(update={"epoch": epoch, "samples": samples}) for part in first]
    return with_certificate(run, parts=[*first, *more])


def test_equal_conditions_are_no_difference() -> None:
    assert findings_of(a_comparison(*EQUAL), "conditions_unequal") == []
    assert unequal_conditions(a_comparison(*EQUAL)) == []
    for runs in (
        EQUAL,
        [a_run()],
        [a_run("all_reduce", nodes=2)],
        [on_images(EQUAL[0], 360), *EQUAL[1:]],  # others have not recorded it
        [a_run(vary=[], **PER_RUN), another("ddp", seed=1, vary=[])],
        [EQUAL[0], with_parts(EQUAL[1], 1, 300)],  # of an epoch that was trained again
    ):
        assert found_in(*runs) == {}


@pytest.mark.parametrize(
    ("condition", "values", "others"),
    [
        ("samples per epoch", ["600", "400"], [another(samples=400)]),
        ("samples per epoch", ["600", "400"], [with_parts(EQUAL[1], 2, 100)]),  # in a later epoch
        ("coverage", ["100.0%", "70.0%"], [another(coverage=0.7)]),
        ("seeds", ["0", "0 and 1"], [another("ddp", seed=1)]),
        ("seeds", ["0", "0 to 2"], [another("ddp", seed=seed) for seed in (1, 2)]),
        ("seeds", ["0", "0, 1 and 3"], [another("ddp", seed=seed) for seed in (1, 3)]),
        ("initial weights", ["rank 0's", "each rank's own"], [another(ONE_SHOT_ALONE)]),
        (
            "evaluated model",
            ["the final model", "rank 0's replica, which differs from others"],
            [another("all_gather", digests=["one", "other"])],
        ),
        (
            "model evaluated after epochs",
            ["the common model", "each rank's own model"],
            [another("one_shot")],
        ),
        (
            "model evaluated after epochs",
            ["the common model", "average of the replicas"],
            [with_epochs(another("local_sgd"), consensus_distance=0.1)],
        ),
        ("global batch", ["32", "32 in updates of 16"], [another(steps=60)]),
        ("updates of the model", ["90", "60"], [another("all_gather", steps=60)]),
        ("test images", ["360", "300"], [on_images(EQUAL[0], 360), on_images(EQUAL[1], 300)]),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_a_condition_that_differs_is_found_with_its_values(
    condition: str, values: list[str], others: list[RunResult]
) -> None:
    same = {run.key for run in others}
    found = found_in(*(run for run in EQUAL if run.key not in same), *others)
    assert found[condition] == values
    assert set(found) <= {condition, "global batch", "model evaluated after epochs"}


def test_global_batch_counts_the_replicas_that_train() -> None:
    expected = {"all_reduce": 128, "parameter_server": 96, "pipeline": 32, "hybrid": 64}
    for name, batch in expected.items():
        assert global_batch(RunSpec(strategy=name, nodes=4, batch_size=32)) == batch
    assert global_batch(RunSpec(strategy="all_reduce", nodes=4, **PER_RUN)) == 32


def test_rules_for_large_batches_do_not_cover_updates_with_one_batch() -> None:
    every_step: tuple[dict[str, Any], ...] = (
        {"name": "local_sgd", "local_steps": 1},
        {"name": "diloco", "local_steps": 1},
        {"name": "gossip", "graph": "complete", "order": "step_then_mix"},
    )
    beyond = set()
    for name in STRATEGIES.entries:
        if not STRATEGIES.load(name).trains or name == "serial":
            continue
        fields = {"strategy": name, "nodes": 4, **fields_for(name)}
        scaled = {**fields, "lr_scaling": "linear"}
        beyond |= {name} if scales_beyond_the_rule(RunSpec.model_validate(scaled)) else set()
        for none in (fields, {**scaled, "batch_per": "run", "batch_size": 96}):
            assert not scales_beyond_the_rule(RunSpec.model_validate(none)), name
    local_steps = {"one_shot", "local_sgd", "diloco", "fedopt", "fedprox", "gossip", "hogwild"}
    local_steps |= {"hierarchical_sgd", "elastic_averaging", "scaffold", "fednova", "noloco"}
    asynchronous = {"async_parameter_server", "async_diloco", "async_elastic_averaging", "fedbuff"}
    assert beyond == {*local_steps, *asynchronous, "push_sum", "sparta"}
    for strategy in every_step:
        assert not scales_beyond_the_rule(RunSpec(strategy=strategy, nodes=4, lr_scaling="linear"))


def test_unequal_conditions_are_one_caution_per_workload() -> None:
    runs = [a_run(), a_run("ddp", nodes=2), a_run(lr=0.1), a_run("ddp", nodes=2, samples=400, lr=0.1)]
    one, other = findings_of(a_comparison(*runs), "conditions_unequal")
    assert (one.caution, one.data["nodes"]) == (True, "2\N{NO-BREAK SPACE}nodes")
    assert one.data["differences"] == {"global batch": {"32": ["serial"], "64": ["ddp over gloo"]}}
    assert set(other.data["differences"]) == {"samples per epoch", "global batch"}
    assert {row.key for row in one.rows} == {runs[0].key, runs[1].key}


def test_each_field_of_a_spec_has_one_role_in_comparisons() -> None:
    # A new field without one would let runs that differ in it count as the same training.
    named = [name for names in ROLES.values() for name in names]
    assert sorted(named) == sorted(RunSpec.model_fields)

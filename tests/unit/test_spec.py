"""RunSpec: what may be asked for, and what names a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from trainer.spec.run_spec import RunSpec

NAN, INF = float("nan"), float("inf")


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", **fields})


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    return str(caught.value)


# Strictness: what is not exactly a value of the field is an error that names the field

INTEGERS = {
    "nodes": (1, 1024),
    "batch_size": (1, 65536),
    "epochs": (1, 10_000),
    "seed": (0, 2**32 - 1),
    "threads": (1, 256),
    "processes_per_node": (1, 64),
    "memory_mb": (64, None),
    "pids": (16, None),
    "shm_mb": (16, None),
}


@pytest.mark.parametrize(("field", "limits"), INTEGERS.items())
def test_integers(field: str, limits: tuple[int, int | None]) -> None:
    low, high = limits
    for good in (low, high or 10**9):
        assert getattr(spec(**{field: good}), field) == good
    for bad in (low - 1, *([high + 1] if high else []), 1.0, 1.5, NAN, INF, True, "1", None, [1]):
        assert f"\n{field}\n" in refusal(**{field: bad})


@pytest.mark.parametrize(("field", "high"), [("lr", 100), ("timeout_s", 7 * 86400), ("cpus", 256)])
def test_numbers(field: str, high: float) -> None:
    for good in (1e-9, 1, high):
        assert getattr(spec(**{field: good}), field) == good
    for bad in (0, -1, -0.0, high * 1.001, NAN, INF, -INF, True, "0.1", None, [0.1]):
        assert f"\n{field}\n" in refusal(**{field: bad})


def test_truth_values() -> None:
    assert spec(save_weights=True).save_weights
    for bad in (1, 0, "true", None):
        assert "\nsave_weights\n" in refusal(save_weights=bad)


@pytest.mark.parametrize("field", ["strategy", "dataset", "partitioner", "model", "optimizer"])
@pytest.mark.parametrize(
    "bad", ["no_such", "", 1, None, [], ["lenet"], {}, {"name": 1}, {"name": "no_such"}]
)
def test_components(field: str, bad: Any) -> None:
    message = refusal(**{field: bad})
    assert f"\n{field}\n" in message
    assert "known: " in message


@pytest.mark.parametrize("bad", ["no_such", "", 1, None, True])
def test_transports(bad: Any) -> None:
    assert "\ntransport\n" in refusal(transport=bad)


def test_unknown_fields_and_lacking_ones() -> None:
    assert "learning_rate" in refusal(learning_rate=0.1)
    with pytest.raises(ValidationError, match="strategy"):
        RunSpec.model_validate({})


def test_a_run_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec().nodes = 2  # type: ignore[misc]


# What fits together


def test_transport_is_the_strategys_first_unless_it_is_said() -> None:
    assert spec().transport == "mpi"
    assert spec(transport="gloo").transport == "gloo"
    assert spec(strategy="ddp").transport == "gloo"
    assert spec(strategy={"name": "one_shot", "init": "independent"}).transport == "mpi"


TOPOLOGIES = [("mpi", "mpi"), ("gloo", "ddp"), ("nccl", "ddp"), ("rpc", "rpc"), ("memory", "single")]


@pytest.mark.parametrize(("transport", "topology"), TOPOLOGIES)
def test_topology_follows_from_the_transport(transport: str, topology: str) -> None:
    assert spec(transport=transport).topology == topology
    assert spec(transport=transport).on_gpu == (transport == "nccl")


def test_a_transport_that_the_strategy_cannot_use() -> None:
    assert "ddp cannot use mpi; allowed: gloo, nccl" in refusal(strategy="ddp", transport="mpi")
    assert "rpc_split cannot use gloo; allowed: rpc" in refusal(strategy="rpc_split", transport="gloo")


def test_limits_of_the_strategy() -> None:
    assert "serial cannot run on 2 nodes; allowed: 1" in refusal(strategy="serial", nodes=2)


def test_more_nodes_than_samples() -> None:
    small = {"name": "synthetic", "samples": 4}
    assert spec(dataset=small, nodes=4).nodes == 4
    message = refusal(dataset=small, nodes=5)
    assert "5 nodes are more than the 4 training samples of synthetic" in message
    assert spec(strategy="fault_injection", dataset=small, nodes=5).nodes == 5  # it trains on nothing


@pytest.mark.parametrize(
    ("partitioner", "reason"),
    [
        (
            {"name": "shards", "per_node": 300},
            "makes more shards than the 1437 samples; it can be at most 287",
        ),
        ({"name": "dirichlet", "min_samples": 288}, "is more than the 1437 samples; it can be at most 287"),
        (
            {"name": "classes", "per_node": 11},
            "per_node 11 is more than the 10 classes; it can be at most 10",
        ),
        (
            {"name": "classes", "per_node": 1},
            "only 5 of 10 classes would be on a node; set per_node to 2 or",
        ),
        ({"name": "contiguous", "reshuffle": True}, "the same in every epoch, so reshuffle must be false"),
    ],
    ids=repr,
)
def test_a_partitioner_that_cannot_split_the_dataset(partitioner: dict[str, Any], reason: str) -> None:
    message = refusal(nodes=5, partitioner=partitioner)
    assert f"{partitioner['name']} cannot split digits among 5 nodes: " in message
    assert reason in message
    assert "type=partitioner" in message
    assert spec(strategy="serial", partitioner=partitioner).nodes == 1  # it does not split


def test_a_partitioner_splits_among_ranks_and_the_classes_of_the_dataset() -> None:
    partitioner, dataset = {"name": "classes", "per_node": 3}, {"name": "synthetic", "classes": 12}
    assert spec(nodes=2, processes_per_node=2, partitioner=partitioner, dataset=dataset).world_size == 4
    message = refusal(nodes=1, processes_per_node=3, partitioner=partitioner, dataset=dataset)
    assert "among 3 ranks (1 × 3): with per_node 3 only 9 of 12 classes" in message


def test_a_server_needs_a_worker_and_no_sample() -> None:
    small = {"name": "synthetic", "samples": 4}
    server = {"strategy": "parameter_server", "dataset": small}
    assert spec(**server, nodes=5).num_replicas == 4
    assert spec(dataset=small, nodes=4).num_replicas == 4
    message = refusal(**server, nodes=6)
    assert "5 workers of 6 nodes are more than the 4 training samples of synthetic" in message
    assert "type=processes_per_node" in refusal(**server, nodes=5, processes_per_node=2)
    assert "parameter_server cannot run on 1 node; allowed: 2 or more" in refusal(**server)


def test_limits_of_the_strategy_count_ranks() -> None:
    message = refusal(strategy="serial", processes_per_node=2)
    assert "serial cannot run on 2 ranks (1 × 2); allowed: 1" in message
    assert "type=processes_per_node" in message
    assert "type=nodes" in refusal(strategy="serial", nodes=3, processes_per_node=2)


def test_more_ranks_than_samples() -> None:
    small = {"name": "synthetic", "samples": 4}
    assert spec(dataset=small, nodes=2, processes_per_node=2).world_size == 4
    message = refusal(dataset=small, nodes=3, processes_per_node=2)
    assert "6 ranks (3 × 2) are more than the 4 training samples of synthetic" in message
    assert "type=processes_per_node" in message
    assert "type=nodes" in refusal(dataset=small, nodes=5, processes_per_node=2)


def test_over_rpc_a_node_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec(nodes=2, processes_per_node=2).world_size == 4
    monkeypatch.setattr(RunSpec, "topology", "rpc")
    assert spec(nodes=2).world_size == 2
    assert "2 is not allowed over mpi, where a node is one rank; it must be 1" in refusal(
        nodes=2, processes_per_node=2
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_are_threads_where_several_share_a_process(nodes: int) -> None:
    assert spec(transport="memory", nodes=nodes, processes_per_node=2).ranks_are_threads
    assert spec(transport="memory", nodes=nodes).ranks_are_threads == (nodes > 1)
    assert not spec(strategy="hogwild", nodes=nodes, processes_per_node=2).ranks_are_threads


# Learning rate and target accuracy


def test_warm_up_and_patience_are_epochs() -> None:
    assert spec(warm_up_epochs=10_000).warm_up_epochs == 10_000
    for bad in (-1, 10_001, 1.0, True, "1", None):
        assert "\nwarm_up_epochs\n" in refusal(warm_up_epochs=bad)
        assert "\npatience\n" in refusal(patience=bad)
    assert "\npatience\n" in refusal(patience=0)
    for bad in ("cubic", None, True, 1):
        assert "\nlr_scaling\n" in refusal(lr_scaling=bad)


def test_a_target_is_an_accuracy() -> None:
    for good in (1e-9, 0.5, 1, 1.0):
        assert spec(strategy="serial", target_accuracy=good).target_accuracy == good
    for bad in (0, -0.1, 1.001, 90, NAN, INF, True, "0.9"):
        assert "\ntarget_accuracy\n" in refusal(strategy="serial", target_accuracy=bad)


@pytest.mark.parametrize("strategy", ["one_shot", "hogwild"])
def test_ranks_that_evaluate_a_model_each_have_no_target(strategy: str) -> None:
    message = refusal(strategy=strategy, target_accuracy=0.9)
    assert f"0.9 is not allowed with {strategy}, whose ranks evaluate a model each" in message
    assert "type=target_accuracy" in message


def test_who_trains_nothing_has_no_target() -> None:
    assert "fault_injection, which trains nothing; it must be null" in refusal(
        strategy="fault_injection", target_accuracy=0.9
    )


def test_patience_without_a_target_or_longer_than_the_run() -> None:
    assert "2 is for a target_accuracy, and there is none; it must be 1" in refusal(patience=2)
    message = refusal(strategy="serial", target_accuracy=0.5, patience=4, epochs=3)
    assert "4 epochs in a row are more than the 3 of the run" in message
    assert spec(strategy="serial", target_accuracy=0.5, patience=3, epochs=3).patience == 3


# Threads follow the quota


@pytest.mark.parametrize(
    ("fields", "threads"),
    [
        ({}, 1),
        ({"cpus": 0.4}, 1),
        ({"cpus": 4}, 4),
        ({"cpus": 3.9}, 3),
        ({"cpus": 4, "processes_per_node": 2}, 2),
        ({"cpus": 4, "processes_per_node": 3}, 1),
        ({"cpus": 4, "processes_per_node": 8}, 1),
        ({"cpus": 4, "threads": 1}, 1),
        ({"threads": 3}, 3),
        ({"cpus": 256}, 256),
    ],
)
def test_threads_are_those_of_the_quota_unless_they_are_said(fields: dict[str, Any], threads: int) -> None:
    run = spec(**fields)
    assert run.threads == threads
    again = RunSpec.model_validate(json.loads(json.dumps(run.canonical())))
    assert (again, again.key) == (run, run.key)


def test_a_quota_that_is_wrong_is_the_only_mistake() -> None:
    for bad in ("4", 1000, NAN, -1, None):
        assert "\nthreads\n" not in refusal(cpus=bad)
        assert "\nthreads\n" not in refusal(processes_per_node=bad)
    assert "\nthreads\n" not in refusal(processes_per_node=0)


def test_threads_that_the_quota_gives_anyway_make_no_other_run() -> None:
    assert spec(cpus=4).key == spec(cpus=4, threads=4).key
    assert spec(cpus=4).key != spec(cpus=4, threads=1).key
    assert spec(threads=4).key != spec(cpus=4).key != spec().key


# A node that is slower


def test_the_last_node_may_be_slower() -> None:
    run = spec(nodes=3, processes_per_node=2, cpus=4, bottleneck_cpus=2.5)
    assert [run.cpus_for(rank) for rank in range(6)] == [4, 4, 4, 4, 2.5, 2.5]
    assert [run.threads_for(rank) for rank in range(6)] == [2, 2, 2, 2, 1, 1]
    assert set(run.thread_environment(0).values()) == {"2"}
    assert set(run.thread_environment(5).values()) == {"1"}
    more = spec(nodes=2, cpus=4, threads=1, bottleneck_cpus=3)
    assert [more.threads_for(rank) for rank in range(2)] == [1, 1]  # who wants fewer gets fewer


def test_without_a_bottleneck_all_nodes_are_alike_and_keys_are_what_they_were() -> None:
    run = spec(nodes=3, cpus=0.5)
    assert not any(map(run.is_bottleneck, range(3)))
    assert run.key == spec(nodes=3, cpus=0.5, bottleneck_cpus=None).key
    assert run.key != spec(nodes=3, cpus=0.5, bottleneck_cpus=0.25).key


@pytest.mark.parametrize(
    ("fields", "oversubscribed"),
    [({}, False), ({"bottleneck_cpus": 0.5}, True), ({"cpus": 0.5}, True), ({"cpus": 2}, False)],
)
def test_all_ranks_wait_alike_where_one_has_less_than_a_core(
    fields: dict[str, Any], oversubscribed: bool
) -> None:
    assert spec(nodes=2, **fields).oversubscribed == oversubscribed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"nodes": 1}, "a run on one node has no other that could wait for it"),
        ({"cpus": 0.25}, "it must be less than cpus, which is 0.25"),
        ({"cpus": 0.2}, "it must be less than cpus, which is 0.2"),
        ({"transport": "memory"}, "over memory all nodes share one quota"),
        ({"strategy": "hogwild"}, "over memory all nodes share one quota"),
        ({"strategy": "all_reduce", "transport": "nccl"}, "over nccl ranks compute on GPUs"),
    ],
)
def test_where_no_node_can_be_slower(fields: dict[str, Any], reason: str) -> None:
    told = refusal(**{"nodes": 2, "bottleneck_cpus": 0.25, **fields})
    assert f"the last node cannot be held to 0.25 cpus: {reason}" in told


# Identity


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"strategy": "serial"}, "serial-memory-n1-s0-27bbbdf4"),
        ({"strategy": "one_shot", "nodes": 5, "seed": 1}, "one_shot-mpi-n5-s1-24eff46e"),
        (
            {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "lr": 0.1, "batch_size": 64},
            "all_reduce-gloo-n2-s0-cc5a0ad2",
        ),
        (
            {
                "strategy": {"name": "one_shot", "init": "independent"},
                "dataset": {"name": "synthetic", "samples": 512, "noise": 1.0},
                "partitioner": {"name": "random_sampling", "reshuffle": True},
                "model": {"name": "mlp", "hidden": [32]},
                "optimizer": {"name": "momentum", "nesterov": True},
                "epochs": 2,
                "threads": 2,
                "save_weights": True,
            },
            "one_shot-mpi-n1-s0-338a736d",
        ),
        ({"strategy": "ddp", "nodes": 2, "processes_per_node": 4}, "ddp-gloo-n2x4-s0-56cadc81"),
        ({"strategy": "ddp", "nodes": 2, "cpus": 0.4, "memory_mb": 1024}, "ddp-gloo-n2-s0-47da9a2d"),
        (
            {
                "strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.1}},
                "nodes": 2,
            },
            "all_reduce-mpi-n2-s0-61989031",
        ),
    ],
)
def test_keys_are_written_down(fields: dict[str, Any], key: str) -> None:
    # Another key for the same run loses everybody's results: a sweep would train them all again.
    assert RunSpec.model_validate(fields).key == key


def test_key_does_not_depend_on_how_the_run_is_written() -> None:
    key = spec(nodes=2).key
    assert spec(nodes=2, timeout_s=5).key == key
    assert spec(nodes=2, lr=0.05, epochs=3, model="lenet", save_weights=False).key == key
    assert spec(nodes=2, model={"name": "lenet", "dropout": 0.5}, dataset={"name": "digits"}).key == key
    assert spec(nodes=2, transport="mpi", strategy={"name": "one_shot", "init": "broadcast"}).key == key
    assert RunSpec.model_validate({"nodes": 2, "strategy": "one_shot"}).key == key
    assert spec(nodes=2, lr=1).key == spec(nodes=2, lr=1.0).key


def test_a_component_inside_another_is_in_the_key_without_its_defaults() -> None:
    def key(compression: Any, strategy: str = "all_reduce") -> str:
        return spec(strategy={"name": strategy, "compression": compression}, nodes=2).key

    assert key("none") == key({"name": "none"}) == spec(strategy="all_reduce", nodes=2).key
    assert key("none", "ddp") == spec(strategy="ddp", nodes=2).key
    assert key("top_k") == key({"name": "top_k", "ratio": 0.01})
    assert len({key("none"), key("sign"), key("top_k"), key({"name": "top_k", "ratio": 0.1})}) == 4
    run = spec(strategy={"name": "all_reduce", "compression": "top_k"}, nodes=2)
    assert run.canonical()["strategy"] == {"name": "all_reduce", "compression": {"name": "top_k"}}
    assert RunSpec.model_validate_json(run.model_dump_json()) == run


CHANGES: dict[str, Any] = {
    "strategy": {"name": "local_sgd", "init": "independent"},
    "transport": "gloo",
    "nodes": 3,
    "dataset": "synthetic",
    "partitioner": {"name": "random_partition", "reshuffle": True},
    "augmentation": {"name": "standard", "saturation": 0},
    "model": {"name": "lenet", "dropout": 0.25},
    "optimizer": "adam",
    "lr": 0.051,
    "lr_scaling": "sqrt",
    "warm_up_epochs": 2,
    "batch_size": 36,
    "batch_per": "run",
    "epochs": 4,
    "target_accuracy": 0.9,
    "patience": 2,
    "seed": 1,
    "threads": 2,
    "checkpoint_epochs": 2,
    "save_weights": True,
    "processes_per_node": 2,
    "cpus": 0.4,
    "bottleneck_cpus": 0.2,
    "memory_mb": 1024,
    "pids": 256,
    "shm_mb": 64,
}
# What must be there for a change to mean something.
BESIDE: dict[str, dict[str, Any]] = {
    "lr_scaling": {"nodes": 2},
    "bottleneck_cpus": {"nodes": 2},
    "warm_up_epochs": {"nodes": 2},
    "target_accuracy": {"strategy": "all_reduce"},
    "patience": {"strategy": "all_reduce", "target_accuracy": 0.5},
}


def test_key_depends_on_everything_else() -> None:
    # checkpoint_steps is in the key, too, and one_shot can have none: see test_checkpoints.py.
    assert set(RunSpec.model_fields) - set(CHANGES) == {"timeout_s", "restarts", "checkpoint_steps"}
    keys = {spec(**BESIDE.get(field, {}), **{field: value}).key for field, value in CHANGES.items()}
    plain = {spec(**BESIDE.get(field, {})).key for field in CHANGES}
    assert len(keys) == len(CHANGES)
    assert not keys & plain


def test_key_is_a_directory_name_that_says_what_it_is() -> None:
    head, _, digest = spec(nodes=4, seed=7, transport="gloo").key.rpartition("-")
    assert head == "one_shot-gloo-n4-s7"
    assert spec(nodes=4, processes_per_node=2).key.startswith("one_shot-mpi-n4x2-s0-")
    assert len(digest) == 8
    assert int(digest, 16) >= 0


def test_canonical_says_what_is_not_the_default() -> None:
    run = spec(nodes=2, lr=0.05, timeout_s=5, model={"name": "mlp", "hidden": [128, 64]})
    assert run.canonical() == {
        "strategy": {"name": "one_shot"},
        "transport": "mpi",
        "nodes": 2,
        "model": {"name": "mlp"},
    }


@pytest.mark.parametrize("changes", [{}, CHANGES], ids=["defaults", "changed"])
def test_written_and_read_again_it_is_the_same(changes: dict[str, Any]) -> None:
    run = spec(**changes)
    assert RunSpec.model_validate_json(run.model_dump_json()) == run
    assert RunSpec.model_validate(run.model_dump(mode="json")).key == run.key
    assert RunSpec.model_validate(json.loads(json.dumps(run.canonical()))).key == run.key

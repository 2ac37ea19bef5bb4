"""RunSpec: field validation, checks across fields, and the run key."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.sweeps.validation import dotted, error_lines
from trainer.spec import checks
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

NAN, INF = float("nan"), float("inf")


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", **fields})


def invalid_fields(**fields: Any) -> set[Any]:
    """The fields that validation reports."""
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    return {error["loc"][0] for error in caught.value.errors()}


def check_error(field: str, *named: Any, **fields: Any) -> None:
    """Expect one error of a check across fields: about `field`, naming the given values."""
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    (error,) = caught.value.errors()
    assert error["type"] == field
    assert [value for value in named if str(value) not in error["msg"]] == []


# Types and ranges of fields

INTEGERS = {
    "nodes": (1, 16384),
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
    large = {"name": "synthetic", "samples": 60_000}  # enough for the largest number of nodes
    for good in (low, high or 10**9):
        assert getattr(spec(**{"dataset": large, field: good}), field) == good
    for bad in (low - 1, *([high + 1] if high else []), 1.0, 1.5, NAN, INF, True, "1", None, [1]):
        assert invalid_fields(**{field: bad}) == {field}


@pytest.mark.parametrize(("field", "high"), [("lr", 100), ("timeout_s", 7 * 86400), ("cpus", 256)])
def test_numbers(field: str, high: float) -> None:
    for good in (1e-9, 1, high):
        assert getattr(spec(**{field: good}), field) == good
    for bad in (0, -1, -0.0, high * 1.001, NAN, INF, -INF, True, "0.1", None, [0.1]):
        assert invalid_fields(**{field: bad}) == {field}


def test_truth_values() -> None:
    assert spec(save_weights=True).save_weights
    for bad in (1, 0, "true", None):
        assert "save_weights" in invalid_fields(save_weights=bad)


@pytest.mark.parametrize("field", ["strategy", "dataset", "partitioner", "model", "optimizer"])
@pytest.mark.parametrize(
    "bad", ["no_such", "", 1, None, [], ["lenet"], {}, {"name": 1}, {"name": "no_such"}]
)
def test_components(field: str, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**{field: bad})
    (error,) = caught.value.errors()
    assert error["loc"] == (field,)
    assert all(name in error["msg"] for name in REGISTRIES[field].entries)


@pytest.mark.parametrize("bad", ["no_such", "", 1, None, True])
def test_transports(bad: Any) -> None:
    assert "transport" in invalid_fields(transport=bad)


def test_unknown_and_missing_fields() -> None:
    assert invalid_fields(learning_rate=0.1) == {"learning_rate"}
    with pytest.raises(ValidationError, match="strategy"):
        RunSpec.model_validate({})


def test_run_spec_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec().nodes = 2  # type: ignore[misc]


# Checks across fields


def test_transport_defaults_to_the_first_of_the_strategy() -> None:
    assert spec().transport == "mpi"
    assert spec(transport="gloo").transport == "gloo"
    assert spec(strategy="ddp").transport == "gloo"
    assert spec(strategy={"name": "one_shot", "init": "independent"}).transport == "mpi"


TOPOLOGIES = [("mpi", "mpi"), ("gloo", "ddp"), ("nccl", "ddp"), ("rpc", "rpc"), ("memory", "single")]


@pytest.mark.parametrize(("transport", "topology"), TOPOLOGIES)
def test_topology_follows_from_the_transport(transport: str, topology: str) -> None:
    assert spec(transport=transport).topology == topology
    assert spec(transport=transport).on_gpu == (transport == "nccl")


def test_transport_must_fit_the_strategy() -> None:
    check_error("transport", "ddp", "mpi", "allowed: gloo, nccl", strategy="ddp", transport="mpi")
    check_error("transport", "gloo", "allowed: rpc", strategy="rpc_split", transport="gloo")


def test_nodes_must_fit_the_strategy() -> None:
    check_error("nodes", "serial", "2 nodes", "allowed: 1", strategy="serial", nodes=2)


def test_nodes_must_not_exceed_samples() -> None:
    small = {"name": "synthetic", "samples": 4}
    assert spec(dataset=small, nodes=4).nodes == 4
    check_error("nodes", "5 nodes", "4 training samples", "synthetic", dataset=small, nodes=5)
    assert spec(strategy="fault_injection", dataset=small, nodes=5).nodes == 5  # does not train


@pytest.mark.parametrize(
    ("partitioner", "named"),
    [
        ({"name": "shards", "per_node": 300}, ("per_node 300", 1437, 287)),
        ({"name": "dirichlet", "min_samples": 288}, ("min_samples 288", 1437, 287)),
        ({"name": "classes", "per_node": 11}, ("per_node 11", "10 classes")),
        ({"name": "classes", "per_node": 1}, ("5 of 10 classes", "per_node to 2")),
        ({"name": "contiguous", "reshuffle": True}, ("reshuffle", "false")),
    ],
    ids=repr,
)
def test_partitioner_must_fit_the_dataset(partitioner: dict[str, Any], named: tuple[Any, ...]) -> None:
    names = (partitioner["name"], "digits", "5 nodes", *named)
    check_error("partitioner", *names, nodes=5, partitioner=partitioner)
    assert spec(strategy="serial", partitioner=partitioner).nodes == 1  # does not partition


def test_partitioner_check_uses_ranks_and_classes() -> None:
    partitioner, dataset = {"name": "classes", "per_node": 3}, {"name": "synthetic", "classes": 12}
    fields = {"partitioner": partitioner, "dataset": dataset}
    assert spec(nodes=2, processes_per_node=2, **fields).world_size == 4
    named = ("3 ranks (1 × 3)", "per_node 3", "9 of 12 classes")
    check_error("partitioner", *named, nodes=1, processes_per_node=3, **fields)


def test_parameter_server_needs_a_worker_and_no_samples() -> None:
    small = {"name": "synthetic", "samples": 4}
    server = {"strategy": "parameter_server", "dataset": small}
    assert spec(**server, nodes=5).num_replicas == 4
    assert spec(dataset=small, nodes=4).num_replicas == 4
    check_error("nodes", "5 workers of 6 nodes", "4 training samples", **server, nodes=6)
    check_error("processes_per_node", **server, nodes=5, processes_per_node=2)
    check_error("nodes", "parameter_server", "1 node", "2 or more", **server)


def test_limits_of_a_strategy_count_ranks() -> None:
    named = ("serial", "2 ranks (1 × 2)", "allowed: 1")
    check_error("processes_per_node", *named, strategy="serial", processes_per_node=2)
    check_error("nodes", strategy="serial", nodes=3, processes_per_node=2)


def test_ranks_must_not_exceed_samples() -> None:
    small = {"name": "synthetic", "samples": 4}
    assert spec(dataset=small, nodes=2, processes_per_node=2).world_size == 4
    named = ("6 ranks (3 × 2)", "4 training samples", "synthetic")
    check_error("processes_per_node", *named, dataset=small, nodes=3, processes_per_node=2)
    check_error("nodes", dataset=small, nodes=5, processes_per_node=2)


def test_rpc_has_one_rank_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec(nodes=2, processes_per_node=2).world_size == 4
    monkeypatch.setattr(RunSpec, "topology", "rpc")
    assert spec(nodes=2).world_size == 2
    named = ("2 is not allowed", "mpi", "allowed: 1")
    check_error("processes_per_node", *named, nodes=2, processes_per_node=2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_memory_ranks_are_threads(nodes: int) -> None:
    assert spec(transport="memory", nodes=nodes, processes_per_node=2).ranks_are_threads
    assert spec(transport="memory", nodes=nodes).ranks_are_threads == (nodes > 1)
    assert not spec(strategy="hogwild", nodes=nodes, processes_per_node=2).ranks_are_threads


# Learning rate and target accuracy


def test_warm_up_and_patience_are_epochs() -> None:
    assert spec(epochs=10_000, warm_up_epochs=10_000).warm_up_epochs == 10_000
    for bad in (-1, 10_001, 1.0, True, "1", None):
        assert "warm_up_epochs" in invalid_fields(warm_up_epochs=bad)
        assert "patience" in invalid_fields(patience=bad)
    assert "patience" in invalid_fields(patience=0)
    for bad in ("cubic", None, True, 1):
        assert "lr_scaling" in invalid_fields(lr_scaling=bad)


def test_target_accuracy_range() -> None:
    for good in (1e-9, 0.5, 1, 1.0):
        assert spec(strategy="serial", target_accuracy=good).target_accuracy == good
    for bad in (0, -0.1, 1.001, 90, NAN, INF, True, "0.9"):
        assert "target_accuracy" in invalid_fields(strategy="serial", target_accuracy=bad)


@pytest.mark.parametrize("strategy", ["one_shot", "hogwild"])
def test_target_accuracy_needs_joint_evaluation(strategy: str) -> None:
    check_error("target_accuracy", 0.9, strategy, "null", strategy=strategy, target_accuracy=0.9)


def test_target_accuracy_needs_training() -> None:
    check_error("target_accuracy", 0.9, "null", strategy="fault_injection", target_accuracy=0.9)


def test_patience_needs_a_target_and_enough_epochs() -> None:
    check_error("patience", 2, "target_accuracy", "allowed: 1", patience=2)
    fields = {"strategy": "serial", "target_accuracy": 0.5, "epochs": 3}
    check_error("patience", 4, "allowed: 1 to 3", **fields, patience=4)
    assert spec(strategy="serial", target_accuracy=0.5, patience=3, epochs=3).patience == 3


# Threads default to the quota


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
def test_threads_default_to_the_quota(fields: dict[str, Any], threads: int) -> None:
    run = spec(**fields)
    assert run.threads == threads
    again = RunSpec.model_validate(json.loads(json.dumps(run.canonical())))
    assert (again, again.key) == (run, run.key)


def test_invalid_quota_is_the_only_error() -> None:
    for bad in ("4", 1000, NAN, -1, None):
        assert "threads" not in invalid_fields(cpus=bad)
        assert "threads" not in invalid_fields(processes_per_node=bad)
    assert "threads" not in invalid_fields(processes_per_node=0)


def test_default_threads_do_not_change_the_key() -> None:
    assert spec(cpus=4).key == spec(cpus=4, threads=4).key
    assert spec(cpus=4).key != spec(cpus=4, threads=1).key
    assert spec(threads=4).key != spec(cpus=4).key != spec().key


# Nodes of unequal speed


@pytest.mark.parametrize(
    "written", [[1, 1, 0.5], {2: 0.5}, {-1: 0.5}, {"2": 0.5}, {0: 1, 2: 0.5}], ids=repr
)
def test_equal_speeds_are_one_run_however_they_are_written(written: Any) -> None:
    run = spec(nodes=3, node_speed=written)
    assert run.node_speed == run.node_speeds == [1.0, 1.0, 0.5]
    assert run.key == spec(nodes=3, node_speed=[1.0, 1.0, 0.5]).key
    assert run.slower_nodes == {2: 0.5}
    run.node_speeds.clear()
    assert run.node_speeds == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("written", [None, [1, 1, 1], {}, {1: 1.0}], ids=repr)
def test_equal_nodes_have_the_key_of_a_run_without_speeds(written: Any) -> None:
    run = spec(nodes=3, cpus=0.5, node_speed=written)
    assert (run.node_speed, run.node_speeds, run.slower_nodes) == (None, [1.0, 1.0, 1.0], {})
    assert not any(map(run.is_slower, range(3)))
    assert run.key == spec(nodes=3, cpus=0.5).key != spec(nodes=3, cpus=0.5, node_speed={0: 0.5}).key


def test_quota_of_a_node_is_its_share_of_cpus() -> None:
    run = spec(nodes=3, processes_per_node=2, cpus=4, node_speed=[0.75, 1, 0.1])
    assert [run.container_cpus(node) for node in range(3)] == [3, 4, 0.4]
    assert [run.threads_for(rank) for rank in range(6)] == [1, 1, 2, 2, 1, 1]
    assert set(run.thread_environment(0).values()) == {"1"}
    assert set(run.thread_environment(2).values()) == {"2"}
    assert [run.throttle_cpus(node) for node in (0, 2)] == [3, 0.4]
    assert spec(nodes=2, cpus=0.4, node_speed={0: 0.5}).throttle_cpus(0) == 0.5  # `cpus` is no limit there
    more = spec(nodes=2, cpus=4, threads=1, node_speed={1: 0.75})
    assert [more.threads_for(rank) for rank in range(2)] == [1, 1]  # fewer threads than the quota allows


@pytest.mark.parametrize(
    ("fields", "oversubscribed"),
    [
        ({}, False),
        ({"node_speed": {0: 0.5}}, True),
        ({"cpus": 0.5}, True),
        ({"cpus": 2}, False),
        ({"cpus": 4, "node_speed": [1, 0.5]}, False),
        ({"cpus": 4, "threads": 1, "node_speed": [1, 0.5]}, True),  # half a core of local processes
    ],
)
def test_oversubscribed_if_any_rank_has_less_than_a_core(
    fields: dict[str, Any], oversubscribed: bool
) -> None:
    assert spec(nodes=2, **fields).oversubscribed == oversubscribed


@pytest.mark.parametrize(
    ("speeds", "named"),
    [
        ([1, 0.5], "2 speeds for 3 nodes; allowed: 3"),
        ([], "0 speeds for 3 nodes"),
        ({3: 0.5}, "node 3 does not exist; allowed: 0 to 2"),
        ({-4: 0.5}, "node -4 does not exist"),
        ({-1: 0.5, 2: 0.25}, "-1 and 2 are the same"),
        ([0.5, 0.5, 0.25], "the fastest node has speed 0.5; allowed: 1"),
    ],
)
def test_speeds_must_fit_the_nodes(speeds: Any, named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(nodes=3, node_speed=speeds)
    (line,) = error_lines(caught.value, dotted)
    assert line.startswith("node_speed: ")
    assert named in line


@pytest.mark.parametrize(
    "speeds",
    [
        0.5,
        "half",
        [1, 0],
        [1, -0.5],
        [1, 1.5],
        [1, math.nan],
        [1, math.inf],
        [1, True],
        [1, "0.5"],
        [1, None],
        {0.5: 0.5},
        {True: 0.5},
        {"x": 0.5},
        {1: 0},
        {1: 0.5, "1": 0.25},
        {10**9: 0.5},
    ],
    ids=repr,
)
def test_speeds_are_numbers_up_to_1(speeds: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(nodes=2, node_speed=speeds)
    (line,) = error_lines(caught.value, dotted)
    assert line.startswith("node_speed: ")
    assert "allowed: " in line


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"nodes": 1, "node_speed": [0.5]}, "the fastest node has speed 0.5"),
        ({"transport": "memory"}, "memory"),
        ({"strategy": "hogwild"}, "memory"),
        ({"strategy": "all_reduce", "transport": "nccl"}, "GPUs"),
    ],
)
def test_speeds_need_nodes_with_quotas_of_their_own(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**{"nodes": 2, "node_speed": [1, 0.25], **fields})
    (line,) = error_lines(caught.value, dotted)
    assert line.startswith("node_speed: ")
    assert named in line


def test_speeds_of_a_number_of_nodes_that_is_not_valid_are_not_expanded() -> None:
    with pytest.raises(ValidationError) as caught:
        spec(nodes=10**9, node_speed={0: 0.5})
    assert [line.partition(":")[0] for line in error_lines(caught.value, dotted)] == ["nodes"]


# Run key


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
def test_keys_do_not_change_between_versions(fields: dict[str, Any], key: str) -> None:
    # If the key of a run changed, a sweep would not find its result and would train again.
    assert RunSpec.model_validate(fields).key == key


def test_key_does_not_depend_on_notation() -> None:
    key = spec(nodes=2).key
    assert spec(nodes=2, timeout_s=5).key == key
    assert spec(nodes=2, trace="full").key == key
    assert spec(nodes=2, lr=0.05, epochs=3, model="lenet", save_weights=False).key == key
    assert spec(nodes=2, model={"name": "lenet", "dropout": 0.5}, dataset={"name": "digits"}).key == key
    assert spec(nodes=2, transport="mpi", strategy={"name": "one_shot", "init": "broadcast"}).key == key
    assert RunSpec.model_validate({"nodes": 2, "strategy": "one_shot"}).key == key
    assert spec(nodes=2, lr=1).key == spec(nodes=2, lr=1.0).key


def test_key_contains_nested_components_without_defaults() -> None:
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
    "loss": "cross_entropy",
    "optimizer": "adam",
    "lr": 0.051,
    "lr_scaling": "sqrt",
    "warm_up_epochs": 2,
    "batch_size": 36,
    "batch_per": "run",
    "accumulate": 2,
    "clip_norm": 1.0,
    "recompute": "full",
    "precision": "bf16",
    "epochs": 4,
    "target_accuracy": 0.9,
    "patience": 2,
    "seed": 1,
    "vary": ["init", "order"],
    "threads": 2,
    "checkpoint_epochs": 2,
    "save_weights": True,
    "processes_per_node": 2,
    "cpus": 0.4,
    "node_speed": {-1: 0.5},
    "memory_mb": 1024,
    "pids": 256,
    "shm_mb": 64,
    "faults": [{"kill": {"node": 0}, "at": {"epoch": 2}}],
    "debug": True,
}
# Other fields that a change needs in order to take effect.
REQUIRED_WITH: dict[str, dict[str, Any]] = {
    "lr_scaling": {"nodes": 2},
    "node_speed": {"nodes": 2},
    "warm_up_epochs": {"nodes": 2},
    "target_accuracy": {"strategy": "all_reduce"},
    "patience": {"strategy": "all_reduce", "target_accuracy": 0.5},
}


def test_sweeps_know_the_fields_that_checks_name() -> None:
    named = re.findall(r'(?:PydanticCustomError|_error)\(\s*"(\w+)"', Path(checks.__file__).read_text())
    assert len(named) > 20
    assert {*named} <= {*checks.CHECK_ERROR_TYPES}


def test_key_depends_on_all_other_fields() -> None:
    # checkpoint_steps, on_loss and link are in the key, too, but not of every run: see test_checkpoints.py,
    # test_faults.py, test_link_spec.py and test_byzantine_spec.py.
    others = {"timeout_s", "restarts", "trace", "checkpoint_steps", "on_loss", "link", "byzantine"}
    assert set(RunSpec.model_fields) - set(CHANGES) == others
    keys = {spec(**REQUIRED_WITH.get(field, {}), **{field: value}).key for field, value in CHANGES.items()}
    plain = {spec(**REQUIRED_WITH.get(field, {})).key for field in CHANGES}
    assert len(keys) == len(CHANGES)
    assert not keys & plain


def test_key_begins_with_strategy_transport_and_size() -> None:
    prefix, _, digest = spec(nodes=4, seed=7, transport="gloo").key.rpartition("-")
    assert prefix == "one_shot-gloo-n4-s7"
    assert spec(nodes=4, processes_per_node=2).key.startswith("one_shot-mpi-n4x2-s0-")
    assert len(digest) == 8
    assert int(digest, 16) >= 0


def test_canonical_omits_defaults() -> None:
    run = spec(nodes=2, lr=0.05, timeout_s=5, model={"name": "mlp", "hidden": [128, 64]})
    assert run.canonical() == {
        "strategy": {"name": "one_shot"},
        "transport": "mpi",
        "nodes": 2,
        "model": {"name": "mlp"},
    }


@pytest.mark.parametrize("changes", [{}, CHANGES], ids=["defaults", "changed"])
def test_round_trip(changes: dict[str, Any]) -> None:
    run = spec(**changes)
    assert RunSpec.model_validate_json(run.model_dump_json()) == run
    assert RunSpec.model_validate(run.model_dump(mode="json")).key == run.key
    assert RunSpec.model_validate(json.loads(json.dumps(run.canonical()))).key == run.key

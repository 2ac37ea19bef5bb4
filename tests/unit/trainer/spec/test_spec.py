"""Mistakes in the spec of a run: limits of fields, what follows from others, checks, and the run key."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.sweeps.validation import dotted, error_lines
from trainer.models.vgg_small import VggSmall
from trainer.spec.batches import batch_error
from trainer.spec.run_spec import RunSpec

NAN, INF = float("nan"), float("inf")


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", **fields})


def error_line(**fields: Any) -> str:
    """The only error, as `field: message`."""
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    (line,) = error_lines(caught.value, dotted)
    return line


# Fields

# The least and the largest integers; the largest of other numbers, which are above 0.
INTEGERS: dict[str, tuple[int, int | None]] = {
    "nodes": (1, 16384), "batch_size": (1, 65536), "accumulate": (1, 65536), "epochs": (1, 10_000),
    "warm_up_epochs": (0, 10_000), "patience": (1, 10_000), "seed": (0, 2**32 - 1), "threads": (1, 256),
    "processes_per_node": (1, 64), "restarts": (0, 100), "memory_mb": (64, None), "pids": (16, None),
    "shm_mb": (16, None),
}  # fmt: skip
NUMBERS = {"lr": 100, "timeout_s": 7 * 86400, "cpus": 256, "target_accuracy": 1, "clip_norm": None}
# Values of other fields with which all numbers are possible.
ENOUGH = {
    "strategy": "all_reduce", "transport": "gloo", "dataset": {"name": "synthetic", "samples": 60_000},
    "batch_size": 65536, "epochs": 10_000, "target_accuracy": 0.5,
}  # fmt: skip


def test_numbers_have_limits() -> None:
    for field, (low, high) in INTEGERS.items():
        for good in (low, high or 10**9):
            assert getattr(spec(**{**ENOUGH, field: good}), field) == good
        for bad in (low - 1, *([high + 1] if high else []), 1.0, NAN, True, "1", None, [1]):
            assert error_line(**{**ENOUGH, field: bad}).startswith(f"{field}: ")
    for field, most in NUMBERS.items():
        for number in (1e-9, 1, most or 1e9):
            assert getattr(spec(**{**ENOUGH, field: number}), field) == number
        for wrong in (0, -1, NAN, INF, True, "0.1", [0.1], *([most * 1.001] if most else [])):
            assert error_line(**{**ENOUGH, field: wrong}).startswith(f"{field}: ")


# Checks across fields: fields that fit, what does not, and the field and the words of the error.

SMALL = {"dataset": {"name": "synthetic", "samples": 4}}
SERVER = {"strategy": "parameter_server", **SMALL}
THREE = {"partitioner": {"name": "classes", "per_node": 3}}  # of the 10 classes of digits
ALL_REDUCE = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2}
GOSSIP = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue", "nodes": 2}
CUT = {"cut_off": {"node": 0, "seconds": 1}, "at": {"epoch": 1}}
TARGET = {"strategy": "serial", "target_accuracy": 0.9, "patience": 3}

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"strategy": "serial"}, {"processes_per_node": 2}, "processes_per_node: .* .1 × 2.; allowed: 1"),
    ({"nodes": 2, "transport": "rpc"}, {"processes_per_node": 2}, "processes_per_node: 2 .* rpc.*: 1"),
    ({**SMALL, "nodes": 4}, {"nodes": 5}, "nodes: 5 nodes .* 4 training samples of synthetic"),
    ({**SMALL, "nodes": 4}, {"nodes": 5, "processes_per_node": 2}, "nodes: "),
    ({**SERVER, "nodes": 5}, {"nodes": 6}, "nodes: 5 workers of 6 nodes .* 4 training samples"),
    ({**SERVER, "nodes": 5}, {"processes_per_node": 2}, "processes_per_node: "),
    ({**SERVER, "nodes": 2}, {"nodes": 1}, "nodes: parameter_server .*1 node; allowed: 2 or more"),
    ({"batch_per": "run", "batch_size": 33, "nodes": 3}, {"batch_size": 34}, "batch_size: 34 .* 3 repl"),
    ({**THREE, "nodes": 2, "processes_per_node": 2}, {"nodes": 1, "processes_per_node": 3},
     "partitioner: classes .*digits among 3 ranks .*9 of 10"),
    (TARGET, {"strategy": "one_shot"}, "target_accuracy: 0.9 .*one_shot"),
    (TARGET, {"strategy": "fault_injection"}, "target_accuracy: .*does not train"),
    (TARGET, {"patience": 4}, "patience: 4 .*allowed: 1 to 3"),
    (TARGET, {"target_accuracy": None}, "patience: 3 .*allowed: 1"),
    ({**ALL_REDUCE, "checkpoint_epochs": 2}, {"checkpoint_epochs": 3}, "checkpoint_epochs: 3 .* 3 epochs"),
    ({**ALL_REDUCE, "restarts": 1}, {"transport": "mpi"}, "restarts: 1 .* mpi.*transport gloo"),
    ({**ALL_REDUCE, "restarts": 1}, {"node_speed": {0: 0.5}}, "restarts: 1 .*node_speed"),
    (GOSSIP, {"debug": True}, "debug: .*continue"),
    (GOSSIP, {"strategy": "local_sgd", "checkpoint_epochs": 1}, "on_loss: continue: .*writes checkpoints"),
    (GOSSIP, {"save_weights": True}, "on_loss: continue: save_weights .*node 0"),
    (GOSSIP, {"processes_per_node": 2}, "on_loss: continue: processes_per_node is 2;"),
    (GOSSIP, {"nodes": 129}, "on_loss: continue: nodes is 129;"),
    (GOSSIP, {"nodes": 1}, "on_loss: continue: nodes is 1; allowed: stop, or 2 to 128"),
    ({**ALL_REDUCE, "checkpoint_steps": 2}, {"checkpoint_epochs": 1},
     "checkpoint_steps: 2 excludes checkpoint_epochs, which is 1;"),
    ({**ALL_REDUCE, "faults": [CUT]}, {"nodes": 1}, "faults: fault 0, cut_off: a single node"),
    ({**ALL_REDUCE, "faults": [CUT]}, {"processes_per_node": 2}, "faults: fault 0, cut_off: .*several"),
    ({**ALL_REDUCE, "faults": [CUT] * 2}, {"transport": "memory"}, "faults: 2 faults .*over memory all"),
    ({**ALL_REDUCE, "faults": [CUT]}, {"strategy": "fault_injection"}, "faults: 1 faults .*not train"),
    ({"model": "mlp"}, {"loss": "mse"}, "loss: mse .*digits has classes; allowed: nll"),
]  # fmt: skip


def test_what_does_not_fit_is_refused_and_what_just_fits_is_not() -> None:
    for fits, change, error in REFUSED:
        spec(**fits)
        line = error_line(**{**fits, **change})
        assert re.match(error, line), line


def test_what_just_fits_or_does_not_apply_is_allowed() -> None:
    faults = [{"kill": {"node": 1}, "at": at} for at in ({"epoch": 3}, {"second": 600})]
    run = spec(**ALL_REDUCE, faults=faults, warm_up_epochs=3)
    assert [each.at.place for each in run.faults] == ["epoch 3", "second 600"]
    spec(**{**GOSSIP, "nodes": 128})
    spec(strategy="fault_injection", **SMALL, nodes=5)  # does not train
    spec(strategy="serial", **THREE)  # has no parts


def test_batch_norm_needs_two_values_in_each_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VggSmall, "fewest_samples", 2)
    model = {"name": "vgg_small", "norm": "batch"}
    drop, pad = ({"name": "local_sgd", "uneven": each} for each in ("drop", "pad"))
    for strategy, sizes, error in (
        ("one_shot", (8, 6), "None"),
        ("one_shot", (8, 5), "leave 1 of the 5 samples of part 1 .*such as 5$"),
        (drop, (9, 8), "None"),
        (drop, (10, 9), "part 0"),
        (pad, (9, 10), "None"),
        (pad, (8, 9), "part 0"),
    ):
        run = spec(strategy=strategy, model=model, batch_size=4, nodes=2)
        assert re.search(error, str(batch_error(run, sizes)))


# What follows from other fields


def test_transport_topology_and_threads_follow() -> None:
    assert [spec(strategy=each).transport for each in ("ddp", {"name": "one_shot"})] == ["gloo", "mpi"]
    topologies = {"mpi": "mpi", "gloo": "ddp", "nccl": "ddp", "rpc": "rpc", "memory": "single"}
    for transport, topology in topologies.items():
        run = spec(transport=transport, nodes=2)
        assert (run.topology, run.on_gpu) == (topology, transport == "nccl")
        assert run.ranks_are_threads == (transport == "memory")
    others = [spec(transport="memory"), spec(strategy="hogwild", nodes=2)]
    assert [run.ranks_are_threads for run in others] == [False] * 2  # of one rank; of processes
    assert spec(transport="memory", processes_per_node=2).ranks_are_threads


def test_ranks_fill_one_node_after_the_other_and_replicas_share_a_batch() -> None:
    batch = {"batch_size": 36, "batch_per": "run"}
    run, each = spec(nodes=3, processes_per_node=2, **batch), spec(nodes=3, batch_size=36)
    assert [run.node_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert (run.batch_per_replica, run.batch_multiplier) == (6, 1)
    assert (each.batch_per_replica, each.batch_multiplier) == (36, 3)
    assert spec(strategy="parameter_server", nodes=4, **batch).batch_per_replica == 12
    assert (run.size_label, each.size_label, spec().size_label) == ("6 ranks (3 × 2)", "3 nodes", "1 node")


def test_threads_default_to_the_whole_cores_of_the_quota() -> None:
    for cpus, processes, threads in ((0.4, 1, 1), (3.9, 1, 3), (4, 2, 2), (4, 3, 1), (4, 8, 1)):
        run = spec(cpus=cpus, processes_per_node=processes)
        assert (run.threads, "threads" in run.canonical()) == (threads, False)
    run = spec(cpus=4, threads=1)
    again = RunSpec.model_validate(json.loads(json.dumps(run.canonical())))
    assert (again, again.key, again.threads) == (run, run.key, 1)
    for bad in ("4", 1000, NAN, -1, None):  # not also an error of the threads
        for field in ("cpus", "processes_per_node"):
            assert error_line(**{field: bad}).startswith(f"{field}: ")


# Nodes of unequal speed


def test_equal_speeds_are_one_run_however_they_are_written() -> None:
    expected = spec(nodes=3, node_speed=[1.0, 1.0, 0.5])
    for written in ([1, 1, 0.5], {2: 0.5}, {-1: 0.5}, {"2": 0.5}, {0: 1, 2: 0.5}, {-3: 1, 2: 0.5}):
        run = spec(nodes=3, node_speed=written)
        assert run.node_speed == run.node_speeds == [1.0, 1.0, 0.5]
        assert run.key == expected.key
        assert run.slower_nodes == {2: 0.5}
        run.node_speeds.clear()  # a copy
        assert run.node_speeds == [1.0, 1.0, 0.5]
    for written in (None, [1, 1, 1], {}, {1: 1.0}):
        run = spec(nodes=3, node_speed=written)
        assert (run.node_speed, run.node_speeds, run.slower_nodes) == (None, [1.0, 1.0, 1.0], {})
        assert run.key == spec(nodes=3).key != expected.key


def test_the_quota_of_a_node_is_its_share_of_cpus() -> None:
    run = spec(nodes=3, processes_per_node=2, cpus=4, node_speed=[0.75, 1, 0.1])
    assert [run.container_cpus(node) for node in range(3)] == [3, 4, 0.4]
    assert [run.threads_for(rank) for rank in range(6)] == [1, 1, 2, 2, 1, 1]
    assert [run.throttle_cpus(node) for node in (0, 2)] == [3, 0.4]
    assert spec(nodes=2, cpus=0.4, node_speed={0: 0.5}).throttle_cpus(0) == 0.5  # `cpus` is no limit there
    assert spec(nodes=2, cpus=4, threads=1, node_speed={1: 0.75}).threads_for(1) == 1


def test_a_run_is_oversubscribed_if_a_rank_has_less_than_a_core() -> None:
    enough = [{"cpus": 2, "processes_per_node": 2}, {"cpus": 4, "node_speed": [1, 0.5]}]
    # A thread of a slower local process has its share of a core.
    oversubscribed = [
        {"cpus": 0.5},
        {"node_speed": {0: 0.5}},
        {"cpus": 4, "threads": 1, "node_speed": [1, 0.5]},
    ]
    found = [spec(nodes=2, **fields).oversubscribed for fields in (*enough, *oversubscribed)]
    assert found == [False] * 2 + [True] * 3


def test_speeds_that_are_not_possible() -> None:
    for speeds, named in (
        ([1, 0.5], "2 speeds for 3 nodes; allowed: 3"),
        ([], "0 speeds for 3 nodes"),
        ({3: 0.5}, "node 3 does not exist; allowed: 0 to 2, or -1 .the last. to -3"),
        ({-4: 0.5}, "node -4 does not exist"),
        ({-1: 0.5, 2: 0.25}, "-1 and 2 are the same"),
        ([0.5, 0.999, 0.25], "the fastest node has speed 0.999; allowed: 1"),
        *((bad, "allowed: ") for bad in (0.5, "half", {0.5: 0.5}, {True: 0.5}, {"x": 0.5}, {10**9: 0.5})),
        *(([1, 1, bad], f"node 2 has speed {bad!r};") for bad in (0, -0.5, 1.5, NAN, INF, True, None)),
    ):
        assert re.match(f"node_speed: .*{named}", error_line(nodes=3, node_speed=speeds))
    for strategy, transport in (("one_shot", "memory"), ("all_reduce", "nccl")):  # nodes without quotas
        line = error_line(strategy=strategy, transport=transport, nodes=2, node_speed=[1, 0.25])
        assert line.startswith(f"node_speed: over {transport} ")
    assert error_line(nodes=10**9, node_speed={0: 0.5}).startswith("nodes: ")


# Run key


def test_keys_do_not_change_between_versions() -> None:
    # If the key of a run changed, a sweep would not find its result and would train again.
    for key, fields in (
        ("serial-memory-n1-s0-27bbbdf4", {"strategy": "serial"}),
        ("one_shot-mpi-n5-s1-24eff46e", {"nodes": 5, "seed": 1}),
        ("ddp-gloo-n2x4-s0-56cadc81", {"strategy": "ddp", "nodes": 2, "processes_per_node": 4}),
        ("all_reduce-mpi-n2-s0-61989031",
         {"strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.1}}, "nodes": 2}),
        ("one_shot-mpi-n1-s0-338a736d",
         {"strategy": {"name": "one_shot", "init": "independent"},
          "dataset": {"name": "synthetic", "samples": 512, "noise": 1.0},
          "partitioner": {"name": "random_sampling", "reshuffle": True},
          "model": {"name": "mlp", "hidden": [32]}, "optimizer": {"name": "momentum", "nesterov": True},
          "epochs": 2, "threads": 2, "save_weights": True}),
    ):  # fmt: skip
        assert spec(**fields).key == key


def test_a_key_does_not_depend_on_notation_nor_on_what_changes_no_result() -> None:
    for fields in (
        {"timeout_s": 5},
        {"trace": "full"},
        {"transport": "gloo", "restarts": 2},
        {"lr": 0.05, "epochs": 3, "model": "lenet", "save_weights": False, "threads": 1},
        {"model": {"name": "lenet", "dropout": 0.5}, "dataset": {"name": "digits"}},
        {"strategy": {"name": "one_shot", "init": "broadcast"}},
    ):
        expected = {"strategy": {"name": "one_shot"}, "transport": fields.get("transport", "mpi")}
        assert spec(**fields).canonical() == expected
    assert spec(lr=1).key == spec(lr=1.0).key
    assert spec(lr_scaling="sqrt").key == spec().key  # without effect on a single replica
    assert spec(vary=["order", "init"]).key == spec(vary=["init", "order"]).key


# A change of each field, and other fields that it needs in order to take effect.
CHANGES: dict[str, Any] = {
    "strategy": {"name": "local_sgd", "init": "independent"}, "transport": "gloo", "nodes": 3,
    "dataset": "synthetic", "partitioner": {"name": "random_partition", "reshuffle": True},
    "augmentation": {"name": "standard", "saturation": 0}, "model": {"name": "lenet", "dropout": 0.25},
    "loss": "cross_entropy", "optimizer": "adam", "lr": 0.051, "lr_scaling": "sqrt", "warm_up_epochs": 2,
    "batch_size": 36, "batch_per": "run", "accumulate": 2, "clip_norm": 1.0, "recompute": "full",
    "lr_schedule": "cosine",
    "precision": "bf16", "epochs": 4, "target_accuracy": 0.9, "patience": 2, "seed": 1,
    "vary": ["init", "order"], "threads": 2, "checkpoint_epochs": 2, "save_weights": True,
    "noise_scale": True,
    "processes_per_node": 2, "cpus": 0.4, "node_speed": {-1: 0.5}, "memory_mb": 1024, "pids": 256,
    "shm_mb": 64, "faults": [{"kill": {"node": 0}, "at": {"epoch": 2}}], "debug": True,
}  # fmt: skip
REQUIRED_WITH: dict[str, dict[str, Any]] = {
    **{field: {"nodes": 2} for field in ("lr_scaling", "node_speed", "warm_up_epochs")},
    "target_accuracy": {"strategy": "all_reduce"},
    "patience": {"strategy": "all_reduce", "target_accuracy": 0.5},
}


def test_a_key_depends_on_all_other_fields() -> None:
    # checkpoint_steps, on_loss, link and byzantine are in the key, too, but not of every run: see
    # test_checkpoints.py, test_faults.py, test_link_spec.py and test_byzantine_spec.py.
    others = {"timeout_s", "restarts", "trace", "checkpoint_steps", "on_loss", "link", "byzantine"}
    assert set(RunSpec.model_fields) - set(CHANGES) == others
    keys = {spec(**REQUIRED_WITH.get(field, {}), **{field: value}).key for field, value in CHANGES.items()}
    plain = {spec(**REQUIRED_WITH.get(field, {})).key for field in CHANGES}
    assert len(keys) == len(CHANGES)
    assert not keys & plain


def test_a_spec_survives_its_file() -> None:
    for changes in ({}, CHANGES):
        run = spec(**changes)
        assert RunSpec.model_validate_json(run.model_dump_json()) == run
        assert RunSpec.model_validate(run.model_dump(mode="json")).key == run.key
        assert RunSpec.model_validate(json.loads(json.dumps(run.canonical()))).key == run.key

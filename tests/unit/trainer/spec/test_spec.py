"""Mistakes in the spec of a run: limits of fields, what follows from others, checks, and the run key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.sweeps.validation import dotted, error_lines
from trainer.models.vgg_small import VggSmall
from trainer.spec import checks
from trainer.spec.batches import batch_error
from trainer.spec.faults import Moment
from trainer.spec.registries import REGISTRIES
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

LIMITS: dict[str, tuple[int, int | None]] = {
    "nodes": (1, 16384),
    "batch_size": (1, 65536),
    "accumulate": (1, 65536),
    "epochs": (1, 10_000),
    "warm_up_epochs": (0, 10_000),
    "patience": (1, 10_000),
    "seed": (0, 2**32 - 1),
    "threads": (1, 256),
    "processes_per_node": (1, 64),
    "memory_mb": (64, None),
    "pids": (16, None),
    "shm_mb": (16, None),
    "restarts": (0, 100),
}
# Values of other fields with which all numbers are possible.
ENOUGH = {
    "strategy": "all_reduce",
    "transport": "gloo",
    "dataset": {"name": "synthetic", "samples": 60_000},
    "batch_size": 65536,
    "epochs": 10_000,
    "target_accuracy": 0.5,
}


@pytest.mark.parametrize("field", LIMITS)
def test_integers_have_limits(field: str) -> None:
    low, high = LIMITS[field]
    for good in (low, high or 10**9):
        assert getattr(spec(**{**ENOUGH, field: good}), field) == good
    for bad in (low - 1, *([high + 1] if high else []), 1.0, 1.5, NAN, True, "1", None, [1]):
        assert error_line(**{**ENOUGH, field: bad}).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "high"),
    [("lr", 100), ("timeout_s", 7 * 86400), ("cpus", 256), ("target_accuracy", 1), ("clip_norm", 1e9)],
)
def test_numbers_are_above_zero(field: str, high: float) -> None:
    for good in (1e-9, 1, high):
        assert getattr(spec(**{**ENOUGH, field: good}), field) == good
    bad = [0, -1, -0.0, NAN, INF, -INF, True, "0.1", [0.1], *([] if high == 1e9 else [high * 1.001])]
    for each in bad:
        assert error_line(**{**ENOUGH, field: each}).startswith(f"{field}: ")


def test_components_and_choices_list_what_is_allowed() -> None:
    for field in ("strategy", "dataset", "partitioner", "model", "optimizer", "loss"):
        for bad in ("no_such", "", 1, None, [], ["lenet"], {}, {"name": 1}, {"name": "no_such"}):
            line = error_line(**{field: bad})
            assert line.startswith(f"{field}: ")
            assert [name for name in REGISTRIES[field].entries if name not in line] == []
    for field in ("transport", "lr_scaling", "save_weights", "learning_rate", "vary"):
        for value in ("no_such", 1, None):
            assert error_line(**{field: value}).startswith(f"{field}: ")
    assert "[order, order] has a source twice" in error_line(vary=["order", "order"])
    with pytest.raises(ValidationError, match="strategy"):
        RunSpec.model_validate({})
    with pytest.raises(ValidationError, match="frozen"):
        spec().nodes = 2  # type: ignore[misc]


# Checks across fields: fields that fit, what does not, and the field and the words of the error.

SMALL = {"dataset": {"name": "synthetic", "samples": 4}}
SERVER = {"strategy": "parameter_server", **SMALL}
TWELVE = {
    "partitioner": {"name": "classes", "per_node": 3},
    "dataset": {"name": "synthetic", "classes": 12},
}
ALL_REDUCE = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2}
GOSSIP = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
SYNC = {"model": {"name": "vgg_small", "norm": "sync_batch"}, "nodes": 2}


def killed(node: int = 0, **at: Any) -> dict[str, Any]:
    return {"faults": [{"kill": {"node": node}, "at": at or {"epoch": 1}}]}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"strategy": "ddp", "transport": "gloo"}, {"transport": "mpi"},
     "transport: ddp cannot use mpi; allowed: gloo, nccl"),
    ({"strategy": "serial"}, {"nodes": 2}, "nodes: serial cannot run on 2 nodes; allowed: 1"),
    ({"strategy": "serial"}, {"processes_per_node": 2},
     "processes_per_node: .*2 ranks .1 × 2.; allowed: 1"),
    ({"nodes": 2, "transport": "rpc"}, {"processes_per_node": 2},
     "processes_per_node: 2 .* rpc.*allowed: 1"),
    ({**SMALL, "nodes": 4}, {"nodes": 5}, "nodes: 5 nodes .* 4 training samples of synthetic"),
    ({**SMALL, "nodes": 2, "processes_per_node": 2}, {"nodes": 3}, "processes_per_node: 6 ranks .3 × 2."),
    ({**SMALL, "nodes": 4}, {"nodes": 5, "processes_per_node": 2}, "nodes: "),
    ({**SERVER, "nodes": 5}, {"nodes": 6}, "nodes: 5 workers of 6 nodes .* 4 training samples"),
    ({**SERVER, "nodes": 5}, {"processes_per_node": 2}, "processes_per_node: "),
    ({**SERVER, "nodes": 2}, {"nodes": 1}, "nodes: parameter_server .*1 node; allowed: 2 or more"),
    ({"batch_per": "run", "batch_size": 33, "nodes": 3}, {"batch_size": 34},
     "batch_size: 34 .* 3 replicas"),
    ({**ALL_REDUCE, "accumulate": 32}, {"accumulate": 33}, "accumulate: 33 .*allowed: 1 to 32"),
    ({**TWELVE, "nodes": 2, "processes_per_node": 2}, {"nodes": 1, "processes_per_node": 3},
     "partitioner: .*9 of 12"),
    ({"partitioner": "contiguous"}, {"partitioner": {"name": "contiguous", "reshuffle": True}},
     "partitioner: .*false"),
    ({"partitioner": {"name": "shards", "per_node": 287}, "nodes": 5},
     {"partitioner": {"name": "shards", "per_node": 288}},
     "partitioner: shards .*digits .*5 nodes: per_node 288 .*287"),
    ({"strategy": "serial", "target_accuracy": 0.9}, {"strategy": "one_shot"},
     "target_accuracy: 0.9 .*one_shot"),
    ({"strategy": "serial", "target_accuracy": 0.9}, {"strategy": "fault_injection"},
     "target_accuracy: .*does not train"),
    ({"strategy": "serial", "target_accuracy": 0.9, "patience": 3}, {"patience": 4},
     "patience: 4 .*allowed: 1 to 3"),
    ({"strategy": "serial", "target_accuracy": 0.9, "patience": 2}, {"target_accuracy": None},
     "patience: 2 .*allowed: 1"),
    ({"warm_up_epochs": 3}, {"warm_up_epochs": 4}, "warm_up_epochs: 4 .*allowed: 0 to 3"),
    ({**ALL_REDUCE, "checkpoint_epochs": 2}, {"checkpoint_epochs": 3}, "checkpoint_epochs: 3 .* 3 epochs"),
    ({**ALL_REDUCE, "checkpoint_epochs": 2}, {"checkpoint_steps": 2}, "checkpoint_steps: 2 excludes"),
    ({**ALL_REDUCE, "restarts": 1}, {"transport": "mpi"}, "restarts: 1 .* mpi.*transport gloo"),
    ({**ALL_REDUCE, "restarts": 1}, {"node_speed": {0: 0.5}}, "restarts: 1 .*node_speed"),
    ({**ALL_REDUCE, **killed(epoch=3)}, killed(epoch=4),
     "faults: fault 0, kill: at.epoch is 4; allowed: 1 to 3"),
    ({**ALL_REDUCE, **killed(1)}, killed(2), "faults: fault 0, kill: node is 2; allowed: 0 to 1"),
    ({**ALL_REDUCE, **killed(second=600)}, killed(second=601), "faults: .*at.second is 601; .*600"),
    ({**ALL_REDUCE, **killed()}, {"strategy": "fault_injection"},
     "faults: 1 faults .*fault_injection does not train"),
    ({**GOSSIP, "nodes": 128}, {"nodes": 129},
     "on_loss: continue: nodes is 129; allowed: stop, or 2 to 128"),
    ({**GOSSIP, "nodes": 2}, {"nodes": 1}, "on_loss: continue: nodes is 1;"),
    ({**GOSSIP, "nodes": 2}, {"debug": True}, "debug: .*continue"),
    ({**SYNC, "strategy": "all_reduce"}, {"strategy": "one_shot"},
     "model: vgg_small .*allowed: .*all_reduce"),
    ({"model": {"name": "gpt"}, "dataset": "copy"}, {"model": "mlp"}, "model: mlp .*tokens.*gpt"),
    ({"model": "mlp"}, {"loss": "mse"}, "loss: mse .*digits has classes; allowed: nll"),
]  # fmt: skip


@pytest.mark.parametrize(("fits", "change", "error"), REFUSED, ids=[error for _, _, error in REFUSED])
def test_what_does_not_fit_is_refused_and_what_just_fits_is_not(
    fits: dict[str, Any], change: dict[str, Any], error: str
) -> None:
    spec(**fits)
    line = error_line(**{**fits, **change})
    assert re.match(error, line), line


def test_checks_of_training_leave_out_runs_that_do_not_train_or_partition() -> None:
    assert spec(strategy="fault_injection", **SMALL, nodes=5).nodes == 5
    assert spec(strategy="serial", partitioner={"name": "classes", "per_node": 1}).nodes == 1


def test_sweeps_know_the_fields_that_checks_name() -> None:
    named = re.findall(r'(?:PydanticCustomError|_error)\(\s*"(\w+)"', Path(checks.__file__).read_text())
    assert len(named) > 20
    assert {*named} <= {*checks.CHECK_ERROR_TYPES}


def test_batch_norm_needs_two_values_in_each_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VggSmall, "fewest_samples", 2)
    model = {"model": {"name": "vgg_small", "norm": "batch"}}

    one_shot = spec(**model, batch_size=4, nodes=2)
    assert batch_error(one_shot, [8, 6]) is None
    reason = batch_error(one_shot, [8, 5]) or ""
    assert "leave 1 of the 5 samples of part 1 " in reason
    assert "such as 6" not in reason
    assert reason.endswith("such as 5")
    uneven = {"name": "local_sgd", "uneven": "drop"}
    drop, pad = (
        spec(strategy={**uneven, "uneven": each}, **model, batch_size=4, nodes=2)
        for each in ("drop", "pad")
    )
    assert batch_error(drop, [9, 8]) is None
    assert batch_error(pad, [9, 10]) is None
    assert "part 0" in (batch_error(pad, [8, 9]) or "")
    assert "part 0" in (batch_error(drop, [10, 9]) or "")


# What follows from other fields


def test_transport_topology_and_threads_follow() -> None:
    for strategy, transport in (("one_shot", "mpi"), ("ddp", "gloo"), ({"name": "one_shot"}, "mpi")):
        assert spec(strategy=strategy).transport == transport
    topologies = {"mpi": "mpi", "gloo": "ddp", "nccl": "ddp", "rpc": "rpc", "memory": "single"}
    for transport, topology in topologies.items():
        run = spec(transport=transport)
        assert (run.topology, run.on_gpu) == (topology, transport == "nccl")
    for nodes, processes, threads in ((1, 1, False), (2, 1, True), (1, 2, True)):
        run = spec(transport="memory", nodes=nodes, processes_per_node=processes)
        assert run.ranks_are_threads == threads
    assert not spec(strategy="hogwild", nodes=2).ranks_are_threads


def test_ranks_fill_one_node_after_the_other_and_replicas_share_a_batch() -> None:
    run = spec(nodes=3, processes_per_node=2, batch_size=36, batch_per="run")
    assert [run.node_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert (run.batch_per_replica, run.batch_multiplier) == (6, 1)
    assert (
        spec(strategy="parameter_server", nodes=4, batch_size=36, batch_per="run").batch_per_replica == 12
    )
    each = spec(nodes=3, batch_size=36)
    assert (each.batch_per_replica, each.batch_multiplier) == (36, 3)
    assert (run.size_label, each.size_label, spec().size_label) == ("6 ranks (3 × 2)", "3 nodes", "1 node")


@pytest.mark.parametrize(
    ("fields", "threads"),
    [
        ({}, 1),
        ({"cpus": 0.4}, 1),
        ({"cpus": 3.9}, 3),
        ({"cpus": 4, "processes_per_node": 2}, 2),
        ({"cpus": 4, "processes_per_node": 3}, 1),
        ({"cpus": 4, "processes_per_node": 8}, 1),
        ({"cpus": 4, "threads": 1}, 1),
        ({"threads": 3}, 3),
        ({"cpus": 256}, 256),
    ],
    ids=str,
)
def test_threads_default_to_the_whole_cores_of_the_quota(fields: dict[str, Any], threads: int) -> None:
    run = spec(**fields)
    assert run.threads == threads
    assert ("threads" in run.canonical()) == ("threads" in fields)
    again = RunSpec.model_validate(json.loads(json.dumps(run.canonical())))
    assert (again, again.key) == (run, run.key)


def test_an_invalid_quota_is_the_only_error() -> None:
    for bad in ("4", 1000, NAN, -1, None):
        assert error_line(cpus=bad).startswith("cpus: ")
        assert error_line(processes_per_node=bad).startswith("processes_per_node: ")


def test_a_drawn_step_is_any_from_the_first_to_the_last() -> None:
    at = [Moment.model_validate({"random": {"steps": [3, 5], "seed": seed}}) for seed in range(30)]
    assert {each.drawn_step for each in at} == {3, 4, 5}
    assert [at[0].place, Moment(epoch=2).place, Moment(second=2.5).place] == [
        f"step {at[0].drawn_step}",
        "epoch 2",
        "second 2.5",
    ]
    with pytest.raises(ValidationError, match="first step 5 is after the last 3"):
        Moment.model_validate({"random": {"steps": [5, 3]}})


# Nodes of unequal speed


@pytest.mark.parametrize(
    "written", [[1, 1, 0.5], {2: 0.5}, {-1: 0.5}, {"2": 0.5}, {0: 1, 2: 0.5}, {-3: 1, 2: 0.5}], ids=repr
)
def test_equal_speeds_are_one_run_however_they_are_written(written: Any) -> None:
    run = spec(nodes=3, node_speed=written)
    assert run.node_speed == run.node_speeds == [1.0, 1.0, 0.5]
    assert run.key == spec(nodes=3, node_speed=[1.0, 1.0, 0.5]).key != spec(nodes=3).key
    assert run.slower_nodes == {2: 0.5}
    run.node_speeds.clear()
    assert run.node_speeds == [1.0, 1.0, 0.5]


def test_equal_nodes_have_the_key_of_a_run_without_speeds() -> None:
    for written in (None, [1, 1, 1], {}, {1: 1.0}):
        run = spec(nodes=3, node_speed=written)
        assert (run.node_speed, run.node_speeds, run.slower_nodes) == (None, [1.0, 1.0, 1.0], {})
        assert run.key == spec(nodes=3).key


def test_the_quota_of_a_node_is_its_share_of_cpus() -> None:
    run = spec(nodes=3, processes_per_node=2, cpus=4, node_speed=[0.75, 1, 0.1])
    assert [run.container_cpus(node) for node in range(3)] == [3, 4, 0.4]
    assert [run.threads_for(rank) for rank in range(6)] == [1, 1, 2, 2, 1, 1]
    assert [{*run.thread_environment(rank).values()} for rank in (0, 2)] == [{"1"}, {"2"}]
    assert [run.throttle_cpus(node) for node in (0, 2)] == [3, 0.4]
    assert spec(nodes=2, cpus=0.4, node_speed={0: 0.5}).throttle_cpus(0) == 0.5  # `cpus` is no limit there
    more = spec(nodes=2, cpus=4, threads=1, node_speed={1: 0.75})
    assert [more.threads_for(rank) for rank in range(2)] == [1, 1]  # fewer than the quota allows


@pytest.mark.parametrize(
    ("fields", "oversubscribed"),
    [
        ({}, False),
        ({"node_speed": {0: 0.5}}, True),
        ({"cpus": 0.5}, True),
        ({"cpus": 2, "processes_per_node": 2}, False),
        ({"cpus": 4, "node_speed": [1, 0.5]}, False),
        ({"cpus": 4, "threads": 1, "node_speed": [1, 0.5]}, True),  # half a core of local processes
    ],
    ids=str,
)
def test_a_run_is_oversubscribed_if_a_rank_has_less_than_a_core(
    fields: dict[str, Any], oversubscribed: bool
) -> None:
    assert spec(nodes=2, **fields).oversubscribed == oversubscribed


@pytest.mark.parametrize(
    ("speeds", "named"),
    [
        ([1, 0.5], "2 speeds for 3 nodes; allowed: 3"),
        ([], "0 speeds for 3 nodes"),
        ({3: 0.5}, "node 3 does not exist; allowed: 0 to 2, or -1 .the last. to -3"),
        ({-4: 0.5}, "node -4 does not exist"),
        ({-1: 0.5, 2: 0.25}, "-1 and 2 are the same"),
        ([0.5, 0.999, 0.25], "the fastest node has speed 0.999; allowed: 1"),
        *((speeds, "allowed: ") for speeds in (0.5, "half", {0.5: 0.5}, {True: 0.5}, {"x": 0.5})),
        ({10**9: 0.5}, "allowed: "),
        *(([1, 1, bad], f"node 2 has speed {bad!r};") for bad in (0, -0.5, 1.5, NAN, INF, True, None)),
    ],
    ids=repr,
)
def test_speeds_that_are_not_possible(speeds: Any, named: str) -> None:
    assert re.match(f"node_speed: .*{named}", error_line(nodes=3, node_speed=speeds))


def test_speeds_need_nodes_with_quotas_of_their_own() -> None:
    for fields in ({"transport": "memory"}, {"strategy": "all_reduce", "transport": "nccl"}):
        line = error_line(nodes=2, node_speed=[1, 0.25], **fields)
        assert line.startswith(f"node_speed: over {fields['transport']} ")
    assert error_line(nodes=10**9, node_speed={0: 0.5}).startswith("nodes: ")


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
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_keys_do_not_change_between_versions(fields: dict[str, Any], key: str) -> None:
    # If the key of a run changed, a sweep would not find its result and would train again.
    assert RunSpec.model_validate(fields).key == key


def test_a_key_does_not_depend_on_notation_nor_on_what_changes_no_result() -> None:
    key = spec(nodes=2).key
    for fields in (
        {"timeout_s": 5},
        {"trace": "full"},
        {"lr": 0.05, "epochs": 3, "model": "lenet", "save_weights": False, "threads": 1},
        {"model": {"name": "lenet", "dropout": 0.5}, "dataset": {"name": "digits"}},
        {"transport": "mpi", "strategy": {"name": "one_shot", "init": "broadcast"}},
        {"vary": ["order", "split", "init"]},
    ):
        assert spec(nodes=2, **fields).key == key
    assert spec(lr=1).key == spec(lr=1.0).key
    assert spec(lr_scaling="sqrt").key == spec().key  # without effect on a single replica
    run = spec(nodes=2, lr=0.05, timeout_s=5, model={"name": "mlp", "hidden": [128, 64]})
    assert run.canonical() == {
        "strategy": {"name": "one_shot"},
        "transport": "mpi",
        "nodes": 2,
        "model": {"name": "mlp"},
    }


def test_a_key_contains_nested_components_without_defaults() -> None:
    def of(compression: Any) -> RunSpec:
        return spec(strategy={"name": "all_reduce", "compression": compression}, nodes=2)

    assert of("none").key == of({"name": "none"}).key == spec(strategy="all_reduce", nodes=2).key
    assert of("top_k").key == of({"name": "top_k", "ratio": 0.01}).key
    assert of("top_k").canonical()["strategy"] == {"name": "all_reduce", "compression": {"name": "top_k"}}
    different = ("none", "sign", "top_k", {"name": "top_k", "ratio": 0.1})
    assert len({of(each).key for each in different}) == 4


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

"""Mistakes of strategies on real transports: weights, bytes, clocks, losses, schedules."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.nightly import nightly
from tests.support.runs import SMALL, FinishedRun, RunCache
from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

EPOCHS = 5
SAMPLES = 241  # 81, 80 and 80 on three nodes
SHARED: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": SAMPLES, "test_samples": 64, "noise": 1.0},
    "batch_size": 32,
    "model": {"name": "lenet"},  # with dropout: the ranks' random number streams matter
    "lr": 0.1,
    "epochs": EPOCHS,
}
MLP = {"name": "mlp", "hidden": [16]}
# Fixed here, because the default split points depend on measured times.
SPLIT: dict[str, Any] = {
    "pipeline": {"split_points": ["conv2", "flatten"]},
    "hybrid": {"mesh": {"pipeline": 2, "tensor": 2}, "split_points": ["flatten"]},
    # Of three steps an epoch.
    "fedbuff": {"local_steps": 1},
    "async_diloco": {"local_steps": 1},
    "async_elastic_averaging": {"local_steps": 1},
}
# The order of updates, and so the result, differs between runs.
ANY_ORDER = [name for name in STRATEGIES.entries if not STRATEGIES.load(name).deterministic]
# hybrid: two stages, each on two ranks. hierarchical_sgd: two groups of two. The others: 3.
NODES = {"serial": 1, "hybrid": 4, "hierarchical_sgd": 4}
# A guess is right in a third of the tokens.
TOKENS = {"name": "copy", "length": 5, "tokens": 3, "samples": SAMPLES, "test_samples": 64}
GPT = {"name": "gpt", "layers": 1, "width": 32, "heads": 4}
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    # Use a model that learns in any order of updates.
    **{name: {"model": MLP} for name in ANY_ORDER},
    # A step adds the rate or subtracts it.
    "demo": {"lr": 0.005},
    # They divide tokens and experts.
    "context_parallel": {"dataset": TOKENS, "model": GPT, "batch_size": 2},
    "expert_parallel": {"dataset": TOKENS, "model": {**GPT, "experts": 4}, "batch_size": 2},
}
ROWS = [
    (name, transport)
    for name in STRATEGIES.entries
    if STRATEGIES.load(name).trains
    for transport in STRATEGIES.load(name).transports
]
# Every change runs each strategy on one of its transports, and each transport with many strategies.
EVERY_CHANGE = {
    (name, own[number % len(own)])
    for number, name in enumerate(dict(ROWS))
    if (own := [each for row, each in ROWS if row == name and each not in ("memory", "nccl")] or ["memory"])
}


def trained(cache: RunCache, name: str, transport: str, **fields: Any) -> FinishedRun:
    """The run of a strategy on a transport."""
    strategy = {"name": name, **SPLIT.get(name, {})}
    run = {**SHARED, "strategy": strategy, "transport": transport, "nodes": NODES.get(name, 3)}
    return cache.ok(**{**run, **OTHER_FIELDS.get(name, {}), **fields})


def assert_same_weights(one: FinishedRun, other: FinishedRun, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-4, atol=atol)


def marks(name: str, transport: str) -> list[pytest.MarkDecorator]:
    if transport == "nccl":
        return [pytest.mark.gpu(NODES.get(name, 3))]
    return [] if (name, transport) in EVERY_CHANGE else [pytest.mark.nightly]


@pytest.mark.parametrize(("name", "transport"), [pytest.param(*row, marks=marks(*row)) for row in ROWS])
def test_every_strategy_on_every_transport(run_cache: RunCache, name: str, transport: str) -> None:
    run = trained(run_cache, name, transport)
    if "memory" in STRATEGIES.load(name).transports and name not in ANY_ORDER and transport != "nccl":
        assert_same_weights(run, trained(run_cache, name, "memory"))
    result = run.result
    nodes = NODES.get(name, 3)
    assert [rank.rank for rank in result.ranks] == list(range(nodes))
    assert sum(rank.samples for rank in result.ranks) == SAMPLES * EPOCHS

    # The model learned: accuracy is above that of a guess, and the loss fell on every rank.
    assert (result.accuracy or 0) > 0.4
    for rank in range(nodes):
        points = [point for point in result.epochs if point.rank == rank]
        assert [point.epoch for point in points] == list(range(1, EPOCHS + 1))
        assert points[-1].test_loss < points[0].test_loss

    # The phases add up to the training time, and CPU time fits into it.
    for each in result.ranks:
        phases_s = sum(each.seconds.values()) - each.seconds["evaluate"]
        assert each.train_s == pytest.approx(phases_s, abs=1e-4)
        assert each.seconds["compute"] > 0
    work_s = sum(each.work_cpu_s or 0 for each in result.ranks)
    assert work_s / result.cores <= (result.train_s or 0) * 1.05
    assert result.wall_s > (result.startup_s or 0) > 0
    assert (result.teardown_s or 0) > 0

    assert result.certificate is not None
    assert result.certificate.verified
    assert [split.coverage for split in result.certificate.splits] == [1.0] * EPOCHS
    assert [split.overlap for split in result.certificate.splits] == [0.0] * EPOCHS
    assert result.replicas_equal


def test_ddp_equals_all_reduce(run_cache: RunCache) -> None:
    # In batches of 16, one node has a step more than the others. zero1 and fsdp: see test_sharded.py.
    fields = {"model": MLP, "batch_size": 16, "epochs": 2}
    assert_same_weights(
        trained(run_cache, "ddp", "gloo", **fields), trained(run_cache, "all_reduce", "memory", **fields)
    )


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp", "pipeline_torch", "hogwild"])
def test_strategy_on_one_node_equals_serial(run_cache: RunCache, name: str) -> None:
    """For strategies that need processes; the others are compared as threads in tests/unit."""
    transport = STRATEGIES.load(name).transports[0]
    alone = trained(run_cache, name, transport, nodes=1, model=SHARED["model"])
    assert_same_weights(alone, trained(run_cache, "serial", "memory"))


def test_bytes_follow_from_the_algorithm(run_cache: RunCache) -> None:
    once = trained(run_cache, "one_shot", "gloo").result
    weights = once.ranks[0].parameters * 4
    reduced = 4 / 3 * weights  # 2 (P − 1) / P of the weights
    # Rank 0 broadcasts its initial weights to the two others; then one all-reduce.
    expected = [2 * weights + reduced, reduced, reduced]
    assert [rank.bytes_sent for rank in once.ranks] == pytest.approx(expected, rel=1e-3)
    for name, transport in (("all_reduce", "mpi"), ("ddp", "gloo")):
        result = trained(run_cache, name, transport).result
        steps = max(rank.steps for rank in result.ranks)
        assert [rank.bytes_sent for rank in result.ranks] == pytest.approx([steps * reduced] * 3, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "transport"), [("all_reduce", "gloo"), ("all_reduce", "mpi"), ("ddp", "gloo")]
)
def test_ranks_per_node_do_not_change_the_result(run_cache: RunCache, name: str, transport: str) -> None:
    separate = trained(run_cache, "all_reduce", "memory", nodes=4)
    assert_same_weights(trained(run_cache, name, transport, nodes=2, processes_per_node=2), separate)


def test_one_shot_reports_each_nodes_own_model(run_cache: RunCache) -> None:
    independent = {"name": "one_shot", "init": "independent"}
    done = trained(run_cache, "one_shot", "memory", strategy=independent)
    assert len(set(done.result.local_accuracies)) > 1
    last = [point.accuracy for point in done.result.epochs if point.epoch == EPOCHS]
    assert done.result.local_accuracies == last
    assert np.abs(done.weights - trained(run_cache, "one_shot", "memory").weights).max() > 0.01


# Compression


# fp16 uses an all-to-all exchange of chunks, which all transports support; the others gather or reduce.
COMPRESSED = [(name, "gloo") for name in COMPRESSIONS.entries if name != "none"]
COMPRESSED += nightly(("fp16", "rpc"), ("fp16", "mpi"))


@pytest.mark.parametrize(("compression", "transport"), COMPRESSED)
def test_compressed_gradients_train_with_fewer_bytes(
    run_cache: RunCache, compression: str, transport: str
) -> None:
    strategy = {"name": "all_reduce", "compression": compression}
    done, memory = (
        trained(run_cache, "all_reduce", each, strategy=strategy, model=MLP)
        for each in (transport, "memory")
    )
    assert_same_weights(done, memory)
    assert done.result.replicas_equal
    assert (done.result.accuracy or 0) > 0.4
    plain = trained(run_cache, "all_reduce", "memory", model=MLP).result
    for compressed, dense in zip(done.result.ranks, plain.ranks, strict=True):
        assert 0 < compressed.bytes_sent < 0.51 * dense.bytes_sent


@pytest.mark.parametrize("compression", ["fp16", "power_sgd"])
def test_ddp_compresses_with_torch_hooks(run_cache: RunCache, compression: str) -> None:
    # 3.6 MB of gradient in several buckets: over gloo, torch's PowerSGD supports only one.
    model: dict[str, Any] = {"name": "mlp", "hidden": [512, 512, 128]}
    strategy = {"name": "ddp", "compression": compression}
    result = run_cache.ok(strategy=strategy, nodes=2, epochs=3, model=model).result
    assert result.replicas_equal
    assert (result.accuracy or 0) > 0.4
    widths = [28 * 28, *model["hidden"], 10]
    low_rank = sum(widths[1:]) + 2 * sum(a + b for a, b in pairwise(widths))
    for rank in result.ranks:
        if compression == "power_sgd":  # the first two steps are not compressed
            assert rank.bytes_sent == 8 * rank.parameters + (rank.steps - 2) * 4 * low_rank
        else:
            assert rank.bytes_sent == rank.steps * 2 * rank.parameters


# Torch's implementations compared with ours


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"split_points": ["conv2", "flatten"], "schedule": "gpipe"}, 3),
        ({"split_points": ["conv2", "flatten"], "schedule": "1f1b"}, 3),
        ({"split_points": ["flatten"], "schedule": "gpipe", "micro_batches": 1}, 2),
    ],
    ids=str,
)
def test_torch_pipeline_equals_ours(run_cache: RunCache, options: dict[str, Any], nodes: int) -> None:
    # 241 samples in batches of 16: the last batch has one sample and is not split into micro-batches.
    fields = {"model": {"name": "lenet", "dropout": 0.0}, "batch_size": 16, "epochs": 2, "nodes": nodes}
    ours, torchs = (
        trained(run_cache, name, transport, strategy={"name": name, **options}, **fields)
        for name, transport in (("pipeline", "memory"), ("pipeline_torch", "gloo"))
    )
    assert_same_weights(torchs, ours)


def test_ddp_averages_batch_norm_statistics_like_all_reduce(run_cache: RunCache) -> None:
    dataset = {"name": "synthetic", "samples": 241, "test_samples": 64, "height": 12, "width": 12}
    # Rounding can decide whether a ReLU passes an activation. A small lr keeps that effect far below the
    # effect of normalising over other samples.
    fields = {"dataset": dataset, "batch_size": 16, "nodes": 3, "lr": 0.001}
    found = {}
    for norm in ("batch", "sync_batch"):
        model = {"name": "wide_resnet", "widen": 1, "norm": norm}
        found[norm] = run_cache.get(strategy="ddp", model=model, **fields).weights
        ours = run_cache.get(strategy="all_reduce", transport="memory", model=model, **fields).weights
        np.testing.assert_allclose(found[norm], ours, rtol=0, atol=5e-4)
    assert np.abs(found["batch"] - found["sync_batch"]).max() > 5e-3


@pytest.mark.parametrize("nodes", [pytest.param(nodes, marks=pytest.mark.gpu(nodes)) for nodes in (1, 2)])
@pytest.mark.parametrize("strategy", ["one_shot", "all_reduce", "ddp"])
def test_gpu_equals_cpu(run_cache: RunCache, strategy: str, nodes: int) -> None:
    # mlp has no dropout, for which a GPU draws other numbers, and no convolutions, which TF32 may round.
    gloo, nccl = (
        run_cache.ok(strategy=strategy, transport=transport, nodes=nodes).result
        for transport in ("gloo", "nccl")
    )
    assert nccl.replicas_equal
    for on_cpu, on_gpu in zip(gloo.epochs, nccl.epochs, strict=True):
        assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)
        assert on_gpu.test_loss == pytest.approx(on_cpu.test_loss, rel=1e-3)
    assert [rank.bytes_sent for rank in nccl.ranks] == [rank.bytes_sent for rank in gloo.ranks]


# What a run says of its loss, learning rate and target holds wherever a strategy computes or steps


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [("pipeline", 2), ("pipeline_torch", 2), ("tensor_parallel", 2), ("rpc_split", 3)],
)
def test_a_split_model_is_trained_with_the_loss_of_the_run(
    run_cache: RunCache, strategy: str, nodes: int
) -> None:
    run = {"model": {"name": "mlp", "hidden": [16, 16]}, "batch_size": 16, "lr": 0.02}
    smooth = {"name": "cross_entropy", "label_smoothing": 0.3}
    serial, plain = (run_cache.get(strategy="serial", loss=loss, **run) for loss in (smooth, "nll"))
    transport = "rpc" if strategy == "rpc_split" else "gloo"
    split = run_cache.ok(strategy=strategy, nodes=nodes, transport=transport, loss=smooth, **run)
    np.testing.assert_allclose(split.weights, serial.weights, rtol=1e-3, atol=1e-5)
    assert not np.allclose(plain.weights, serial.weights, rtol=1e-3, atol=1e-5)
    losses = [run.result.epochs[-1].test_loss for run in (serial, split)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("optimizer", ["momentum", "textbook_adam"])
def test_library_strategies_apply_the_schedule(run_cache: RunCache, optimizer: str) -> None:
    run = {"nodes": 2, "optimizer": optimizer, "lr": 0.02}
    schedule = {"lr_scaling": "linear", "warm_up_epochs": 1}
    expected, constant = (
        run_cache.ok(strategy="all_reduce", transport="memory", **run, **each).weights
        for each in (schedule, {})
    )
    assert not np.allclose(expected, constant, rtol=1e-4, atol=1e-5)
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        done = run_cache.ok(strategy=strategy, transport="gloo", **run, **schedule)
        np.testing.assert_allclose(done.weights, expected, rtol=1e-4, atol=1e-5)
        assert [point.lr for point in done.result.epochs if point.rank == 0] == [0.02, 0.04]


@pytest.mark.parametrize(("strategy", "nodes"), [("async_parameter_server", 3), ("hogwild", 2)])
def test_strategies_whose_ranks_step_alone_apply_the_schedule(
    run_cache: RunCache, strategy: str, nodes: int
) -> None:
    """At so small a rate, gradients hardly depend on the order of updates."""
    model = Task(RunSpec.model_validate({**SMALL, "strategy": "serial"}), Path()).build_model(0)
    start = np.concatenate([each.detach().numpy().reshape(-1) for each in model.parameters()])
    run = {"strategy": strategy, "nodes": nodes, "epochs": 1, "lr": 1e-4}
    weights = [run_cache.ok(**run, lr_scaling=scaling).weights for scaling in ("none", "linear")]
    moved = [np.linalg.norm(each - start) for each in weights]
    assert moved[1] / moved[0] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "nodes", "fields"),
    [
        ("ddp", 2, {}),
        ("fsdp", 2, {}),
        ("pipeline_torch", 2, {}),
        ("rpc_split", 3, {}),
        ("async_parameter_server", 3, {}),
        ("local_sgd", 2, {"transport": "mpi"}),
    ],
)
def test_all_ranks_stop_after_the_epoch_that_reaches_the_target(
    run_cache: RunCache, strategy: str, nodes: int, fields: dict[str, Any]
) -> None:
    target = {"target_accuracy": 0.001, "patience": 2, "epochs": 4}
    result = run_cache.ok(strategy=strategy, nodes=nodes, **target, **fields).result
    assert [(p.epoch, p.target_reached) for p in result.epochs] == [(1, False), (2, True)] * nodes
    assert result.certificate is not None
    assert [split.epoch for split in result.certificate.splits] == [1, 2]

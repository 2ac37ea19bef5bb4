"""Equivalences that make numbers comparable: transports, libraries and one node agree on the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from trainer.spec.registries import COMPRESSIONS, STRATEGIES

Execute = Callable[..., RunResult]


@pytest.fixture
def weights(execute: Execute, tmp_path: Path) -> Callable[..., np.ndarray]:
    """The final weights of a run, flat float32."""

    def weights(**fields: Any) -> np.ndarray:
        result = execute(save_weights=True, **fields)
        assert result.status == "ok", result.cause
        return np.load(tmp_path / "results" / result.key / "weights.npy")

    return weights


EVERYWHERE = {"memory", "gloo", "rpc", "mpi"}
OURS = [
    name
    for name in STRATEGIES.entries
    if STRATEGIES.load(name).trains and set(STRATEGIES.load(name).transports) >= EVERYWHERE
]


# Which stages are how fast is measured, and so may be where they are cut.
CUT = {"pipeline": {"split_points": ["conv2", "flatten"]}, "hybrid": {"split_points": ["flatten"]}}


@pytest.mark.parametrize("name", OURS)
def test_same_seed_same_weights_on_every_transport(weights: Callable[..., np.ndarray], name: str) -> None:
    model = {"name": "lenet"}  # with dropout: every rank must draw from a stream of its own
    strategy, nodes = {"name": name, **CUT.get(name, {})}, 4 if name == "hybrid" else 3
    memory, gloo, rpc, mpi = (
        weights(strategy=strategy, transport=transport, nodes=nodes, model=model)
        for transport in ("memory", "gloo", "rpc", "mpi")
    )
    np.testing.assert_allclose(gloo, memory, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rpc, memory, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mpi, memory, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compression", COMPRESSIONS.entries)
def test_compressed_too(weights: Callable[..., np.ndarray], compression: str) -> None:
    # fp16 exchanges chunks all to all, and so goes over all transports; the others gather or reduce.
    others = ["gloo", "rpc", "mpi"] if compression == "fp16" else ["gloo"]
    strategy = {"name": "all_reduce", "compression": compression}
    memory = weights(strategy=strategy, transport="memory", nodes=3)
    for transport in others:
        np.testing.assert_allclose(
            weights(strategy=strategy, transport=transport, nodes=3), memory, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    "compression", [{"name": "top_k", "ratio": 1.0}, {"name": "power_sgd", "rank": 1024}], ids=str
)
def test_a_compression_that_leaves_nothing_out_changes_nothing(
    weights: Callable[..., np.ndarray], compression: dict[str, Any]
) -> None:
    # 241 samples on 3 nodes with batch 16: shares differ, and one node runs out a step early.
    odd = {"dataset": {"name": "synthetic", "samples": 241, "test_samples": 64}, "batch_size": 16}
    common = {"transport": "memory", "nodes": 3, **odd}
    plain = weights(strategy="all_reduce", **common)
    compressed = weights(strategy={"name": "all_reduce", "compression": compression}, **common)
    np.testing.assert_allclose(compressed, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "transport"),
    [("all_reduce", "memory"), ("all_reduce", "gloo"), ("all_reduce", "mpi"), ("ddp", "gloo")],
)
def test_it_does_not_matter_in_which_node_a_rank_is(
    weights: Callable[..., np.ndarray], strategy: str, transport: str
) -> None:
    apart, together = (
        weights(strategy=strategy, transport=transport, nodes=nodes, processes_per_node=4 // nodes)
        for nodes in (4, 2)
    )
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_torchs_pipeline_is_ours(weights: Callable[..., np.ndarray], schedule: str) -> None:
    # 241 samples in batches of 16: the last one, of one sample, goes through in one piece.
    odd = {"dataset": {"name": "synthetic", "samples": 241, "test_samples": 64}, "batch_size": 16}
    common: dict[str, Any] = {
        **odd,
        "nodes": 3,
        "model": {"name": "lenet", "dropout": 0.0},
        "transport": "gloo",
    }
    ours, torchs = (
        weights(
            strategy={"name": name, "schedule": schedule, "split_points": ["conv2", "flatten"]}, **common
        )
        for name in ("pipeline", "pipeline_torch")
    )
    np.testing.assert_allclose(torchs, ours, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "model", [{"name": "vgg_small", "width": 4}, {"name": "wide_resnet", "widen": 1}], ids=str
)
def test_torchs_pipeline_draws_and_remembers_as_ours(
    weights: Callable[..., np.ndarray], model: dict[str, Any]
) -> None:
    """Dropout draws and running means move for samples alone, in whole batches as in one node."""
    dataset = {"name": "synthetic", "samples": 65, "test_samples": 64, "height": 12, "width": 12}
    common: dict[str, Any] = {"dataset": dataset, "batch_size": 16, "model": model, "transport": "gloo"}
    one_piece = {"schedule": "gpipe", "micro_batches": 1, "split_points": ["flatten"]}
    ours, torchs = (
        weights(strategy={"name": name, **one_piece}, nodes=2, **common)
        for name in ("pipeline", "pipeline_torch")
    )
    np.testing.assert_allclose(torchs, ours, rtol=1e-4, atol=1e-6)


def test_ddp_is_all_reduce(weights: Callable[..., np.ndarray]) -> None:
    # 241 samples on 3 nodes with batch 16: one node runs out a step before the others.
    odd = {"dataset": {"name": "synthetic", "samples": 241, "test_samples": 64}, "batch_size": 16}
    ours = weights(strategy="all_reduce", transport="gloo", nodes=3, **odd)
    torchs = weights(strategy="ddp", nodes=3, **odd)
    np.testing.assert_allclose(torchs, ours, rtol=1e-4, atol=1e-6)


def test_ddp_is_all_reduce_with_statistics_too(weights: Callable[..., np.ndarray]) -> None:
    dataset = {"name": "synthetic", "samples": 241, "test_samples": 64, "height": 12, "width": 12}
    # Rounding may decide whether a ReLU passes an activation, and it does in one run or another: a small
    # lr keeps that far below what it changes whose samples are normalised together.
    fields = {"dataset": dataset, "batch_size": 16, "nodes": 3, "lr": 0.001}
    found = {}
    for norm in ("batch", "sync_batch"):
        model = {"name": "wide_resnet", "widen": 1, "norm": norm}
        found[norm] = weights(strategy="ddp", model=model, **fields)
        ours = weights(strategy="all_reduce", transport="gloo", model=model, **fields)
        np.testing.assert_allclose(found[norm], ours, rtol=0, atol=5e-4)
    assert np.abs(found["batch"] - found["sync_batch"]).max() > 5e-3


@pytest.mark.parametrize("nodes", [pytest.param(nodes, marks=pytest.mark.gpu(nodes)) for nodes in (1, 2)])
@pytest.mark.parametrize("strategy", ["one_shot", "all_reduce", "ddp"])
def test_on_gpus_it_is_the_same_training(execute: Execute, strategy: str, nodes: int) -> None:
    # Without dropout: a GPU draws other numbers. With mlp: convolutions may be rounded to TF32.
    gloo, nccl = (
        execute(strategy=strategy, transport=transport, nodes=nodes) for transport in ("gloo", "nccl")
    )
    assert (nccl.status, nccl.cause) == ("ok", None)
    assert nccl.replicas_equal
    for on_cpu, on_gpu in zip(gloo.epochs, nccl.epochs, strict=True):
        assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)
        assert on_gpu.test_loss == pytest.approx(on_cpu.test_loss, rel=1e-3)
    assert [rank.bytes_sent for rank in nccl.ranks] == [rank.bytes_sent for rank in gloo.ranks]


@pytest.mark.parametrize("strategy", ["one_shot", "all_reduce", "ddp", "zero1", "fsdp", "hogwild"])
def test_on_one_node_every_strategy_is_serial(weights: Callable[..., np.ndarray], strategy: str) -> None:
    model = {"name": "lenet"}
    serial = weights(strategy="serial", model=model)
    np.testing.assert_allclose(
        weights(strategy=strategy, nodes=1, model=model), serial, rtol=1e-5, atol=1e-7
    )


# With dropout, and with statistics that no gradient carries.
@pytest.mark.parametrize("model", [{"name": "lenet"}, {"name": "wide_resnet", "widen": 1}], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "strategy",
    [
        "parameter_server",
        "async_parameter_server",
        {"name": "async_parameter_server", "max_staleness": 0},
    ],
    ids=str,
)
def test_a_server_with_one_worker_is_serial(
    weights: Callable[..., np.ndarray],
    strategy: str | dict[str, Any],
    optimizer: str,
    model: dict[str, Any],
) -> None:
    fields = {"model": model, "optimizer": optimizer, "lr": 0.01}
    serial = weights(strategy="serial", **fields)
    np.testing.assert_allclose(
        weights(strategy=strategy, transport="rpc", nodes=2, **fields), serial, rtol=1e-5, atol=1e-7
    )


def test_all_reduce_over_full_batches_is_serial_over_the_whole_set(
    weights: Callable[..., np.ndarray],
) -> None:
    # 241 samples do not divide by 3: the mean has to weigh each node's gradient by its samples.
    data = {"dataset": {"name": "synthetic", "samples": 241, "test_samples": 64}, "epochs": 5}
    serial = weights(strategy="serial", batch_size=241, **data)
    together = weights(strategy="all_reduce", transport="memory", nodes=3, batch_size=100, **data)
    np.testing.assert_allclose(together, serial, rtol=1e-4, atol=1e-6)


def test_independent_starts_differ_from_a_common_one(weights: Callable[..., np.ndarray]) -> None:
    common = weights(strategy={"name": "one_shot", "init": "broadcast"}, transport="memory", nodes=2)
    independent = weights(strategy={"name": "one_shot", "init": "independent"}, transport="memory", nodes=2)
    assert np.abs(common - independent).max() > 0.01


def test_the_seed_decides(weights: Callable[..., np.ndarray]) -> None:
    first, again, other = (
        weights(strategy="all_reduce", transport="gloo", nodes=2, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01

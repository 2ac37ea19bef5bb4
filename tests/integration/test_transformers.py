"""Mistakes of ways to split a GPT over real transports: its weights are not those of one node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.nightly import nightly
from tests.support.runs import RunCache

GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.1}
RUN: dict[str, Any] = {
    "dataset": {"name": "induction", "length": 23, "tokens": 30, "samples": 96, "test_samples": 32},
    "batch_size": 16,
    "lr": 0.1,
    "epochs": 2,
}
SEQUENCE = {"name": "tensor_parallel", "sequence_parallel": True}
EXPERTS = {"experts": 5, "top_k": 2, "capacity_factor": 0.8}  # divided as 2, 2 and 1, with dropped tokens
INTERLEAVED, ZERO_BUBBLE = (
    {"name": "pipeline", "schedule": each, "micro_batches": 4} for each in ("interleaved", "zero_bubble")
)
CLIPPED, BF16 = {"accumulate": 3, "clip_norm": 0.1}, {"precision": "bf16"}
RING, ULYSSES = ({"name": "context_parallel", "attention": each} for each in ("ring", "ulysses"))


@pytest.mark.parametrize(
    ("strategy", "nodes", "transport", "tied"),
    [
        ("tensor_parallel", 3, "gloo", True),
        ("tensor_parallel", 2, "mpi", False),
        (SEQUENCE, 3, "gloo", True),
        (SEQUENCE, 2, "mpi", False),
        (RING, 3, "gloo", True),
        (RING, 2, "mpi", False),
        (ULYSSES, 2, "gloo", False),
        (ULYSSES, 2, "mpi", True),
        ("pipeline", 2, "gloo", False),
        (INTERLEAVED, 2, "gloo", False),
        (INTERLEAVED, 2, "mpi", False),
        (ZERO_BUBBLE, 3, "gloo", False),
    ],
    ids=str,
)
def test_a_split_gpt_has_the_weights_of_one_node(
    run_cache: RunCache, strategy: Any, nodes: int, transport: str, tied: bool
) -> None:
    # Stages of a pipeline drop other activations than one node does.
    model = {**GPT, "tied": tied, "dropout": 0.0 if "pipeline" in str(strategy) else 0.1}
    fields = {**RUN, "model": model, "clip_norm": 0.3}
    serial = run_cache.ok(strategy="serial", **fields)
    split = run_cache.ok(strategy=strategy, nodes=nodes, transport=transport, **fields)
    np.testing.assert_allclose(split.weights, serial.weights, rtol=0, atol=1e-6)
    assert split.result.replicas_equal
    losses = [run.result.epochs[-1].test_loss for run in (split, serial)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("strategy", "model", "step"),
    [
        ("ddp", {"tied": True}, BF16),
        ("zero1", {"tied": True}, CLIPPED),
        ("fsdp", {}, BF16),
        ("ddp", EXPERTS, CLIPPED),
        ("fsdp", EXPERTS, {}),
        *nightly(
            ("ddp", {"tied": True}, {}),
            ("zero1", {"tied": True}, BF16),
            ("fsdp", {}, CLIPPED),
            ("ddp", {}, CLIPPED),
            ("ddp", EXPERTS, BF16),
            ("fsdp", EXPERTS, CLIPPED),
        ),
    ],
    ids=str,
)
def test_replicas_of_a_gpt_have_the_weights_of_all_reduce(
    run_cache: RunCache, strategy: str, model: dict[str, Any], step: dict[str, Any]
) -> None:
    fields = {"model": {**GPT, **model}, "nodes": 2, "transport": "gloo", "batch_per": "run", **RUN, **step}
    expected, found = (run_cache.ok(strategy=name, **fields) for name in ("all_reduce", strategy))
    # In bf16, a difference in the last bits of float32 can change how a number is rounded.
    atol = 1e-3 if "precision" in step else 1e-6
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=atol)
    assert found.result.replicas_equal


@pytest.mark.parametrize(("nodes", "transport"), [(3, "gloo"), (2, "mpi"), (2, "rpc")])
def test_divided_experts_have_the_weights_of_all_reduce(
    run_cache: RunCache, nodes: int, transport: str
) -> None:
    fields = {"model": {**GPT, **EXPERTS}, "nodes": nodes, "transport": transport, **RUN}
    fields["batch_size"] = 10
    expected, found = (run_cache.ok(strategy=name, **fields) for name in ("all_reduce", "expert_parallel"))
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-5)
    assert found.result.replicas_equal
    losses = [run.result.epochs[-1].test_loss for run in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_micro_batches_of_both_pipelines_weigh_the_balance_loss_alike(run_cache: RunCache) -> None:
    model = {**GPT, "dropout": 0.0, "experts": 4, "capacity_factor": None, "balance": 1.0}
    ours, theirs = (
        run_cache.ok(
            strategy={"name": name, "split_points": ["block2"], "micro_batches": 2},
            **{**RUN, "model": model, "nodes": 2, "transport": "gloo"},
        )
        for name in ("pipeline", "pipeline_torch")
    )
    np.testing.assert_allclose(theirs.weights, ours.weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", "pipeline_torch"])
def test_recomputation_changes_no_weight_and_stores_less(run_cache: RunCache, strategy: str) -> None:
    """Over torch's own reducers, shards and pipelines."""
    split = {"split_points": ["block2"]} if strategy == "pipeline_torch" else {}
    fields = {"strategy": {"name": strategy, **split}, "nodes": 2, "transport": "gloo", "model": GPT, **RUN}
    plain, again = run_cache.ok(**fields), run_cache.ok(recompute="full", **fields)
    np.testing.assert_array_equal(again.weights, plain.weights)
    for mine, other in zip(again.result.ranks, plain.result.ranks, strict=True):
        assert 0 < (mine.activation_bytes or 0) < 0.8 * (other.activation_bytes or 0)

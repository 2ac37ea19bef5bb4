"""Mistakes in micro-batches, clipping and bf16: shares of a batch, whose gradients a norm has, types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.unit.threads import together
from tests.unit.training import ON_TOKENS, fields_for, train
from trainer.comm.memory import MemoryCommunicator
from trainer.parallel.expert_replica import ExpertParallelReplica
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.strategies.expert_parallel import through_ranks
from trainer.strategies.serial import Serial
from trainer.training.replica import Replica
from trainer.training.session import Session
from trainer.training.task import Task

# The last batch of a rank of three has 2 samples or 1, so that one of 3 micro-batches has none.
DATA: dict[str, Any] = {**ON_TOKENS["dataset"], "samples": 44, "test_samples": 8}
RUN: dict[str, Any] = {**ON_TOKENS, "dataset": DATA, "batch_size": 13, "epochs": 1, "lr": 0.5}
# Capacity and balance of experts would be those of a micro-batch.
EXPERTS: dict[str, Any] = {**fields_for("expert_parallel")["model"], "capacity_factor": None, "balance": 0}
NODES = {"serial": 1, "hybrid": 4}
SHARDED = ("zero1", "zero2", "zero3")
SEQUENCE = {"name": "tensor_parallel", "sequence_parallel": True}


def run_of(strategy: Any, **fields: Any) -> dict[str, Any]:
    return {**RUN, "model": EXPERTS if strategy == "expert_parallel" else RUN["model"], **fields}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["serial", *SHARDED, "tensor_parallel", "expert_parallel"])
def test_micro_batches_give_the_steps_and_losses_of_their_batch(name: str) -> None:
    nodes = NODES.get(name, 3)
    whole, split = (train(name, nodes, **run_of(name, accumulate=k)) for k in (1, 3))
    np.testing.assert_allclose(split.weights, whole.weights, rtol=0, atol=1e-12)
    assert 0 < (split.results[0].activation_bytes or 0) < 0.5 * (whole.results[0].activation_bytes or 0)
    for rank in range(nodes):
        one, other = (each.of("epoch", rank)[0].fields["loss"] for each in (whole, split))
        assert other == pytest.approx(one, abs=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "strategy",
    [*SHARDED, "pipeline", "hybrid", SEQUENCE, "context_parallel", "expert_parallel"],
    ids=lambda strategy: strategy if isinstance(strategy, str) else "sequence_parallel",
)
def test_the_norm_is_that_of_the_whole_gradient(strategy: Any) -> None:
    """Of the same gradients, each rank of a split model sees a part."""
    nodes, run = NODES.get(str(strategy), 3), run_of(strategy)
    replicas = STRATEGIES.parse(strategy).replicas(nodes)
    same = ("all_reduce", replicas) if replicas > 1 else ("serial", 1)
    expected, unclipped = (train(*same, **run, clip_norm=norm).weights for norm in (0.1, None))
    found = train(strategy, nodes, **run, clip_norm=0.1).weights
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(expected - unclipped).max() > 0.01


def test_the_norm_does_not_depend_on_where_the_model_is_cut() -> None:
    """The cuts follow measured times, and equal seeds give equal bits."""
    deep = {**RUN, "model": {**ON_TOKENS["model"], "layers": 3}, "clip_norm": 0.1}
    one, other = (
        train({"name": "pipeline", "micro_batches": 2, "split_points": cut}, 3, **deep).weights
        for cut in (["block1", "head"], ["block2", "block3"])
    )
    np.testing.assert_array_equal(one, other)


def test_the_norm_does_not_depend_on_the_order_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of tensors are their addresses, which differ from process to process."""
    run = {**RUN, **fields_for("expert_parallel"), "strategy": "expert_parallel", "transport": "memory"}
    task = Task(RunSpec.model_validate({**run, "nodes": 2}), Path())

    def norm(comm: MemoryCommunicator) -> float:
        replica = ExpertParallelReplica(task, comm.clock, comm, through_ranks)
        drawn = torch.Generator().manual_seed(0)
        for parameter in replica.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=drawn)
        return replica.squared_gradient_norm().item()

    found = []
    for seed in range(24):
        monkeypatch.setattr(torch.Tensor, "__hash__", lambda each, seed=seed: hash((seed, id(each))))
        found += together(2, norm)
    assert len({*found}) == 1


def test_a_step_is_as_long_as_the_clipped_gradient() -> None:
    start, large, small, plain = (
        train("serial", 1, **{**RUN, "batch_size": 44, **each}).weights
        for each in ({"lr": 1e-12}, {"clip_norm": 0.01}, {"clip_norm": 1e6}, {})
    )
    assert np.linalg.norm(large - start) == pytest.approx(0.5 * 0.01, rel=1e-3)
    np.testing.assert_array_equal(small, plain)


def test_a_strategy_that_ignores_a_field_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(_: Serial, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                session.spec.loss.of(replica.model(batch.inputs), batch.targets).backward()

    monkeypatch.setattr(Serial, "train", own)
    train("serial", 1, **RUN)
    for fields in ({"accumulate": 2}, {"clip_norm": 1.0}, {"precision": "bf16"}):
        with pytest.raises(RuntimeError, match=f"{next(iter(fields))} had no effect"):
            train("serial", 1, **RUN, **fields)


@pytest.mark.parametrize(("strategy", "ranks"), [("serial", 1), ("zero2", 2)])
def test_only_layers_compute_in_bf16(strategy: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients and evaluation are float32."""
    evaluated, predict = set[bool](), Replica.predict

    def predicting(replica: Replica, inputs: torch.Tensor) -> torch.Tensor | None:
        evaluated.add(torch.is_autocast_enabled("cpu"))
        return predict(replica, inputs)

    monkeypatch.setattr(Replica, "predict", predicting)
    single, half = (train(strategy, ranks, precision=each, **RUN) for each in ("float32", "bf16"))
    assert 1e-5 < np.abs(half.weights - single.weights).max() < 5e-3  # bf16 has 8 bits
    assert half.same_weights
    assert evaluated == {False}
    stored, before = (sum(each.activation_bytes or 0 for each in t.results) for t in (half, single))
    assert stored < 0.7 * before
    assert half.results[0].state_bytes == single.results[0].state_bytes


def test_stages_exchange_float32() -> None:
    stages = {"name": "pipeline", "split_points": ["output"]}  # after a layer whose output is bf16
    single, half = (train(stages, 2, precision=each, epochs=1) for each in ("float32", "bf16"))
    assert [each.bytes_sent for each in half.results] == [each.bytes_sent for each in single.results]


SYNCHRONISED = {"name": "wide_resnet", "norm": "sync_batch"}


@pytest.mark.parametrize(
    ("strategy", "fields", "named"),
    [
        ("serial", {"accumulate": 33}, "33 .*32"),
        ("pipeline", {"accumulate": 2}, r"pipeline\.micro_batches"),
        ("rpc_split", {"accumulate": 2}, "rpc_split"),
        ("rpc_split", {"clip_norm": 1.0}, "pipeline"),
        ("all_reduce", {"accumulate": 2, "model": SYNCHRONISED}, "sync_"),
        (
            "all_reduce",
            {"precision": "bf16", "model": SYNCHRONISED},
            "wide_resnet with sync_batch.*float32",
        ),
        ("tensor_parallel", {"precision": "bf16", **ON_TOKENS}, "tensor_parallel.*allowed: float32"),
        ("expert_parallel", {"precision": "bf16", **RUN, "model": EXPERTS}, "expert_parallel.*: float32"),
    ],
)
def test_what_cannot_be_is_an_error_of_the_spec(strategy: str, fields: dict[str, Any], named: str) -> None:
    nodes = {"serial": 1, "rpc_split": 3}.get(strategy, 2)
    with pytest.raises(ValidationError, match=named) as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": nodes, "batch_size": 32, **fields})
    (error,) = caught.value.errors()
    assert error["type"] == next(iter(fields))

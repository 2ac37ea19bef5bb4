"""Micro-batches add up to the gradient of their batch, and the norm is that of the whole gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.unit.threads import together
from tests.unit.trainer.parallel.test_partitioned_models import LENET, with_losses
from tests.unit.training import ON_TOKENS, fields_for, train
from trainer.comm.memory import MemoryCommunicator
from trainer.data.cache import DatasetCache
from trainer.parallel.expert_replica import ExpertParallelReplica
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.strategies.expert_parallel import through_ranks
from trainer.strategies.serial import Serial
from trainer.training.session import Session
from trainer.training.task import Task

# 121 samples: the last batch of a rank of three has 2 or 1, so that one of 3 micro-batches has none.
RUN: dict[str, Any] = {**ON_TOKENS, "batch_size": 13, "epochs": 1, "lr": 0.5}
# Capacity and balance of experts would be those of a micro-batch.
EXPERTS: dict[str, Any] = {**fields_for("expert_parallel")["model"], "capacity_factor": None, "balance": 0}
MODELS = {"expert_parallel": EXPERTS}
IMAGES: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 84, "test_samples": 20, "noise": 1.0},
    "model": LENET,
    "batch_size": 32,
    "epochs": 1,
}
NODES = {"serial": 1, "hybrid": 4}
IN_MEMORY = [
    name
    for name in STRATEGIES.entries
    if STRATEGIES.load(name).trains and STRATEGIES.load(name).deterministic
    if "memory" in STRATEGIES.load(name).transports
]
OF_A_REPLICA = [name for name in IN_MEMORY if "micro_batches" not in STRATEGIES.load(name).model_fields]
SPLITS: list[Any] = [
    (name, NODES.get(name, 3)) for name in IN_MEMORY if STRATEGIES.load(name).partitions_model
]
SPLITS += [("zero2", 2), ("zero2", 3), ({"name": "tensor_parallel", "sequence_parallel": True}, 3)]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OF_A_REPLICA)
def test_micro_batches_give_the_steps_of_their_batch(name: str) -> None:
    nodes, run = NODES.get(name, 3), {**RUN, "model": MODELS.get(name, RUN["model"])}
    (whole, losses), (split, found) = (with_losses(name, nodes, accumulate=k, **run) for k in (1, 3))
    # Ranks are threads, whose steps mix.
    np.testing.assert_allclose(sorted(found), sorted(losses), rtol=0, atol=1e-12)
    np.testing.assert_allclose(split.weights, whole.weights, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("strategy", "nodes"), SPLITS, ids=str)
def test_the_norm_is_that_of_the_whole_gradient(strategy: Any, nodes: int) -> None:
    """Of the same gradients, each rank of a split model sees a part."""
    run = {**RUN, "model": MODELS.get(str(strategy), RUN["model"]), "clip_norm": 0.1}
    replicas = STRATEGIES.parse(strategy).replicas(nodes)
    other, others = ("all_reduce", replicas) if replicas > 1 else ("serial", 1)
    expected, found = train(other, others, **run), train(strategy, nodes, **run)
    unclipped = train(other, others, **{**run, "clip_norm": None})
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    assert np.abs(expected.weights - unclipped.weights).max() > 0.01


DEEP: dict[str, Any] = {**RUN, "model": {**ON_TOKENS["model"], "layers": 3}, "clip_norm": 0.1}
CUTS = (["block1", "head"], ["block2", "block3"], ["block1", "block2"])


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ({"name": "pipeline", "micro_batches": 2}, 3),
        ({"name": "hybrid", "mesh": {"pipeline": 3, "tensor": 2}, "micro_batches": 2}, 6),
        ({"name": "hybrid", "mesh": {"pipeline": 3, "data": 2}, "micro_batches": 2}, 6),
    ],
    ids=str,
)
def test_the_norm_does_not_depend_on_where_the_model_is_cut(strategy: dict[str, Any], ranks: int) -> None:
    """The cuts follow measured times, and equal seeds give equal bits."""
    found = [train({**strategy, "split_points": cut}, ranks, **DEEP).weights for cut in CUTS]
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def test_the_norm_does_not_depend_on_where_ranks_with_several_stages_cut_the_model() -> None:
    cuts = (["block1", "block2", "block3"], ["block1", "block3", "head"])
    own = {"name": "pipeline", "schedule": "interleaved", "micro_batches": 2}
    one, other = (train({**own, "split_points": cut}, 2, **DEEP).weights for cut in cuts)
    np.testing.assert_array_equal(one, other)


def test_the_norm_does_not_depend_on_the_order_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of tensors are their addresses, which differ from process to process."""
    run = {**RUN, **fields_for("expert_parallel"), "strategy": "expert_parallel", "transport": "memory"}
    task = Task(RunSpec.model_validate({**run, "nodes": 2}), Path(), DatasetCache())

    def norm(comm: MemoryCommunicator) -> float:
        replica = ExpertParallelReplica(task, comm.clock, comm, through_ranks)
        drawn = torch.Generator().manual_seed(0)
        for parameter in replica.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=drawn)
        return replica.squared_gradient_norm().item()

    found = []
    for seed in range(8):
        monkeypatch.setattr(torch.Tensor, "__hash__", lambda each, seed=seed: hash((seed, id(each))))
        found += together(2, norm)
    assert len({*found}) == 1


def test_a_step_is_as_long_as_the_clipped_gradient() -> None:
    run = {**RUN, "batch_size": 121, "epochs": 1}
    start, large, small = (
        train("serial", 1, **{**run, **each}).weights
        for each in ({"lr": 1e-12}, {"clip_norm": 0.01}, {"clip_norm": 1e6})
    )
    assert np.linalg.norm(large - start) == pytest.approx(0.5 * 0.01, rel=1e-3)
    np.testing.assert_array_equal(small, train("serial", 1, **run).weights)


@pytest.mark.parametrize("fields", [{"accumulate": 2}, {"clip_norm": 1.0}, {"precision": "bf16"}], ids=str)
def test_a_strategy_that_ignores_a_field_fails(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(_: Serial, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                session.spec.loss.of(replica.model(batch.inputs), batch.targets).backward()

    monkeypatch.setattr(Serial, "train", own)
    train("serial", 1, **RUN)
    with pytest.raises(RuntimeError, match=f"{next(iter(fields))} had no effect"):
        train("serial", 1, **RUN, **fields)


def test_micro_batches_need_less_memory_for_activations() -> None:
    whole, split = (train("serial", 1, **{**IMAGES, "accumulate": k}).results[0] for k in (1, 4))
    assert split.activation_bytes is not None
    assert whole.activation_bytes is not None
    assert split.activation_bytes < 0.4 * whole.activation_bytes


@pytest.mark.parametrize(
    ("fields", "field", "named"),
    [
        ({"accumulate": 33}, "accumulate", ("33", "32")),
        ({"accumulate": 2, "strategy": "pipeline", "nodes": 2}, "accumulate", ("pipeline.micro_batches",)),
        (
            {"accumulate": 2, "strategy": "rpc_split", "nodes": 3},
            "accumulate",
            ("rpc_split",),
        ),
        (
            {"clip_norm": 1.0, "strategy": "rpc_split", "nodes": 3},
            "clip_norm",
            ("pipeline",),
        ),
        (
            {"accumulate": 2, "nodes": 2, "strategy": "all_reduce"}
            | {"model": {"name": "wide_resnet", "norm": "sync_batch"}},
            "accumulate",
            ("sync_batch",),
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_an_error_of_the_spec(
    fields: dict[str, Any], field: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**IMAGES, "strategy": "serial", **fields})
    (error,) = caught.value.errors()
    assert error["type"] == field
    for each in named:
        assert each in error["msg"]

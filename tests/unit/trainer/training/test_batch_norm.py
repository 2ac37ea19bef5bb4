"""Mistakes in BatchNorm across ranks: which samples and ranks count in statistics, and what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import nll_loss

from tests.unit.training import SMALL, train
from trainer.core.clock import Clock
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.task import Task

PIXELS = {"name": "synthetic", "height": 8, "width": 8, "test_samples": 20, "noise": 1.0}
NARROW: dict[str, Any] = {
    "model": {"name": "wide_resnet", "widen": 1},
    "dataset": {**PIXELS, "samples": 61},  # in one step a rank has no samples
    "epochs": 1,
}
SYNCHRONISED = {"name": "wide_resnet", "widen": 1, "norm": "sync_batch"}
STATISTICS = 2 * (16 * 3 + 32 * 2 + 64 * 2)


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64.

    In float32, rounding decides whether a ReLU passes an activation near 0. After a few steps over single
    samples, weights that should be equal then differ by hundredths.
    """
    in_floats = Task.build_model

    def build_model(task: Task, *args: Any, **options: Any) -> nn.Sequential:
        model = in_floats(task, *args, **options).double()
        model.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
        return model

    monkeypatch.setattr(Task, "build_model", build_model)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "parameter_server", "local_sgd", "zero2"])
def test_all_ranks_end_with_the_same_statistics(name: str) -> None:
    """Which strategies that average gradients exchange once per epoch."""
    training, expected = (
        train(each, 3 if each == "parameter_server" else 2, **NARROW) for each in (name, "all_reduce")
    )
    (result, *_) = training.results
    assert training.same_weights
    assert len(training.weights) == (result.parameters or 0) + STATISTICS
    if name != "local_sgd":
        np.testing.assert_allclose(training.weights, expected.weights, rtol=0, atol=1e-10)
    if name == "all_reduce":
        statistics = 8 * (STATISTICS + 1)  # and the rank's weight
        assert result.bytes_sent == 8 * (result.parameters or 0) * result.steps + statistics


def test_statistics_are_averaged_over_the_training_ranks() -> None:
    """One step in plain torch: the mean of each rank's running statistics, weighted by its samples."""
    uneven = {**NARROW, "partitioner": {"name": "dirichlet", "alpha": 0.3}, "seed": 1, "batch_size": 61}
    run = {**SMALL, **uneven, "nodes": 2, "transport": "memory", "strategy": "all_reduce"}
    spec = RunSpec.model_validate(run)
    task = Task(spec, Path())
    gathered, samples = [], []
    for rank in range(2):
        ((batch, _),) = BatchLoader(task.data.train, spec, task.rngs, rank, 2).batches(1)
        model = task.build_model(0)
        model(batch.inputs)
        gathered.append(torch.cat([b for b in model.buffers() if b.is_floating_point()]))
        samples.append(len(batch.targets))
    assert max(samples) > 1.2 * min(samples)
    expected = torch.einsum("r,rn->n", torch.tensor(samples) / sum(samples), torch.stack(gathered))
    for name, ranks in (("all_reduce", 2), ("parameter_server", 3)):
        found = train(name, ranks, **uneven).weights[-STATISTICS:]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("name", ["all_reduce", "zero2"])
def test_sync_batch_norm_trains_as_one_node_with_the_global_batch(name: str) -> None:
    """The reference is plain torch. With 61 samples on 3 ranks, one rank has the last step to itself."""
    fields: dict[str, Any] = {**NARROW, "model": SYNCHRONISED, "lr": 0.05}
    run = {**SMALL, **fields, "strategy": name, "nodes": 3, "transport": "memory"}
    spec = RunSpec.model_validate(run)
    task = Task(spec, Path())
    plain = spec.model_copy(update={"model": spec.model.model_copy(update={"norm": "batch"})})
    model = Task(plain, Path()).build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, 3) for rank in range(3)]
    for step in zip(*(loader.synchronous_batches(1) for loader in loaders), strict=True):
        present = [batch for batch, _ in step if batch.share]
        optimizer.zero_grad()
        output = model(torch.cat([batch.inputs for batch in present]))
        nll_loss(output, torch.cat([batch.targets for batch in present])).backward()
        optimizer.step()
    state = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    expected = torch.cat([values.detach().reshape(-1) for values in state])
    training = train(name, 3, **fields)
    assert training.same_weights
    np.testing.assert_allclose(training.weights, expected.numpy(), rtol=0, atol=1e-10)


def test_batch_with_weight_0_changes_nothing() -> None:
    """Neither statistics, gradient, loss nor accuracy."""
    run = {**SMALL, **NARROW, "strategy": "all_reduce", "transport": "memory"}
    task = Task(RunSpec.model_validate(run), Path())
    replica = Replica(task.build_model(0), task, Clock())
    loader = BatchLoader(task.data.train, task.spec, task.rngs, 0, 1)
    (batch, _), (other, _), (third, _), *_ = loader.batches(1)
    replica.backward(third)
    before, loss, outputs = replica.flat_buffers(), replica.loss, replica._outputs
    replica.backward(batch, weight=0.0)
    assert torch.equal(replica.flat_buffers(), before)
    assert not replica.gradient().any()
    assert (replica.loss, replica._outputs) == (loss, outputs)
    replica.backward(other)
    assert not torch.equal(replica.flat_buffers(), before)


def test_sync_batch_norm_requires_a_synchronous_strategy_or_one_rank() -> None:
    assert RunSpec.model_validate({"strategy": "one_shot", "nodes": 1, "model": SYNCHRONISED})
    for strategy in ("one_shot", "local_sgd", "parameter_server", "hogwild"):
        with pytest.raises(ValidationError, match="sync_batch") as caught:
            RunSpec.model_validate({"strategy": strategy, "nodes": 2, "model": SYNCHRONISED})
        (error,) = caught.value.errors()
        assert error["type"] == "model"
        allowed = {"all_gather", "all_reduce", "ddp", "fsdp", "reduce_broadcast", "zero1", "zero2"}
        assert {*error["ctx"]["allowed"].split(", ")} == allowed

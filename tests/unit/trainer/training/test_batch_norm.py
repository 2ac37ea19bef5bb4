"""Mistakes in BatchNorm across ranks: which samples and ranks count in statistics."""

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
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.task import Task

PIXELS = {"name": "synthetic", "height": 8, "width": 8, "test_samples": 20, "noise": 1.0}
NARROW: dict[str, Any] = {
    "model": {"name": "wide_resnet", "widen": 1},
    "dataset": {**PIXELS, "samples": 61},  # in one step a rank has no samples
    "epochs": 1,
}
SYNCHRONISED = {"name": "wide_resnet", "widen": 1, "norm": "sync_batch"}


def task_of(strategy: str, nodes: int, **fields: Any) -> Task:
    run = {**SMALL, **NARROW, "strategy": strategy, "nodes": nodes, "transport": "memory", **fields}
    return Task(RunSpec.model_validate(run), Path())


def statistics(model: nn.Module) -> torch.Tensor:
    return torch.cat([buffer for buffer in model.buffers() if buffer.is_floating_point()])


def test_statistics_are_averaged_over_the_training_ranks() -> None:
    """One step in plain torch: the mean of each rank's running statistics, weighted by its samples."""
    uneven = {"partitioner": {"name": "dirichlet", "alpha": 0.3}, "seed": 1, "batch_size": 61}
    task = task_of("all_reduce", 2, **uneven)
    gathered, samples = [], []
    for rank in range(2):
        ((batch, _),) = BatchLoader(task.data.train, task.spec, task.rngs, rank, 2).batches(1)
        model = task.build_model(0)
        model(batch.inputs)
        gathered.append(statistics(model))
        samples.append(len(batch.targets))
    assert max(samples) > 1.2 * min(samples)
    expected = torch.einsum("r,rn->n", torch.tensor(samples) / sum(samples), torch.stack(gathered))
    for name, ranks in (("all_reduce", 2), ("parameter_server", 3), ("local_sgd", 2)):
        training = train(name, ranks, **{**NARROW, **uneven})
        assert training.same_weights
        found = training.weights[-len(expected) :]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("double")
def test_sync_batch_norm_trains_as_one_node_with_the_global_batch() -> None:
    """The reference is plain torch. With 61 samples on 3 ranks, one rank has the last step to itself."""
    task = task_of("all_reduce", 3, model=SYNCHRONISED, lr=0.05)
    model = task_of("all_reduce", 3).build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loaders = [BatchLoader(task.data.train, task.spec, task.rngs, rank, 3) for rank in range(3)]
    for step in zip(*(loader.synchronous_batches(1) for loader in loaders), strict=True):
        present = [batch for batch, _ in step if batch.share]
        optimizer.zero_grad()
        output = model(torch.cat([batch.inputs for batch in present]))
        nll_loss(output, torch.cat([batch.targets for batch in present])).backward()
        optimizer.step()
    flat = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    expected = torch.cat([*flat, statistics(model)]).numpy()
    for name in ("all_reduce", "zero1", "zero2", "zero3"):
        training = train(name, 3, **{**NARROW, "model": SYNCHRONISED, "lr": 0.05})
        assert training.same_weights
        np.testing.assert_allclose(training.weights, expected, rtol=0, atol=1e-10)


def test_sync_batch_norm_requires_a_synchronous_strategy_or_one_rank() -> None:
    assert RunSpec.model_validate({"strategy": "one_shot", "nodes": 1, "model": SYNCHRONISED})
    for strategy in ("one_shot", "local_sgd", "parameter_server", "hogwild"):
        with pytest.raises(ValidationError, match="sync_batch") as caught:
            RunSpec.model_validate({"strategy": strategy, "nodes": 2, "model": SYNCHRONISED})
        (error,) = caught.value.errors()
        assert error["type"] == "model"
        in_steps = {"all_gather", "all_reduce", "delayed_all_reduce", "demo", "reduce_broadcast"}
        sharded = {"ddp", "fsdp", "zero1", "zero2", "zero3"}
        assert {*error["ctx"]["allowed"].split(", ")} == in_steps | sharded

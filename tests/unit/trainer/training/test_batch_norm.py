"""BatchNorm across ranks: SyncBatchNorm, and averaged running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from tests.unit.threads import together
from tests.unit.trainer.strategies.test_strategies import PLAIN, THREADED, WITH_SERVER, close, nodes
from tests.unit.training import SMALL, train
from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.task import Task

PIXELS = {"name": "synthetic", "height": 8, "width": 8, "test_samples": 40, "noise": 1.0}
NARROW = {"model": {"name": "wide_resnet", "widen": 1}, "dataset": {**PIXELS, "samples": 60}}
SYNCHRONISED = {"name": "wide_resnet", "widen": 1, "norm": "sync_batch"}
SYNCHRONOUS = [name for name in THREADED if STRATEGIES.load(name).synchronous]
CHANNELS = 5


def statistics(weights: np.ndarray, parameters: int) -> np.ndarray:
    return weights[parameters:]


# One layer


def layer(kind: type[nn.BatchNorm2d], mean: float = 1.0) -> nn.BatchNorm2d:
    """Return a layer whose running mean is shifted by `mean` - 1."""
    norm = kind(CHANNELS)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert values is not None
            values.copy_(torch.rand(CHANNELS, generator=generator) + 0.5)
        assert norm.running_mean is not None
        norm.running_mean += mean - 1
    return norm


def pictures(samples: int, seed: int, mean: float = 1.0) -> Tensor:
    return torch.randn(samples, CHANNELS, 4, 3, generator=torch.Generator().manual_seed(seed)) + mean


@pytest.mark.parametrize("mean", [1.0, 1000.0])
@pytest.mark.parametrize("sizes", [(6, 6), (7, 1, 4), (1, 1)])
def test_sync_batch_norm_equals_batch_norm_over_the_samples_of_all_ranks(
    sizes: tuple[int, ...], mean: float
) -> None:
    """Compare output, every gradient and running statistics with nn.BatchNorm2d over two batches."""
    parts = [[pictures(n, 10 * step + rank, mean) for rank, n in enumerate(sizes)] for step in range(2)]
    slopes = [[pictures(n, 50 + 10 * step + rank) for rank, n in enumerate(sizes)] for step in range(2)]
    whole = layer(nn.BatchNorm2d, mean)
    expected: list[tuple[Tensor, Tensor]] = []
    for step in range(2):
        x = torch.cat(parts[step]).requires_grad_()
        y = whole(x)
        y.backward(torch.cat(slopes[step]))
        assert x.grad is not None
        expected.append((y.detach(), x.grad))

    def body(comm: Communicator) -> Any:
        norm = layer(SyncBatchNorm, mean)
        assert isinstance(norm, SyncBatchNorm)
        norm.comm = comm
        found = []
        for step in range(2):
            x = parts[step][comm.rank].clone().requires_grad_()
            y = norm(x)
            y.backward(slopes[step][comm.rank])
            found.append((y.detach(), x.grad))
        return norm, found

    ranks = together(len(sizes), body)
    # float32 values near 1000 have 4 digits left for the deviation from the mean.
    tolerance = {"rtol": 5e-3, "atol": 5e-3} if mean > 100 else {"rtol": 1e-4, "atol": 1e-5}
    for step in range(2):
        for at in (0, 1):
            found = torch.cat([of_rank[step][at] for _, of_rank in ranks])
            torch.testing.assert_close(found, expected[step][at], **tolerance)
    for name in ("weight", "bias"):
        total = sum(getattr(norm, name).grad for norm, _ in ranks)
        torch.testing.assert_close(total, getattr(whole, name).grad, **tolerance)
    for norm, _ in ranks:
        for name, values in whole.named_buffers():
            torch.testing.assert_close(dict(norm.named_buffers())[name], values, **tolerance)


def test_rank_without_samples_gets_the_statistics_of_the_others() -> None:
    x = pictures(6, 1)
    whole = layer(nn.BatchNorm2d)
    expected = whole(x)

    def body(comm: Communicator) -> Any:
        norm = layer(SyncBatchNorm)
        assert isinstance(norm, SyncBatchNorm)
        norm.comm, norm.counts_batch = comm, comm.rank != 1
        mine = x[comm.rank // 2 * 3 :][:3] if norm.counts_batch else pictures(1, 99)
        mine = mine.clone().requires_grad_()
        y = norm(mine)
        (y.square().sum() * norm.counts_batch).backward()
        return y.detach(), mine.grad, norm.running_mean, norm.running_var

    (first, *_), (_, nothing, *_), (last, *_) = ranks = together(3, body)
    torch.testing.assert_close(torch.cat([first, last]), expected)
    assert torch.equal(nothing, torch.zeros_like(nothing))
    for _, _, mean, variance in ranks:
        torch.testing.assert_close(mean, whole.running_mean)
        torch.testing.assert_close(variance, whole.running_var)


def test_single_rank_and_evaluation_equal_batch_norm_without_traffic() -> None:
    x = pictures(6, 1)

    def body(comm: Communicator) -> tuple[Tensor, float]:
        norm = layer(SyncBatchNorm).eval()
        assert isinstance(norm, SyncBatchNorm)
        norm.comm = comm
        return norm(x), comm.traffic.bytes_sent

    assert torch.equal(layer(SyncBatchNorm)(x), layer(nn.BatchNorm2d)(x))
    expected = layer(nn.BatchNorm2d).eval()(x)
    for y, sent in together(2, body):
        assert torch.equal(y, expected)
        assert sent == 0


def test_sync_batch_norm_all_reduces_4c_plus_1_floats() -> None:
    """2C + 1 values in the forward pass, 2C in the backward pass."""

    def body(comm: Communicator) -> float:
        norm = layer(SyncBatchNorm)
        assert isinstance(norm, SyncBatchNorm)
        norm.comm = comm
        norm(pictures(2, comm.rank)).sum().backward()
        return comm.traffic.bytes_sent

    assert together(2, body) == [4 * (4 * CHANNELS + 1)] * 2


# Training


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


@pytest.mark.parametrize("name", THREADED)
def test_all_ranks_end_with_the_same_statistics(name: str) -> None:
    training = train(name, nodes(name, 2), **NARROW)
    assert training.same_weights
    (result, *_) = training.results
    assert len(statistics(training.weights, result.parameters)) == 2 * (16 * 3 + 32 * 2 + 64 * 2)


@pytest.mark.parametrize("name", THREADED)
def test_one_training_rank_equals_serial(name: str) -> None:
    serial = train("serial", 1, **NARROW)
    alone = train(PLAIN.get(name, name), nodes(name, 1), **NARROW)
    close(alone.weights, serial.weights)
    assert alone.results[0].accuracy == serial.results[0].accuracy
    assert (alone.results[0].bytes_sent == 0) == (name not in WITH_SERVER)


@pytest.mark.parametrize("name", ["all_gather", "reduce_broadcast", "parameter_server"])
def test_gradient_averaging_strategies_equal_all_reduce(name: str, doubles: None) -> None:
    odd: dict[str, Any] = {
        **NARROW,
        "dataset": {**PIXELS, "samples": 61},
    }  # in one step a rank has no samples
    close(train(name, nodes(name, 2), **odd).weights, train("all_reduce", 2, **odd).weights)


def test_statistics_are_all_reduced_once_per_epoch() -> None:
    training = train("all_reduce", 2, **NARROW)
    (result, *_) = training.results
    of_statistics = 4 * (len(statistics(training.weights, result.parameters)) + 1)  # and the rank's weight
    assert result.bytes_sent == 4 * result.parameters * result.steps + of_statistics * SMALL["epochs"]  # type: ignore[operator]


def test_statistics_are_averaged_over_the_training_ranks() -> None:
    """One step in plain torch: the mean of each rank's running statistics, weighted by its samples."""
    uneven: dict[str, Any] = {**NARROW, "partitioner": {"name": "dirichlet", "alpha": 0.3}, "seed": 1}
    run = {**SMALL, **uneven, "epochs": 1, "batch_size": 60, "nodes": 2, "transport": "memory"}
    spec = RunSpec.model_validate({**run, "strategy": "all_reduce"})
    task = Task(spec, Path())
    gathered, samples = [], []
    for rank in range(2):
        (batch, _), *rest = BatchLoader(task.data.train, spec, task.rngs, rank, 2).batches(1)
        assert not rest
        model = task.build_model(0)
        model(batch.inputs)
        gathered.append(torch.cat([b for b in model.buffers() if b.is_floating_point()]))
        samples.append(len(batch.targets))
    assert max(samples) > 1.2 * min(samples)
    expected = torch.einsum("r,rn->n", torch.tensor(samples) / sum(samples), torch.stack(gathered))
    for name in ("all_reduce", "parameter_server"):
        training = train(name, nodes(name, 2), **uneven, epochs=1, batch_size=60)
        found = statistics(training.weights, training.results[0].parameters)
        close(found, expected.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_sync_batch_norm_trains_as_one_node_with_the_global_batch(name: str, doubles: None) -> None:
    """The reference is plain torch. With 61 samples on 3 ranks, one rank has the last step to itself."""
    ranks, dataset = 3, {**PIXELS, "samples": 61}
    fields: dict[str, Any] = {"model": SYNCHRONISED, "dataset": dataset, "lr": 0.05}
    run = {**SMALL, **fields, "strategy": name, "nodes": ranks, "transport": "memory"}
    spec = RunSpec.model_validate(run)
    task = Task(spec, Path())
    plain = spec.model_copy(update={"model": spec.model.model_copy(update={"norm": "batch"})})
    model = Task(plain, Path()).build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, ranks) for rank in range(ranks)]
    for epoch in (1, 2):
        for step in zip(*(loader.synchronous_batches(epoch) for loader in loaders), strict=True):
            present = [batch for batch, _ in step if batch.share]
            optimizer.zero_grad()
            output = model(torch.cat([batch.inputs for batch in present]))
            nll_loss(output, torch.cat([batch.targets for batch in present])).backward()
            optimizer.step()
    state = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    expected = torch.cat([values.detach().reshape(-1) for values in state])
    training = train(name, ranks, **fields)
    assert training.same_weights
    np.testing.assert_allclose(training.weights, expected.numpy(), rtol=0, atol=1e-10)


def test_batch_with_weight_0_does_not_change_statistics() -> None:
    run = {**SMALL, **NARROW, "strategy": "all_reduce", "transport": "memory"}
    task = Task(RunSpec.model_validate(run), Path())
    replica = Replica(task.build_model(0), task, Clock())
    (batch, _), (other, _), *_ = BatchLoader(task.data.train, task.spec, task.rngs, 0, 1).batches(1)
    before = replica.flat_buffers()
    replica.backward(batch, weight=0.0)
    assert torch.equal(replica.flat_buffers(), before)
    assert not replica.gradient().any()
    replica.backward(other)
    assert not torch.equal(replica.flat_buffers(), before)


@pytest.mark.parametrize("strategy", ["one_shot", "local_sgd", "gossip", "parameter_server", "hogwild"])
def test_sync_batch_norm_requires_a_synchronous_strategy(strategy: str) -> None:
    with pytest.raises(ValidationError, match="sync_batch") as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": 2, "model": SYNCHRONISED})
    (error,) = caught.value.errors()
    assert error["type"] == "model"
    allowed = error["ctx"]["allowed"]
    together = {"all_gather", "all_reduce", "ddp", "fsdp", "reduce_broadcast", "zero1", "zero2"}
    assert set(allowed.split(", ")) == together


def test_every_strategy_may_use_sync_batch_norm_on_one_rank() -> None:
    fields: dict[str, Any] = {**NARROW, "model": SYNCHRONISED}
    close(train("one_shot", 1, **fields).weights, train("serial", 1, **NARROW).weights)

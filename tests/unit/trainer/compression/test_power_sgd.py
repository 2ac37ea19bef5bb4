"""PowerSGD against a float64 implementation of Vogels et al. 2019, Alg. 1 and 2, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import nll_loss

from tests.unit.training import SMALL, train
from trainer.compression.power_sgd import PowerSgdCompressor
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.lr_schedule import learning_rate
from trainer.training.task import Task

RANKS = 2
# The learning rate grows from epoch to epoch, and the residual of a step is applied at the next one's.
WARM_UP: dict[str, Any] = {**SMALL, "epochs": 3, "warm_up_epochs": 2, "seed": 1}


def strategy(rank: int) -> dict[str, Any]:
    return {"name": "all_reduce", "compression": {"name": "power_sgd", "rank": rank}}


def orthogonal(p: Tensor) -> Tensor:
    """Gram-Schmidt. p: shape (rows, rank)."""
    columns: list[Tensor] = []
    for column in p.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


def compressed(
    gradients: Sequence[Tensor], residuals: Sequence[Tensor], q: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """One step on one matrix, of all ranks' gradients: the mean, new residuals, and Q of the next step."""
    deltas = [gradient + residual for gradient, residual in zip(gradients, residuals, strict=True)]
    p = orthogonal(sum((delta @ q for delta in deltas), torch.zeros(())) / len(deltas))
    own_q = [delta.T @ p for delta in deltas]
    q = sum(own_q, torch.zeros(())) / len(deltas)
    return p @ q.T, [delta - p @ own.T for delta, own in zip(deltas, own_q, strict=True)], q


def is_compressed(shape: Sequence[int], rank: int) -> bool:
    return len(shape) == 2 and rank * sum(shape) < shape[0] * shape[1]


@pytest.mark.parametrize("rank", [1, 2])
def test_each_step_of_a_training_with_warm_up_agrees(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of each rank and step: gradient, residual and matrices Q before and after.
    steps: list[list[tuple[Any, Any]]] = [[] for _ in range(RANKS)]
    product = PowerSgdCompressor._mean

    def state(compressor: PowerSgdCompressor, gradient: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        qs = [q.double() for q in compressor._q]
        return gradient.double(), compressor.residual.double(), qs

    def recording(compressor: PowerSgdCompressor, gradient: Tensor, lr: float) -> None:
        before = state(compressor, gradient)
        product(compressor, gradient, lr)
        steps[compressor.comm.rank].append((before, state(compressor, gradient)))

    monkeypatch.setattr(PowerSgdCompressor, "_mean", recording)
    train(strategy(rank), RANKS, **WARM_UP)
    spec = RunSpec.model_validate({**WARM_UP, "strategy": strategy(rank), "nodes": RANKS})
    shapes = [parameter.shape for parameter in Task(spec, Path()).build_model(0).parameters()]
    lengths = [shape.numel() for shape in shapes]
    assert not steps[0][0][0][1].any()  # the first residual
    for step in zip(*steps, strict=True):
        tried = 0
        for at, shape in enumerate(shapes):
            before, after = (
                [[flat.split(lengths)[at].view(shape) for flat in each[when][:2]] for each in step]
                for when in (0, 1)
            )
            gradients, residuals = zip(*before, strict=True)
            if not is_compressed(shape, rank):
                mean, kept = sum(gradients) / RANKS, [torch.zeros(shape)] * RANKS
            else:
                mean, kept, q = compressed(gradients, residuals, step[0][0][2][tried])
                found_q = step[0][1][2][tried]  # columns may have the other sign, as in P
                torch.testing.assert_close(found_q.abs(), q.abs(), rtol=0, atol=1e-4 * q.abs().max().item())
                tried += 1
            atol = 1e-4 * max(gradient.abs().max().item() for gradient in gradients)
            for (found, residual), expected in zip(after, kept, strict=True):
                torch.testing.assert_close(found, mean.double(), rtol=0, atol=atol)
                torch.testing.assert_close(residual, expected.double(), rtol=0, atol=atol)
        assert tried == len(step[0][0][2]) > 0


def trained_in_float64(rank: int | None, noise: float) -> Tensor:
    """Final weights of all_reduce. rank: None without compression. noise: relative, of first weights."""
    spec = RunSpec.model_validate({**WARM_UP, "strategy": strategy(rank or 1), "nodes": RANKS})
    task = Task(spec, Path())
    model = task.build_model(0).double()
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: value.detach() * (1 + noise * torch.randn(value.shape, generator=generator).double())
        for name, value in model.named_parameters()
    }
    drawn = torch.Generator().manual_seed(task.rngs.torch_seed("compression"))
    residuals = {name: [torch.zeros_like(value)] * RANKS for name, value in weights.items()}
    qs = {
        name: torch.randn(value.shape[1], rank, generator=drawn).double()
        for name, value in weights.items()
        if rank and is_compressed(value.shape, rank)
    }
    loaders = [BatchLoader(task.data.train, spec, task.rngs, node, RANKS) for node in range(RANKS)]
    for epoch in range(1, spec.epochs + 1):
        for step in zip(*(loader.synchronous_batches(epoch) for loader in loaders), strict=True):
            of_ranks = []
            for batch, _ in step:
                inputs = {name: value.requires_grad_() for name, value in weights.items()}
                loss = nll_loss(functional_call(model, inputs, batch.inputs.double()), batch.targets)
                of_ranks.append(torch.autograd.grad(loss * batch.share * RANKS, [*inputs.values()]))
            for (name, value), *gradients in zip([*weights.items()], *of_ranks, strict=True):
                if name in qs:
                    mean, residuals[name], qs[name] = compressed(gradients, residuals[name], qs[name])
                else:
                    mean = sum(gradients, torch.zeros(())) / RANKS
                weights[name] = value.detach() - learning_rate(spec, epoch) * mean
    return torch.cat([value.flatten() for value in weights.values()])


def test_rounding_grows_in_float64_too_and_only_with_compression() -> None:
    """Why final weights differ between precisions, as the docstring of PowerSgd says."""
    noise = 1e-12
    moved = {
        rank: (trained_in_float64(rank, noise) - trained_in_float64(rank, 0)).abs().max().item() / noise
        for rank in (None, 1)
    }
    assert moved[None] < 10
    assert moved[1] > 100

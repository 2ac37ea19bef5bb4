"""Each compression on gradients whose exact result is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Size, Tensor
from torch.nn.functional import nll_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.unit.threads import together
from tests.unit.training import SMALL, train
from trainer.comm.memory import MemoryCommunicator
from trainer.compression.base import Compression
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.compression.sign import Sign
from trainer.compression.top_k import TopK
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.lr_schedule import learning_rate
from trainer.training.task import Task

NAN = float("nan")
LR = 0.1


def mean_of(
    compression: Compression, gradients: list[Tensor], shapes: list[Size], steps: int = 1
) -> Tensor:
    """The mean that the ranks compute in the last of `steps` steps with the same gradients."""

    def body(comm: MemoryCommunicator) -> Tensor:
        compressor = compression.build(comm, shapes, RngFactory(0))
        for _ in range(steps):
            mean = gradients[comm.rank].clone()
            compressor.mean(mean, LR)
        return mean

    reported: Tensor = together(len(gradients), body)[0]
    return reported


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# fp16


@pytest.mark.parametrize("size", [2, 3, 4])
def test_fp16_rounds_both_ways_and_sums_in_float32(size: int) -> None:
    gradients = [normal(1001, seed=rank) for rank in range(size)]
    mean = mean_of(Fp16(), gradients, [Size([1001])])
    halves = torch.stack(gradients).half().float()
    assert torch.equal(mean, halves.mean(dim=0).half().float())
    torch.testing.assert_close(mean, torch.stack(gradients).mean(dim=0), rtol=2**-9, atol=2**-9)


def test_fp16_overflows_to_infinity_and_underflows_to_zero() -> None:
    gradients = [torch.tensor([1e5, 1e-9, 60000.0])] * 2
    assert mean_of(Fp16(), gradients, [Size([3])]).tolist() == [float("inf"), 0.0, 60000.0]


# top_k


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ratio_1_is_the_exact_mean(size: int) -> None:
    gradients = [normal(500, seed=rank) for rank in range(size)]
    mean = mean_of(TopK(ratio=1), gradients, [Size([500])], steps=3)
    torch.testing.assert_close(mean, torch.stack(gradients).mean(dim=0))


def test_unsent_entries_accumulate_until_they_are_the_largest() -> None:
    gradients = [torch.tensor([4.0, -1.0, 0.0, 3.0]), torch.tensor([0.0, 0.0, -2.0, -1.5])]
    quarter = TopK(ratio=0.25)
    # Rank 0 sends 4, rank 1 sends -2. In step 2 the unsent entries have doubled:
    first, second = (mean_of(quarter, gradients, [Size([4])], steps) for steps in (1, 2))
    assert first.tolist() == [2.0, 0.0, -1.0, 0.0]
    # rank 0 has (4, -2, 0, 6), rank 1 has (0, 0, -2, -3).
    assert second.tolist() == [0.0, 0.0, 0.0, 1.5]


def test_large_indices_are_sent_bit_by_bit() -> None:
    # Read as float32, the bits of these indices are denormals, which some hardware flushes to 0.
    gradients = [torch.zeros(100_000), torch.zeros(100_000)]
    gradients[0][99_999], gradients[1][5] = 2.0, -4.0
    mean = mean_of(TopK(ratio=1e-5), gradients, [Size([100_000])])
    assert mean.nonzero().flatten().tolist() == [5, 99_999]
    assert (mean[5], mean[99_999]) == (-2, 1)


# sign


def test_mean_is_signs_times_mean_magnitudes_per_tensor() -> None:
    shapes = [Size([2, 2]), Size([2])]
    gradients = [
        torch.tensor([1.0, -3.0, 2.0, -2.0, 10.0, 0.0]),  # scales 2 and 5; 0 counts as positive
        torch.tensor([-4.0, -4.0, 4.0, 4.0, -1.0, -3.0]),  # scales 4 and 2
    ]
    assert mean_of(Sign(), gradients, shapes).tolist() == [-1.0, -3.0, 3.0, 1.0, 1.5, 1.5]
    # Step 2 adds the residuals of step 1, (-1, -1, 0, 0, 5, -5) and (0, 0, 0, 0, 1, -1):
    # (0, -4, 2, -2, 15, -5) has scales 2 and 10, (-4, -4, 4, 4, 0, -4) has 4 and 2.
    assert mean_of(Sign(), gradients, shapes, steps=2).tolist() == [-1.0, -3.0, 3.0, 1.0, 6.0, -6.0]


@pytest.mark.parametrize("length", [1, 7, 31, 32, 33, 64, 100])
def test_every_pattern_of_signs_is_preserved(length: int) -> None:
    for seed in range(20):
        signs = normal(length, seed=seed).sign()
        assert torch.equal(mean_of(Sign(), [signs, signs], [Size([length])]), signs)
    for signs in (torch.ones(length), -torch.ones(length)):
        assert torch.equal(mean_of(Sign(), [signs, signs], [Size([length])]), signs)


# Error feedback


@pytest.mark.parametrize("compression", [TopK(ratio=0.1), Sign()], ids=["top_k", "sign"])
def test_steps_of_plain_sgd_are_those_of_ef_sgd_at_any_rate(compression: Compression) -> None:
    """Karimireddy et al. 2019, Alg. 2: p ← lr g + e, x ← x − C(p), e ← p − C(p). Both ranks are equal."""
    rates = [0.1, 0.1, 0.4, 0.05, 0.8, 0.01]
    shapes = [Size([40]), Size([60])]

    def compressed(p: Tensor) -> Tensor:
        if isinstance(compression, TopK):
            kept = torch.zeros_like(p)
            indices = p.abs().topk(10).indices
            kept[indices] = p[indices]
            return kept
        return torch.cat([tensor.abs().mean() * tensor.sign() for tensor in p.split([40, 60])])

    expected, e = torch.zeros(100), torch.zeros(100)
    for step, lr in enumerate(rates):
        p = lr * normal(100, seed=step) + e
        expected -= compressed(p)
        e = p - compressed(p)

    def body(comm: MemoryCommunicator) -> Tensor:
        compressor, x = compression.build(comm, shapes, RngFactory(0)), torch.zeros(100)
        for step, lr in enumerate(rates):
            gradient = normal(100, seed=step)
            compressor.mean(gradient, lr)
            x -= lr * gradient
        return x

    torch.testing.assert_close(together(2, body)[0], expected, rtol=1e-4, atol=1e-5)


def test_training_with_warm_up_is_ef_sgd() -> None:
    """all_reduce with top_k against plain torch, while the learning rate grows from epoch to epoch."""
    fields = {**SMALL, "epochs": 4, "lr": 0.02, "lr_scaling": "linear", "warm_up_epochs": 3}
    strategy = {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.1}}
    spec = RunSpec.model_validate({**fields, "strategy": strategy, "nodes": 2, "transport": "memory"})
    task = Task(spec, Path())
    model = task.build_model(0)
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, 2) for rank in range(2)]
    x = parameters_to_vector(model.parameters()).detach()
    residuals = torch.zeros(2, len(x))
    for epoch in range(1, spec.epochs + 1):
        for step in zip(*(loader.synchronous_batches(epoch) for loader in loaders), strict=True):
            vector_to_parameters(x, model.parameters())
            for rank, (batch, _) in enumerate(step):
                loss = nll_loss(model(batch.inputs), batch.targets)
                gradient = parameters_to_vector(torch.autograd.grad(loss, [*model.parameters()]))
                residuals[rank] += learning_rate(spec, epoch) * gradient
            sent = torch.zeros_like(residuals)
            for rank in range(2):
                largest = residuals[rank].abs().topk(round(0.1 * len(x))).indices
                sent[rank, largest] = residuals[rank, largest]
            x = x - sent.mean(dim=0)
            residuals -= sent
    found = torch.from_numpy(train(strategy, 2, **{**fields, "lr": 0.02}).weights)
    assert (found - x).norm() < 1e-3 * x.norm()


# power_sgd


def low_rank(rank: int, seed: int) -> Tensor:
    """A matrix of shape (20, 30) and the given rank, flattened."""
    return (normal(20, rank, seed=seed) @ normal(rank, 30, seed=seed + 100)).flatten()


def test_low_rank_mean_is_exact() -> None:
    gradients = [low_rank(1, seed) for seed in range(3)]
    mean = torch.stack(gradients).mean(dim=0)
    shapes = [Size([20, 5, 6])]
    torch.testing.assert_close(mean_of(PowerSgd(rank=3), gradients, shapes), mean, rtol=1e-4, atol=1e-5)
    assert (mean_of(PowerSgd(rank=1), gradients, shapes) - mean).norm() > 0.1 * mean.norm()


def test_differences_that_cancel_between_ranks_use_no_rank() -> None:
    common, difference = low_rank(1, seed=0), normal(600)
    mean = mean_of(PowerSgd(rank=1), [common + difference, common - difference], [Size([20, 30])])
    torch.testing.assert_close(mean, common, rtol=1e-4, atol=1e-5)


def test_mean_is_uncompressed_where_the_rank_saves_no_bytes() -> None:
    gradients = [normal(600, seed=rank) for rank in range(3)]
    mean = mean_of(PowerSgd(rank=12), gradients, [Size([20, 30])], steps=3)  # 12 * 50 = 20 * 30
    torch.testing.assert_close(mean, torch.stack(gradients).mean(dim=0))


def test_warm_start_converges_to_the_best_approximation_of_a_constant_gradient() -> None:
    matrix = normal(20, 30)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    best = (matrix - u[:, :2] @ torch.diag(s[:2]) @ v[:2]).norm()

    def body(comm: MemoryCommunicator) -> list[float]:
        compressor = PowerSgd(rank=2).build(comm, [Size([20, 30])], RngFactory(0))
        errors = []
        for _ in range(50):
            mean = matrix.flatten().clone()
            compressor.mean(mean, LR)
            errors.append((mean.view(20, 30) - matrix).norm().item())
            compressor.residual.zero_()  # type: ignore[attr-defined]
        return errors

    errors, _ = together(2, body)
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best.item(), rel=0.01)


def test_nan_gradients_do_not_raise() -> None:
    # The training loop reports divergence; compression must not raise before it.
    for compression in (Fp16(), TopK(), Sign(), PowerSgd(rank=1)):
        assert mean_of(compression, [torch.full((600,), NAN)] * 2, [Size([20, 30])]).isnan().any()

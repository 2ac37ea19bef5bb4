"""Mistakes in compressions: rounding, ties, signs, what an earlier step has left out, at which rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Size, Tensor

from tests.unit.threads import together
from tests.unit.training import SMALL, train
from trainer.comm.memory import MemoryCommunicator
from trainer.compression.base import Compression, ErrorFeedback
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.compression.sign import Sign
from trainer.compression.top_k import TopK
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.training.lr_schedule import learning_rate

LR = 0.1


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def means_of(
    compression: Compression,
    steps: Sequence[Sequence[Tensor]],
    shapes: list[Size],
    rates: Sequence[float] = (),
) -> list[Tensor]:
    """The mean that rank 0 computes in each step. steps: the gradients of all ranks."""

    def body(comm: MemoryCommunicator) -> list[Tensor]:
        compressor = compression.build(comm, shapes, RngFactory(0))
        means = [gradients[comm.rank].clone() for gradients in steps]
        for mean, lr in zip(means, rates or [LR] * len(steps), strict=True):
            compressor.mean(mean, lr)
        return means

    first, *others = together(len(steps[0]), body)
    for other in others:
        for mean, same in zip(first, other, strict=True):
            torch.testing.assert_close(mean, same, rtol=0, atol=0, equal_nan=True)
    found: list[Tensor] = first
    return found


# fp16


@pytest.mark.parametrize(("ranks", "length"), [(2, 1001), (3, 1002), (4, 5)])
def test_fp16_rounds_both_ways_and_sums_in_float32(ranks: int, length: int) -> None:
    gradients = [normal(length, seed=rank) for rank in range(ranks)]
    (mean,) = means_of(Fp16(), [gradients], [Size([length])])
    assert torch.equal(mean, torch.stack(gradients).half().float().mean(dim=0).half().float())


def test_fp16_overflows_to_infinity_and_underflows_to_zero() -> None:
    (mean,) = means_of(Fp16(), [[torch.tensor([1e5, 1e-9, 60000.0])] * 2], [Size([3])])
    assert mean.tolist() == [float("inf"), 0.0, 60000.0]


def test_fp16_pads_no_more_than_to_whole_pairs() -> None:
    sent: list[int] = []

    def body(comm: MemoryCommunicator) -> None:
        all_to_all = comm.all_to_all
        comm.all_to_all = lambda rows: (sent.append(rows.numel()), all_to_all(rows))[1]  # type: ignore[method-assign]
        for length in (8, 9, 12, 13):
            Fp16().build(comm, [], RngFactory(0)).mean(torch.ones(length), LR)

    together(2, body)
    assert sorted(sent) == [4, 4, 6, 6, 6, 6, 8, 8]  # pairs, as float32


# top_k


def kept(p: Tensor, k: int) -> Tensor:
    """The k entries of the largest magnitude, and zeros."""
    found = torch.zeros_like(p)
    indices = p.abs().topk(k).indices
    found[indices] = p[indices]
    return found


@pytest.mark.parametrize(
    ("ratio", "length", "k"), [(0.25, 4, 1), (0.1, 4, 1), (0.3, 5, 2), (0.46, 10, 5), (1, 7, 7)]
)
def test_top_k_sends_a_rounded_share_of_the_entries(ratio: float, length: int, k: int) -> None:
    gradients = [normal(length, seed=rank) for rank in range(2)]
    (mean,) = means_of(TopK(ratio=ratio), [gradients], [Size([length])])
    torch.testing.assert_close(mean, sum(kept(each, k) for each in gradients) / 2)


def test_large_indices_are_sent_bit_by_bit() -> None:
    # Read as float32, the bits of these indices are denormals, which some hardware flushes to 0.
    gradients = [torch.zeros(100_000), torch.zeros(100_000)]
    gradients[0][99_999], gradients[1][5] = 2.0, -4.0
    (mean,) = means_of(TopK(ratio=1e-5), [gradients], [Size([100_000])])
    assert mean.nonzero().flatten().tolist() == [5, 99_999]
    assert (mean[5], mean[99_999]) == (-2, 1)


# sign


def test_sign_sends_signs_and_mean_magnitudes_per_tensor_and_what_is_left_later() -> None:
    shapes = [Size([2, 2]), Size([2])]
    gradients = [
        torch.tensor([1.0, -3.0, 2.0, -2.0, 10.0, 0.0]),  # scales 2 and 5; 0 counts as positive
        torch.tensor([-4.0, -4.0, 4.0, 4.0, -1.0, -3.0]),  # scales 4 and 2
    ]
    first, second = means_of(Sign(), [gradients] * 2, shapes)
    assert first.tolist() == [-1.0, -3.0, 3.0, 1.0, 1.5, 1.5]
    # Step 2 adds the residuals of step 1, (-1, -1, 0, 0, 5, -5) and (0, 0, 0, 0, 1, -1):
    # (0, -4, 2, -2, 15, -5) has scales 2 and 10, (-4, -4, 4, 4, 0, -4) has 4 and 2.
    assert second.tolist() == [-1.0, -3.0, 3.0, 1.0, 6.0, -6.0]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_every_pattern_of_signs_is_preserved(length: int) -> None:
    patterns = [
        torch.ones(length),
        -torch.ones(length),
        *(normal(length, seed=seed).sign() for seed in range(5)),
    ]
    for signs in patterns:
        (mean,) = means_of(Sign(), [[signs, signs]], [Size([length])])
        assert torch.equal(mean, signs)


# Error feedback


def signs_of(p: Tensor) -> Tensor:
    return torch.cat([tensor.abs().mean() * tensor.sign() for tensor in p.split([40, 60])])


@pytest.mark.parametrize(
    ("compression", "compressed"),
    [(TopK(ratio=0.1), lambda p: kept(p, 10)), (Sign(), signs_of)],
    ids=["top_k", "sign"],
)
def test_steps_of_plain_sgd_are_those_of_ef_sgd_at_any_rate(
    compression: Compression, compressed: Callable[[Tensor], Tensor]
) -> None:
    """Karimireddy et al. 2019, Alg. 2: p ← lr g + e, x ← x − C(p), e ← p − C(p). Both ranks are equal."""
    rates = [0.1, 0.1, 0.4, 0.05, 0.8, 0.01]
    gradients = [normal(100, seed=step) for step in range(len(rates))]
    found = means_of(compression, [[each] * 2 for each in gradients], [Size([40]), Size([60])], rates)
    e = torch.zeros(100)
    for lr, gradient, mean in zip(rates, gradients, found, strict=True):
        p = lr * gradient + e
        e = p - compressed(p)
        torch.testing.assert_close(lr * mean, compressed(p), rtol=1e-4, atol=1e-5)


def test_a_strategy_passes_the_rate_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    product = ErrorFeedback._mean

    def recording(compressor: ErrorFeedback, gradient: Tensor, lr: float) -> None:
        rates.extend([lr] if compressor.comm.rank == 0 else [])
        product(compressor, gradient, lr)

    monkeypatch.setattr(ErrorFeedback, "_mean", recording)
    fields = {**SMALL, "epochs": 3, "warm_up_epochs": 2, "lr_scaling": "linear"}
    strategy = {"name": "all_reduce", "compression": "top_k"}
    train(strategy, 2, **fields)
    spec = RunSpec.model_validate({**fields, "strategy": strategy, "nodes": 2, "transport": "memory"})
    steps = len(rates) // 3
    assert rates == [learning_rate(spec, epoch) for epoch in (1, 2, 3) for _ in range(steps)]
    assert len({*rates}) == 3


# power_sgd


def orthogonal(p: Tensor) -> Tensor:
    """Gram-Schmidt. p: shape (rows, rank)."""
    columns: list[Tensor] = []
    for column in p.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


class Reference:
    """Vogels et al. 2019, Alg. 1 and 2, on one matrix in float64. q: the first Q."""

    def __init__(self, q: Tensor, ranks: int) -> None:
        self.q = q.double()
        self.residuals: list[Any] = [0.0] * ranks

    def mean(self, gradients: Sequence[Tensor]) -> Tensor:
        deltas = [gradient + residual for gradient, residual in zip(gradients, self.residuals, strict=True)]
        p = orthogonal(torch.stack([delta @ self.q for delta in deltas]).mean(dim=0))
        own_q = [delta.T @ p for delta in deltas]
        self.residuals = [delta - p @ own.T for delta, own in zip(deltas, own_q, strict=True)]
        self.q = torch.stack(own_q).mean(dim=0)
        return p @ self.q.T


@pytest.mark.parametrize(
    ("rank", "matrices"),
    [(1, [(20, 30), (4, 8), (4, 4)]), (2, [(20, 30), (4, 8), None]), (3, [(20, 30), None, None])],
)
def test_each_step_of_power_sgd_is_that_of_the_paper(
    rank: int, matrices: list[tuple[int, int] | None]
) -> None:
    """A matrix is compressed if P and Q are smaller: 2 · (4 + 4) numbers are as many as 4 · 4."""
    shapes = [Size([20, 5, 6]), Size([4, 8]), Size([4, 4]), Size([7]), Size([])]
    steps = [[normal(656, seed=10 * step + each) for each in range(3)] for step in range(4)]
    drawn = torch.Generator().manual_seed(RngFactory(0).torch_seed("compression"))
    references = [each and Reference(torch.randn(each[1], rank, generator=drawn), 3) for each in matrices]
    found = means_of(PowerSgd(rank=rank), steps, shapes, rates=[0.1, 0.1, 0.4, 0.05])  # which do not matter
    lengths = [shape.numel() for shape in shapes]
    for gradients, mean in zip(steps, found, strict=True):
        parts = [each.double().split(lengths) for each in gradients]
        for at, part in enumerate(mean.double().split(lengths)):
            own, shape = [each[at] for each in parts], matrices[at] if at < 3 else None
            expected = torch.stack(own).mean(dim=0)
            if shape is not None:
                expected = references[at].mean([each.view(shape) for each in own]).flatten()  # type: ignore[union-attr]
            torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-4)


def test_nan_gradients_do_not_raise() -> None:
    # The training loop reports divergence; compression must not raise before it.
    gradients = [torch.full((600,), float("nan"))] * 2
    for compression in (Fp16(), TopK(), Sign(), PowerSgd(rank=1)):
        (mean,) = means_of(compression, [gradients], [Size([20, 30])])
        assert mean.isnan().any()

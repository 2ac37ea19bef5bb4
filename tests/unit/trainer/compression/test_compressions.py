"""Mistakes in compressions: rounding, ties, signs, what an earlier step has left out, at which rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
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
from trainer.spec.registries import COMPRESSIONS
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

    found: list[list[Tensor]] = together(len(steps[0]), body)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0, equal_nan=True)
    return found[0]


# fp16


def test_fp16_rounds_both_ways_and_sums_in_float32() -> None:
    for ranks, length in ((2, 1001), (3, 1002), (4, 5)):
        gradients = [normal(length, seed=rank) for rank in range(ranks)]
        (mean,) = means_of(Fp16(), [gradients], [Size([length])])
        assert torch.equal(mean, torch.stack(gradients).half().float().mean(dim=0).half().float())
    (mean,) = means_of(Fp16(), [[torch.tensor([1e5, 1e-9, 60000.0])] * 2], [Size([3])])
    assert mean.tolist() == [float("inf"), 0.0, 60000.0]


# top_k


def kept(p: Tensor, k: int) -> Tensor:
    """The k entries of the largest magnitude, and zeros."""
    indices = p.abs().topk(k).indices
    return torch.zeros_like(p).index_copy(0, indices, p[indices])


def test_top_k_sends_a_rounded_share_of_the_entries() -> None:
    for ratio, length, k in ((0.25, 4, 1), (0.1, 4, 1), (0.3, 5, 2), (0.46, 10, 5), (1, 7, 7)):
        gradients = [normal(length, seed=rank) for rank in range(2)]
        (mean,) = means_of(TopK(ratio=ratio), [gradients], [Size([length])])
        torch.testing.assert_close(mean, sum(kept(each, k) for each in gradients) / 2)


# Error feedback


def signs_of(p: Tensor) -> Tensor:
    return torch.cat([tensor.abs().mean() * tensor.sign() for tensor in p.split([40, 60])])


def test_steps_of_plain_sgd_are_those_of_ef_sgd_at_any_rate() -> None:
    """Karimireddy et al. 2019, Alg. 2: p ← lr g + e, x ← x − C(p), e ← p − C(p). Both ranks are equal."""
    rates = [0.1, 0.1, 0.4, 0.05, 0.8, 0.01]
    gradients = [normal(100, seed=step) for step in range(len(rates))]
    pairs: list[tuple[Compression, Callable[[Tensor], Tensor]]] = [
        (TopK(ratio=0.1), lambda p: kept(p, 10)),
        (Sign(), signs_of),
    ]
    for compression, compressed in pairs:
        found = means_of(compression, [[each] * 2 for each in gradients], [Size([40]), Size([60])], rates)
        e = torch.zeros(100)
        for lr, gradient, mean in zip(rates, gradients, found, strict=True):
            p = lr * gradient + e
            e = p - compressed(p)
            torch.testing.assert_close(lr * mean, compressed(p), rtol=1e-4, atol=1e-5)


def test_a_step_at_rate_0_neither_takes_nor_leaves_a_residual() -> None:
    gradients = [[normal(100, seed=step)] * 2 for step in range(3)]
    found = means_of(TopK(ratio=0.1), gradients, [Size([100])], [0.1, 0.0, 0.2])
    without = means_of(TopK(ratio=0.1), gradients[::2], [Size([100])], [0.1, 0.2])
    assert torch.equal(found[2], without[1])
    assert torch.equal(found[1], kept(gradients[1][0], 10))


def test_zero_has_a_positive_sign_and_each_tensor_a_scale() -> None:
    (mean,) = means_of(Sign(), [[torch.tensor([1.0, -3.0, 0.0, 10.0])] * 2], [Size([2]), Size([2])])
    assert mean.tolist() == [2.0, -2.0, 5.0, 5.0]


def test_a_strategy_passes_the_rate_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(ErrorFeedback, "_mean", lambda _, gradient, lr: rates.append(lr))
    fields = {**SMALL, "epochs": 3, "warm_up_epochs": 2, "lr_scaling": "linear"}
    strategy = {"name": "all_reduce", "compression": "top_k"}
    train(strategy, 2, **fields)
    spec = RunSpec.model_validate({**fields, "strategy": strategy, "nodes": 2, "transport": "memory"})
    expected = [learning_rate(spec, epoch) for epoch in (1, 2, 3) for _ in range(len(rates) // 3)]
    assert sorted(rates) == sorted(expected)  # those of two ranks
    assert len({*rates}) == 3


# power_sgd


class Reference:
    """Vogels et al. 2019, Alg. 1 and 2, on one matrix in float64. q: the first Q."""

    def __init__(self, q: Tensor, ranks: int) -> None:
        self.q = q.double()
        self.residuals: list[Any] = [0.0] * ranks

    def mean(self, gradients: Sequence[Tensor]) -> Tensor:
        deltas = [gradient + residual for gradient, residual in zip(gradients, self.residuals, strict=True)]
        p = torch.linalg.qr(torch.stack([delta @ self.q for delta in deltas]).mean(dim=0)).Q
        own_q = [delta.T @ p for delta in deltas]
        self.residuals = [delta - p @ own.T for delta, own in zip(deltas, own_q, strict=True)]
        self.q = torch.stack(own_q).mean(dim=0)
        return p @ self.q.T


def test_each_step_of_power_sgd_is_that_of_the_paper() -> None:
    """A matrix is compressed if P and Q are smaller: 2 · (4 + 4) numbers are as many as 4 · 4."""
    shapes, lengths = (
        [Size([20, 5, 6]), Size([4, 8]), Size([4, 4]), Size([7]), Size([])],
        [600, 32, 16, 7, 1],
    )
    steps = [[normal(656, seed=10 * step + each) for each in range(3)] for step in range(4)]
    for rank, compressed in ((1, 3), (2, 2), (3, 1)):  # how many of the matrices
        matrices = [(20, 30), (4, 8), (4, 4)][:compressed]
        drawn = torch.Generator().manual_seed(RngFactory(0).torch_seed("compression"))
        references = [Reference(torch.randn(each[1], rank, generator=drawn), 3) for each in matrices]
        found = means_of(PowerSgd(rank=rank), steps, shapes, [0.1, 0.1, 0.4, 0.05])  # rates do not matter
        for gradients, mean in zip(steps, found, strict=True):
            parts = [each.double().split(lengths) for each in gradients]
            for at, part in enumerate(mean.double().split(lengths)):
                own = [each[at] for each in parts]
                expected = torch.stack(own).mean(dim=0)
                if at < compressed:
                    expected = references[at].mean([each.view(matrices[at]) for each in own]).flatten()
                torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-4)


def test_nan_gradients_do_not_raise() -> None:
    """The training loop reports divergence; compression must not raise before it."""
    gradients = [torch.full((600,), float("nan"))] * 2
    for compression in (Fp16(), TopK(), Sign(), PowerSgd(rank=1)):
        (mean,) = means_of(compression, [gradients], [Size([20, 30])])
        assert mean.isnan().any()


# Integers, and weighted means of changes.


def in_integers(values: np.ndarray, largest: int) -> np.ndarray:
    """The nearest multiples of the scale of each block of 256, in float64."""
    decoded = np.zeros_like(values)
    for start in range(0, len(values), 256):
        block = values[start : start + 256]
        if scale := np.abs(block).max() / largest:
            decoded[start : start + 256] = np.rint(block / scale) * scale
    return decoded


@pytest.mark.parametrize(("name", "largest"), [("int8", 127), ("int4", 7), ("top_k", 0)])
def test_weighted_means_follow_their_formula_with_what_was_left_out(name: str, largest: int) -> None:
    """A rank of weight 0 keeps what it has left out, and does not count."""
    n, weights = 601, [(3, 1), (0, 2), (5, 5), (0, 0), (1, 4)]
    changes = [[normal(n, seed=10 * step + rank) for rank in range(2)] for step in range(len(weights))]
    compression = COMPRESSIONS.parse({"name": name, **({} if largest else {"ratio": 0.1})})

    def body(comm: MemoryCommunicator) -> list[Tensor]:
        compressor: Any = compression.build(comm, [Size([n])], RngFactory(0))
        own = zip(changes, weights, strict=True)
        return [compressor.weighted_mean(each[comm.rank], w[comm.rank]) for each, w in own]

    first, second = together(2, body)
    residuals = [np.zeros(n), np.zeros(n)]
    for step, (found, other) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(found, other)
        total = np.zeros(n)
        for rank, weight in enumerate(weights[step]):
            if weight:
                values = residuals[rank] + changes[step][rank].double().numpy()
                if largest:
                    decoded = in_integers(values, largest)
                else:
                    decoded = np.where(np.abs(values) >= np.sort(np.abs(values))[-60], values, 0.0)
                residuals[rank] = values - decoded
                total += weight * decoded
        np.testing.assert_allclose(found, total / max(sum(weights[step]), 1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_keep_zeros_and_pass_on_what_is_not_finite(name: str) -> None:
    """In one block alone."""
    values = torch.cat([torch.zeros(256), normal(256), torch.ones(5)])
    values[3] = 1.4e-44  # 10 times the smallest number
    for wrong in (float("nan"), float("inf")):
        bad = values.clone()
        bad[300] = wrong
        (mean,) = means_of(COMPRESSIONS.parse(name), [[bad, values]], [Size([517])])
        assert ((mean[:256] >= 0) & (mean[:256] <= values[:256])).all()
        assert not mean[256:512].isfinite().any()
        torch.testing.assert_close(mean[512:], torch.ones(5))


DILOCO = {"name": "diloco", "local_steps": 5}


@pytest.mark.parametrize(
    "plain",
    [
        {**DILOCO, "participation": {"schedule": [[0, 1], [1, 2]]}},
        {**DILOCO, "name": "streaming_diloco", "overlap": 2},
    ],
)
def test_diloco_that_sends_all_changes_is_diloco(plain: dict[str, Any]) -> None:
    """With BatchNorm, parts of unequal size, and a rank that does not take part in each round."""
    of = {"partitioner": {"name": "quantity"}, "model": {"name": "wide_resnet", "widen": 1}}
    of |= {"dataset": {"name": "synthetic", "samples": 60, "height": 8, "width": 8}, "lr": 0.01}
    all_sent = {**plain, "compression": {"name": "top_k", "ratio": 1.0}}
    found, expected = (train(strategy, 3, **of) for strategy in (all_sent, plain))
    assert found.same_weights
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "in_float"), [("int8", 4), ("int4", 8)])
def test_diloco_sends_integers_and_learns(name: str, in_float: int) -> None:
    plain, found = (train({**DILOCO, "compression": each}, 3) for each in ("none", name))
    n, rounds = found.results[0].parameters, -(-found.results[0].steps // 5)
    saved = 8 * (n + 1) * 2 / 3 - 4 * (-(-n // 256) + -(-n // in_float) + 1) * 2
    assert plain.results[0].bytes_sent - found.results[0].bytes_sent == pytest.approx(rounds * saved)
    assert found.same_weights
    off = np.linalg.norm(found.weights - plain.weights) / np.linalg.norm(plain.weights)
    assert 0 < off < 0.1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"byzantine": {"nodes": [1], "attack": "sign_flip"}}, "compression: none"),
        ({"on_loss": "continue", "transport": "gloo"}, "compression"),
    ],
)
def test_compressed_changes_are_refused_where_ranks_attack_or_leave(
    fields: dict[str, Any], named: str
) -> None:
    run = {"nodes": 4, **fields}
    RunSpec.model_validate({"strategy": DILOCO, **run})
    with pytest.raises(ValidationError, match=named):
        RunSpec.model_validate({"strategy": {**DILOCO, "compression": "int8"}, **run})
    with pytest.raises(ValidationError, match="power_sgd"):
        RunSpec.model_validate({"strategy": {**DILOCO, "compression": "power_sgd"}, **run})

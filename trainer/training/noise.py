"""Gradient noise: one rank's part of the sums from which the gradient noise scale follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm as norm

from trainer.training.loader import Batch


class Pass(NamedTuple):
    """A backward pass whose mean gradient is not applied yet.

    Attributes:
        samples: B, those of all ranks in the step.
        ranks: P, those that have samples in it.
        own: the rank's share of the samples times the squared norm of its own gradient.
    """

    samples: int
    ranks: int
    own: Tensor


class GradientNoise:
    """One rank's part of two sums over steps, which measures norms and exchanges nothing.

    Rank i of P has the gradient Gᵢ of the mean loss over its bᵢ samples, and G_B is that over all B samples
    of the step. If G is the mean of a sample's gradient and Σ its covariance, E|Gᵢ|² = |G|² + tr Σ/bᵢ. So

        noise  = B/(P − 1) · (Σ bᵢ/B |Gᵢ|² − |G_B|²)    has the mean tr Σ,
        signal = |G_B|² − noise/B                       has the mean |G|².

    For equal bᵢ these are the estimates of the paper. The noise scale is the ratio of the two sums, after
    those of the ranks are added up.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", Appendix A.1.
    """

    def __init__(self, replicas: int) -> None:
        """replicas: how many ranks measure the same mean gradient; 1 if each has a part of it."""
        self._replicas = replicas
        self._passed: deque[Pass] = deque()  # several, if gradients are applied in later steps
        self._sums = torch.zeros(2, dtype=torch.float64)

    @contextmanager
    def measuring(self, parameters: Sequence[nn.Parameter], batch: Batch, weight: float) -> Iterator[None]:
        """A `with` block of the backward pass of `weight` times the mean loss of a batch.

        Gradients are measured when they are ready: later hooks may replace them by means.
        """
        norms: dict[Tensor, Tensor] = {}  # after the last micro-batch, which has the sum of all

        def measure(parameter: Tensor) -> None:
            norms[parameter] = norm(cast("Tensor", parameter.grad))

        trained = [each for each in parameters if each.requires_grad]
        hooks = [each.register_post_accumulate_grad_hook(measure) for each in trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        total = batch.in_step.total
        ranks = sum(each > 0 for each in batch.in_step)
        share = batch.samples / total / weight**2 if weight else 0.0
        self._passed.append(Pass(total, ranks, sum_of_squares(norms.values()) * share))

    def applied(self, gradients: Iterable[Tensor]) -> None:
        """The mean gradient of the earliest pass, or this rank's part of it, is about to be applied."""
        if not self._passed:
            return  # that of a pass before this run resumed
        samples, ranks, own = self._passed.popleft()
        if ranks > 1:
            mean = sum_of_squares(map(norm, gradients)) / self._replicas
            terms = torch.stack([samples * (own - mean), ranks * mean - own])
            self._sums = self._sums.to(terms.device) + terms / (ranks - 1)

    def taken(self) -> dict[str, float]:
        """The sums since the last call, as fields of an event; none if they are not finite."""
        noise, signal = self._sums.tolist()
        self._sums = torch.zeros_like(self._sums)
        finite = isfinite(noise) and isfinite(signal)
        return {"gradient_noise": noise, "gradient_signal": signal} if finite else {}


def sum_of_squares(norms: Iterable[Tensor]) -> Tensor:
    """Of numbers, float64, shape ()."""
    return torch.stack([*norms]).double().square().sum()

"""Batch normalisation over the samples of all ranks, as if one node had the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from trainer.comm.base import Communicator

ALL_BUT_CHANNELS = (0, 2, 3)


class SyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm (Ioffe & Szegedy 2015, Alg. 1) with mean and variance over the step's samples on all ranks.

    torch.nn.SyncBatchNorm rejects CPU tensors (torch 2.13) and works over torch.distributed only. This one
    works over any Communicator. For C channels it all-reduces 2C + 1 values in the forward pass and 2C in
    the backward pass of each training step. Without a communicator, on a single rank and in evaluation it
    behaves like nn.BatchNorm2d.
    """

    # Optional in nn.BatchNorm2d; always present here.
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    comm: Communicator | None = None
    # Whether the next batch counts in the statistics. A rank without samples left joins the collectives
    # with a count of 0.
    counts_batch = True

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, shape (batch, channels, height, width). All ranks call it with their own samples."""
        if not self.training or self.comm is None or self.comm.size == 1:
            return super().forward(x)
        y: Tensor = _Normalise.apply(x, self.weight, self.bias, self, self.comm)  # type: ignore[no-untyped-call]
        return y

    def all_reduce_statistics(self, x: Tensor, comm: Communicator) -> tuple[Tensor, Tensor, float]:
        """Return mean and biased variance over all ranks, shape (channels,), and the number of values."""
        variance, mean = torch.var_mean(x, ALL_BUT_CHANNELS, correction=0)
        count = float(x.numel() // x.shape[1])
        # Moments about the running mean, which is the same on all ranks. Moments about 0 would lose
        # precision by cancellation where the mean is much larger than the standard deviation.
        offset = mean - self.running_mean
        sums = torch.cat([offset, variance + offset * offset, torch.ones_like(offset[:1])])
        sums = sums * (count * self.counts_batch)
        comm.all_reduce(sums, "sum")
        total = sums[-1].item()
        offset, square = (sums[:-1] / total).chunk(2)
        return self.running_mean + offset, (square - offset * offset).clamp_(min=0), total

    @torch.no_grad()
    def update_running_statistics(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        self.num_batches_tracked += 1


class _Normalise(torch.autograd.Function):
    """Alg. 1 with its gradient, which passes through mean and variance to the samples of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: SyncBatchNorm, comm: Communicator
    ) -> Tensor:
        mean, variance, count = norm.all_reduce_statistics(x, comm)
        norm.update_running_statistics(mean, variance, count)
        scale = (variance + norm.eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.comm, ctx.count, ctx.counts_batch = comm, count, norm.counts_batch
        factor = weight * scale
        return torch.addcmul(_per_channel(bias - mean * factor), x, _per_channel(factor))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, scale = ctx.saved_tensors
        normalised = (x - _per_channel(mean)) * _per_channel(scale)
        d_bias, d_weight = dy.sum(ALL_BUT_CHANNELS), (dy * normalised).sum(ALL_BUT_CHANNELS)
        sums = torch.cat([d_bias, d_weight])
        ctx.comm.all_reduce(sums, "sum")
        dx = dy
        if ctx.counts_batch:  # samples outside the statistics have no gradient through them
            through_mean, through_variance = (sums / ctx.count).chunk(2)
            dx = dy - _per_channel(through_mean) - normalised * _per_channel(through_variance)
        return dx * _per_channel(weight * scale), d_weight, d_bias, None, None


def _per_channel(values: Tensor) -> Tensor:
    """Reshape (channels,) to broadcast against (batch, channels, height, width)."""
    return values.view(1, -1, 1, 1)

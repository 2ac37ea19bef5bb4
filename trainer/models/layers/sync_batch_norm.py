"""Batch normalisation over the samples of all ranks, as if one node held the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from trainer.comm.base import Communicator

OTHERS = (0, 2, 3)  # all dimensions but the channels


class SyncBatchNorm(nn.BatchNorm2d):
    """Ioffe & Szegedy 2015 (Alg. 1), mean and variance over the step's samples on all ranks.

    torch's own refuses tensors on the CPU ("expected input tensor to be on GPU or XPU", 2.13, over gloo)
    and knows no other group than torch.distributed's. This one meets over a Communicator, on every
    transport: in training 2C + 1 numbers forward and 2C backward, for C channels. Before it is given one,
    on a single rank and in evaluation it is nn.BatchNorm2d.
    """

    # torch's own are optional; here they are always there.
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    comm: Communicator | None = None
    counts = True  # whether the next batch's samples are any: a rank that is through stands by with none

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, channels, height, width). All ranks call it, each with samples of its own."""
        if not self.training or self.comm is None or self.comm.size == 1:
            return super().forward(x)
        y: Tensor = _Synchronised.apply(x, self.weight, self.bias, self, self.comm)  # type: ignore[no-untyped-call]
        return y

    def gathered(self, x: Tensor, comm: Communicator) -> tuple[Tensor, Tensor, float]:
        """Mean and (biased) variance of each channel, shape (channels,), over how many numbers."""
        variance, mean = torch.var_mean(x, OTHERS, correction=0)
        count = float(x.numel() // x.shape[1])
        # About the running mean, which is the same on all ranks: squares about 0 lose what is small
        # beside the mean.
        off = mean - self.running_mean
        sums = torch.cat([off, variance + off * off, torch.ones_like(off[:1])]) * (count * self.counts)
        comm.all_reduce(sums, "sum")
        total = sums[-1].item()
        off, square = (sums[:-1] / total).chunk(2)
        return self.running_mean + off, (square - off * off).clamp_(min=0), total

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Let the running statistics follow, as torch does: the variance there is the unbiased one."""
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        self.num_batches_tracked += 1


class _Synchronised(torch.autograd.Function):
    """The gradient of Alg. 1: a rank's samples move mean and variance, and so what all others become."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: SyncBatchNorm, comm: Communicator
    ) -> Tensor:
        mean, variance, count = norm.gathered(x, comm)
        norm.remember(mean, variance, count)
        scale = (variance + norm.eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.comm, ctx.count, ctx.counts = comm, count, norm.counts
        factor = weight * scale
        return torch.addcmul(_wide(bias - mean * factor), x, _wide(factor))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, scale = ctx.saved_tensors
        normalised = (x - _wide(mean)) * _wide(scale)
        of_bias, of_weight = dy.sum(OTHERS), (dy * normalised).sum(OTHERS)
        sums = torch.cat([of_bias, of_weight])
        ctx.comm.all_reduce(sums, "sum")
        dx = dy
        if ctx.counts:  # what is not in mean and variance moves neither
            through_mean, through_variance = (sums / ctx.count).chunk(2)
            dx = dy - _wide(through_mean) - normalised * _wide(through_variance)
        return dx * _wide(weight * scale), of_weight, of_bias, None, None


def _wide(of_channels: Tensor) -> Tensor:
    return of_channels.view(1, -1, 1, 1)

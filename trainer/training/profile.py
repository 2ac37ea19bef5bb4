"""What each block of a model costs: parameters, FLOPs, bytes, time. Where to cut follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import nll_loss
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec

Block = tuple[str, nn.Module]
Clock = Callable[[], float]


@dataclass(frozen=True)
class BlockProfile:
    """One block's costs. flops and bytes are per sample, seconds per batch.

    flops: of the forward pass, in convolutions and matrix products alone, a multiply-add counts as two.
    output_bytes: what would cross a cut behind the block, and its gradient comes back. saved_bytes: what
    the backward pass has to be kept for, without parameters and buffers; what several blocks keep counts
    for the first.
    """

    name: str
    parameters: int
    output_shape: tuple[int, ...]  # of one sample
    flops: float
    output_bytes: float
    saved_bytes: float
    forward_s: float
    backward_s: float

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def profile(
    blocks: Iterable[Block],
    images: Tensor,
    labels: Tensor,
    *,
    warm_up: int = 2,
    runs: int = 5,
    clock: Clock = time.perf_counter,
) -> list[BlockProfile]:
    """Measure each block on one batch, in training, with as many threads as torch has now.

    images: (batch, channels, height, width). labels: (batch,) int64; the loss counts for the last block.
    Times are medians over `runs` passes through the chain, after `warm_up` more. A block has a backward
    pass if it has parameters or comes after one that has. The blocks' weights stay as they are and keep
    no gradients, but statistics follow the images and dropout's stream moves on: give it blocks of its
    own. On the CPU.
    """
    chain = list(blocks)
    for _, block in chain:
        block.train()
    batch = len(images)
    flops, outputs, saved = _counted(chain, images)
    times = [_timed(chain, images, labels, clock) for _ in range(warm_up + runs)][warm_up:]
    forward, backward = (
        [median(each) for each in zip(*passes, strict=True)] for passes in zip(*times, strict=True)
    )
    return [
        BlockProfile(
            name=name,
            parameters=sum(parameter.numel() for parameter in block.parameters()),
            output_shape=tuple(outputs[at].shape[1:]),
            flops=flops[at] / batch,
            output_bytes=outputs[at].nbytes / batch,
            saved_bytes=saved[at] / batch,
            forward_s=forward[at],
            backward_s=backward[at],
        )
        for at, (name, block) in enumerate(chain)
    ]


def _counted(chain: Sequence[Block], images: Tensor) -> tuple[list[int], list[Tensor], list[int]]:
    """Of each block: FLOPs, output, bytes that it keeps for the backward pass; all of the whole batch."""
    own = {
        tensor.untyped_storage().data_ptr()
        for _, block in chain
        for tensor in (*block.parameters(), *block.buffers())
    }
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no two ever have the same address
    flops, outputs, saved = [], [], []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.setdefault(storage.data_ptr(), storage)
        return tensor

    x = images
    for _, block in chain:
        before = len(kept)
        with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
            x = block(x)
        flops.append(counter.get_total_flops())
        outputs.append(x)
        saved.append(sum(storage.nbytes() for storage in [*kept.values()][before:]))
    return flops, outputs, saved


def _timed(
    chain: Sequence[Block], images: Tensor, labels: Tensor, clock: Clock
) -> tuple[list[float], list[float]]:
    """Seconds of each block's forward and backward pass, in one pass through the chain."""
    forward, ends, x = [], [], images
    for at, (_, block) in enumerate(chain):
        # Cut off from the block before, so that the backward pass stops here and can be timed.
        x = x.detach().requires_grad_(x.requires_grad)
        began = clock()
        y = block(x)
        if at == len(chain) - 1:
            y = nll_loss(y, labels)
        forward.append(clock() - began)
        ends.append((x, y))
        x = y
    backward, gradient = [], None
    for (x, y), (_, block) in zip(reversed(ends), reversed(chain), strict=True):
        began = clock()
        if y.requires_grad:
            y.backward(gradient)
        backward.append(clock() - began)
        gradient = x.grad
        block.zero_grad(set_to_none=True)
    return forward, backward[::-1]


def profile_of(spec: RunSpec) -> list[BlockProfile]:
    """The run's model on one batch of noise in the shape of its dataset, on one thread; no data is read."""
    from pathlib import Path

    from trainer.training.task import Task

    generator = torch.Generator().manual_seed(spec.seed)
    shape = (spec.batch_size, *spec.dataset.shape)
    images = torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(spec.dataset.class_count, (spec.batch_size,), generator=generator)
    model = Task(spec, Path()).build_model(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return profile(model.named_children(), images, labels)
    finally:
        torch.set_num_threads(threads)

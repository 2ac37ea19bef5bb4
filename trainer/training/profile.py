"""Profile of a model's blocks: parameters, FLOPs, bytes and time. Split points are chosen from it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from trainer.core.registry import ImportedComponent
from trainer.losses.base import Loss
from trainer.losses.nll import Nll
from trainer.models.shapes import noise

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec

Block = tuple[str, nn.Module]
Clock = Callable[[], float]
NLL = Nll()
# torch counts the products of attention in the kernels of GPUs only.
FLOPS = flop_registry | {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: (
        sdpa_flop_count(query.shape, key.shape, value.shape)
    )
}


@dataclass(frozen=True)
class BlockProfile:
    """Costs of one block.

    Attributes:
        name: the name of the block.
        parameters: number of parameter elements.
        largest_tensor: those of its largest parameter.
        output_shape: the shape of the output for one sample.
        flops: operations of the forward pass per sample, in convolutions and matrix products only. A
            multiply-add counts as two. Attention of T tokens in heads of width d has 2·T·T·d per head for
            query · key, and as many for weights · value, also where a causal mask needs half of them.
        output_bytes: the output of one sample. A split after this block sends as much forward, and as much
            gradient back.
        saved_bytes: bytes saved for the backward pass per sample, without parameters and buffers. A tensor
            that several blocks save counts for the first of them.
        forward_s: seconds of the forward pass of a batch.
        backward_s: seconds of the backward pass of a batch.
    """

    name: str
    parameters: int
    largest_tensor: int
    output_shape: tuple[int, ...]
    flops: float
    output_bytes: float
    saved_bytes: float
    forward_s: float
    backward_s: float

    @property
    def seconds(self) -> float:
        """Forward and backward pass of a batch."""
        return self.forward_s + self.backward_s


class FlopCounter(TorchDispatchMode):
    """Counts as torch's FlopCounterMode, whose first operation imports a compiler, for over a second."""

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports the compiler

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := FLOPS.get(func.overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def profile_blocks(
    blocks: Iterable[Block],
    inputs: Tensor,
    targets: Tensor,
    loss: Loss = NLL,
    *,
    warm_up: int = 2,
    runs: int = 5,
    clock: Clock = time.perf_counter,
) -> list[BlockProfile]:
    """Profile each block on one batch in training mode, on the CPU, with torch's current thread count.

    A block has a backward pass if it or a block before it has parameters. Weights do not change and keep no
    gradients. Running statistics and dropout generators do change: pass blocks that are used for nothing
    else.

    Args:
        blocks: names and modules in forward order.
        inputs: shape (batch, *shape).
        targets: the targets of the loss, shape (batch, …). The time of the loss counts for the last block.
        loss: the loss function of the output and the targets.
        warm_up: passes before the measurement.
        runs: measured passes; times are medians over them, and 0 without any.
        clock: returns seconds.
    """
    chain = list(blocks)
    for _, block in chain:
        block.train()
    batch = len(inputs)
    flops, outputs, saved = _count(chain, inputs)
    times = [_time_pass(chain, inputs, targets, clock, loss) for _ in range(warm_up + runs)][warm_up:]
    times = times or [([0.0] * len(chain), [0.0] * len(chain))]
    forward, backward = (
        [median(each) for each in zip(*passes, strict=True)] for passes in zip(*times, strict=True)
    )
    return [
        BlockProfile(
            name=name,
            parameters=sum(parameter.numel() for parameter in block.parameters()),
            largest_tensor=max((parameter.numel() for parameter in block.parameters()), default=0),
            output_shape=tuple(outputs[at].shape[1:]),
            flops=flops[at] / batch,
            output_bytes=outputs[at].nbytes / batch,
            saved_bytes=saved[at] / batch,
            forward_s=forward[at],
            backward_s=backward[at],
        )
        for at, (name, block) in enumerate(chain)
    ]


def _count(chain: Sequence[Block], inputs: Tensor) -> tuple[list[int], list[Tensor], list[int]]:
    """Return FLOPs, output and bytes saved for the backward pass of each block, for the whole batch."""
    model_storages = {
        tensor.untyped_storage().data_ptr()
        for _, block in chain
        for tensor in (*block.parameters(), *block.buffers())
    }
    saved_storages: dict[int, torch.UntypedStorage] = {}  # keeps them alive, so that no address is reused
    flops, outputs, saved = [], [], []

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in model_storages:
            saved_storages.setdefault(storage.data_ptr(), storage)
        return tensor

    x = inputs
    for _, block in chain:
        before = len(saved_storages)
        counter = FlopCounter()  # type: ignore[no-untyped-call]
        with counter, saved_tensors_hooks(record, lambda tensor: tensor):
            x = block(x)
        flops.append(counter.total)
        outputs.append(x)
        saved.append(sum(storage.nbytes() for storage in [*saved_storages.values()][before:]))
    return flops, outputs, saved


def _time_pass(
    chain: Sequence[Block], inputs: Tensor, targets: Tensor, clock: Clock, loss: Loss
) -> tuple[list[float], list[float]]:
    """Return the seconds of each block's forward and backward pass, in one pass through the chain."""
    forward, x, ended = [], inputs, dict[int, float]()

    def end_of(at: int) -> Callable[[Tensor], None]:
        return lambda _: ended.update({at: clock()})

    for at, (_, block) in enumerate(chain):
        if x.requires_grad:  # its gradient is there when the block's backward pass has ended
            x.register_hook(end_of(at))
        start = clock()
        x = block(x)
        if at == len(chain) - 1:
            x = loss.of(x, targets)
        forward.append(clock() - start)
    backward, start = [0.0] * len(chain), clock()
    if x.requires_grad:
        x.backward()
        # The first block that has a gradient is the last to end.
        ended[min(ended, default=len(chain)) - 1] = clock()
    for at, end in sorted(ended.items(), reverse=True):
        backward[at], start = end - start, end
    for _, block in chain:
        block.zero_grad(set_to_none=True)
    return forward, backward


def profile_model(
    spec: RunSpec, warm_up: int = 2, runs: int = 5, clock: Clock = time.perf_counter
) -> list[BlockProfile]:
    """Profile the run's model on one thread, with a batch of its dataset's shape."""
    from pathlib import Path

    from trainer.training.task import Task

    inputs, targets = _batch(spec)
    model = Task(spec, Path()).build_model(0)
    blocks = [(name, model.get_submodule(name)) for name in spec.model.names]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return profile_blocks(blocks, inputs, targets, spec.loss, warm_up=warm_up, runs=runs, clock=clock)
    finally:
        torch.set_num_threads(threads)


def _batch(spec: RunSpec) -> tuple[Tensor, Tensor]:
    """Inputs and targets: noise in the shape of a registered dataset, samples of a user's."""
    from pathlib import Path

    from trainer.training.replica import channels_last

    if isinstance(spec.dataset, ImportedComponent):
        train = spec.dataset.load(Path(os.environ.get("SHARDYARD_DATA", "data"))).train
        samples = np.arange(spec.batch_size) % len(train.labels)
        return torch.from_numpy(train.inputs[samples]), torch.from_numpy(train.targets[samples])
    generator = torch.Generator().manual_seed(spec.seed)
    inputs = noise(spec.dataset, spec.batch_size, generator)
    shape = spec.batch_size, *spec.dataset.target_shape
    inputs = channels_last(inputs) if spec.model.channels_last else inputs
    return inputs, torch.randint(spec.dataset.outputs, shape, generator=generator)

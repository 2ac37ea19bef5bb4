"""Replicas of which a rank keeps a part: torch does it; here it is timed, and what it sends is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from trainer.comm.base import Communicator, communication_errors
from trainer.training.replica import Replica, state_of
from trainer.training.task import Task


class ShardedReplica(Replica):
    """Every rank keeps its rows of every tensor; `fully_shard` brings a block together to use it."""

    def __init__(self, model: nn.Sequential, task: Task, comm: Communicator, *, reshard: bool) -> None:
        """reshard: whether a rank lets go of the others' rows between forward and backward pass."""
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.dim() == 4:  # "FSDP does not support non-contiguous parameters yet"
                    parameter.data = parameter.data.contiguous()
                    module.register_forward_hook(_channels_last)
        mesh = init_device_mesh("cpu", (comm.size,))
        blocks = [block for block in model if next(block.parameters(), None) is not None]
        for block in blocks:
            sharded: Any = fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            sharded.set_custom_all_gather(AllGather(comm))
            sharded.set_custom_reduce_scatter(ReduceScatter(comm))
        self._root: Any = fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        self._reshard = reshard
        super().__init__(model, task, comm.clock)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """As `Replica.evaluating`. All ranks enter it; in the first forward pass the model comes together.

        It stays so for the others, of which the ranks may have a different number.
        """
        self._root.set_reshard_after_forward(False)
        with super().evaluating():
            yield
        # And not `reshard`: it remembers these forward passes too, and would gather more in the next step.
        self._root.reset_iter_state()
        self._root.set_reshard_after_forward(self._reshard)

    def weights(self) -> Tensor:
        """As `Replica.weights`, brought together: all ranks call it."""
        whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in self._state]
        return torch.cat([each.detach().reshape(-1) for each in whole])

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        held = super()._state_tensors()
        return {
            what: [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
            for what, tensors in held.items()
        }


class OwnersReplica(Replica):
    """A whole model in DDP, whose tensors have one owner each: it alone steps them, then all get them."""

    def __init__(self, model: nn.Module, task: Task, comm: Communicator) -> None:
        super().__init__(model, task, comm.clock)
        build: Any = task.spec.optimizer.build  # called as the class would be
        self._optimizer = self._zero = ZeroRedundancyOptimizer(
            self._parameters, optimizer_class=build, lr=task.spec.lr
        )
        own = [p for group in self._zero.optim.param_groups for p in group["params"]]
        self._broadcasts = Broadcasts(comm, sum(p.nbytes for p in own))
        self._zero.optim.register_step_post_hook(self._broadcasts.begin)

    def step(self) -> None:
        """Move the weights that are this rank's, give them to all and get the others'."""
        super().step()
        self._broadcasts.end()

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        return {**super()._state_tensors(), "optimizer": state_of(self._zero.optim)}


class Broadcasts:
    """What follows the step of a rank's own weights: every owner hands round its own, all at once."""

    def __init__(self, comm: Communicator, own: int) -> None:
        """own: bytes of the weights that are this rank's."""
        self._comm, self._sent = comm, own * (comm.size - 1)
        self._begun = comm.clock.now()

    def begin(self, *_: object) -> None:
        """The rank's own step is done: the optimiser's hook."""
        self._begun = self._comm.clock.now()

    def end(self) -> None:
        """Book the time since then as a meeting of all ranks."""
        (entered, cpu), (left, cpu_left) = self._begun, self._comm.clock.now()
        self._comm.clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        self._comm.traffic.bytes_sent += self._sent
        self._comm.traffic.collectives.append((entered, left))


class Collective:
    """What `fully_shard` calls in place of torch's own collective; it returns when that is done."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def _meeting(self, doing: str, shard: Tensor) -> Iterator[None]:
        comm = self._comm
        with comm.clock.phase("communicate") as span, communication_errors(doing):
            yield
        if span.counted:
            comm.traffic.bytes_sent += shard.nbytes * (comm.size - 1)
            comm.traffic.collectives.append((span.entered, span.left))


class AllGather(Collective):
    """Brings a block's weights together."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool) -> None:
        with self._meeting("all-gather of weights", input_tensor):
            dist.all_gather_single(output_tensor, input_tensor, group=group)


class ReduceScatter(Collective):
    """Gives every rank its rows of a block's mean gradient."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any) -> None:
        with self._meeting("reduce-scatter of gradients", output_tensor):
            dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)


def _channels_last(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """A forward hook: a convolution's output lies in memory as where its weights are channels_last.

    It does so by itself but for a batch of one sample. Dropout draws in the order of memory.
    """
    return output.contiguous(memory_format=torch.channels_last)

"""Sharded data parallelism: ZeRO and FSDP replicas by torch, with time and traffic recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.comm.base import Communicator
from trainer.comm.errors import communication_errors
from trainer.core.trace import Kind
from trainer.parallel.ddp_buckets import DdpReplica
from trainer.training.replica import Replica, squares, sum_over_ranks
from trainer.training.task import Task


class ShardedReplica(Replica):
    """FSDP: each rank keeps its rows of every tensor; `fully_shard` all-gathers a block before its use."""

    def __init__(self, model: nn.Sequential, task: Task, comm: Communicator, *, reshard: bool) -> None:
        """reshard: free the other ranks' rows between the forward and the backward pass."""
        channels_last = task.spec.model.channels_last
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                # "FSDP does not support non-contiguous parameters yet"
                if parameter.dim() == 4 and (channels_last or not parameter.is_contiguous()):
                    parameter.data = parameter.data.contiguous()
                    module.register_forward_hook(_to_channels_last)
        mesh = init_device_mesh("cpu", (comm.size,))
        blocks = [block for block in model.children() if next(block.parameters(), None) is not None]
        for block in blocks:
            sharded: Any = fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            sharded.set_custom_all_gather(AllGather(comm))
            sharded.set_custom_reduce_scatter(ReduceScatter(comm))
        self._root: Any = fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        self._reshard, self._comm = reshard, comm
        super().__init__(model, task, comm.clock)

    def squared_gradient_norm(self) -> Tensor:
        return sum_over_ranks(squares(self._state_tensors()["gradient"]), self._comm)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model in evaluation mode, and gather the weights. All ranks enter.

        The weights stay gathered, because ranks may have different numbers of forward passes, or none.
        """
        self._root.set_reshard_after_forward(False)
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        with super().evaluating():
            yield
        # `reshard()` is not enough: FSDP also records these forward passes and would prefetch more blocks
        # in the next step.
        self._root.reset_iter_state()
        self._root.set_reshard_after_forward(self._reshard)

    def weights(self) -> Tensor:
        """The full weights, see `Replica.weights`. All ranks call it."""
        full = [each.full_tensor() if isinstance(each, DTensor) else each for each in self._state]
        return torch.cat([each.detach().reshape(-1) for each in full])

    def state(self) -> dict[str, Any]:
        """See `Replica.state`. Of a sharded tensor it has this rank's rows."""
        state = super().state()
        optimizer = state["optimizer"]
        of_parameters = {number: _rows_of(held) for number, held in optimizer["state"].items()}
        return state | {
            "model": _rows_of(state["model"]),
            "optimizer": optimizer | {"state": of_parameters},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        own, optimizer = self.model.state_dict(), state["optimizer"]
        weights = {name: _sharded(rows, own[name]) for name, rows in state["model"].items()}
        of_parameters = {
            number: {name: _sharded(rows, self._parameters[number]) for name, rows in held.items()}
            for number, held in optimizer["state"].items()
        }
        super().restore({**state, "model": weights, "optimizer": optimizer | {"state": of_parameters}})

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        held = super()._state_tensors()
        return {what: [*map(_rows, tensors)] for what, tensors in held.items()}


def _rows(value: Any) -> Any:
    """This rank's rows of a sharded tensor; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


def _rows_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rows(value) for name, value in values.items()}


def _sharded(value: Any, like: Tensor) -> Any:
    """The inverse of `_rows`, sharded as `like`. Counters of steps are not sharded."""
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim()):
        return value
    if value.shape != like.to_local().shape:
        shapes = f"{list(value.shape)}; a rank has rows of shape {list(like.to_local().shape)}"
        raise ValueError(f"a tensor has the shape {shapes}")
    return DTensor.from_local(
        value, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )


class ShardedOptimizerReplica(DdpReplica):
    """ZeRO-1: a full model in DDP; each tensor's owner rank updates it and broadcasts the result."""

    def __init__(self, model: nn.Module, task: Task, comm: Communicator) -> None:
        super().__init__(model, task, comm.clock)
        whole = self._optimizer

        def of_rank(groups: list[dict[str, Any]], **_: Any) -> Optimizer:
            """The optimizer as it was built, for the parameters of this rank alone."""
            own = {id(parameter) for group in groups for parameter in group["params"]}
            for group in whole.param_groups:
                group["params"] = [each for each in group["params"] if id(each) in own]
            return whole

        build: Any = of_rank  # torch calls it like an optimizer class
        trained = {id(parameter) for parameter in self._parameters}
        groups = [
            {**group, "params": [each for each in group["params"] if id(each) in trained]}
            for group in whole.param_groups
        ]
        self._optimizer = self._zero = ZeroRedundancyOptimizer(
            groups, optimizer_class=build, lr=task.spec.lr
        )
        zero: Any = self._zero
        # torch broadcasts each tensor by itself, those of rank 0 first.
        owned = [
            (root, parameter.nbytes)
            for root, groups in enumerate(zero._partition_parameters())
            for group in groups
            for parameter in group["params"]
        ]
        self._broadcast_span = BroadcastSpan(comm, owned)
        self._zero.optim.register_step_post_hook(self._broadcast_span.start)

    def step(self) -> None:
        """Update this rank's own tensors, broadcast them and receive those of the other ranks."""
        super().step()
        self._broadcast_span.finish()

    @property
    def _own_optimizer(self) -> Optimizer:
        own: Optimizer = self._zero.optim
        return own


class BroadcastSpan:
    """Time and traffic of the broadcasts that follow the local optimizer step."""

    def __init__(self, comm: Communicator, owned: Sequence[tuple[int, int]]) -> None:
        """owned: owner and bytes of each tensor, in the order of the broadcasts."""
        self._comm, self._owned = comm, owned
        self._sent = sum(size for root, size in owned if root == comm.rank) * (comm.size - 1)
        self._started = comm.clock.now()

    def start(self, *_: object) -> None:
        """Optimizer hook: the local step has finished."""
        clock = self._comm.clock
        if clock.tracer:
            self._started = clock.lap()
            clock.tracer.work_until(self._started[0])
            clock.tracer.hold()
        else:
            self._started = clock.now()

    def finish(self) -> None:
        """Book the time since `start` as a collective of all ranks."""
        clock, comm = self._comm.clock, self._comm
        (entered, cpu), (left, cpu_left) = self._started, clock.now()
        clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        comm.traffic.bytes_sent += self._sent
        comm.traffic.collectives.append((entered, left))
        if clock.tracer:
            # They run at the same time, so their own times are not known: the first record has them all.
            cpu_s = cpu_left - cpu
            for root, size in self._owned:
                comm.trace_at(Kind.BROADCAST, entered, left, size, root, cpu_s)
                entered, cpu_s = left, 0.0
            clock.tracer.release()


class Collective:
    """Replaces a collective of `fully_shard`. It is synchronous."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def _recorded(self, doing: str, shard: Tensor, kind: Kind, size: int) -> Iterator[None]:
        """size: the bytes of `kind`, see Kind."""
        comm = self._comm
        with comm.clock.phase("communicate") as span, communication_errors(doing):
            yield
        if span.counted:
            comm.traffic.bytes_sent += shard.nbytes * (comm.size - 1)
            comm.traffic.collectives.append((span.entered, span.left))
            comm.trace(kind, span, size)


class AllGather(Collective):
    """All-gathers the weights of a block."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool) -> None:
        size = input_tensor.nbytes
        with self._recorded("all-gather of weights", input_tensor, Kind.ALL_GATHER, size):
            dist.all_gather_single(output_tensor, input_tensor, group=group)


class ReduceScatter(Collective):
    """Reduce-scatters the gradient of a block: each rank gets its rows of the mean."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any) -> None:
        size = input_tensor.nbytes
        with self._recorded("reduce-scatter of gradients", output_tensor, Kind.REDUCE_SCATTER, size):
            dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)


def _to_channels_last(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Forward hook: convert a convolution's output to channels_last, as with channels_last weights.

    torch does so itself except for a batch of one sample. Dropout draws in memory order.
    """
    return output.contiguous(memory_format=torch.channels_last)

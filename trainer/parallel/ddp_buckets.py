"""DistributedDataParallel over our communicator: its buckets are reduced beside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, ProcessGroup, _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from trainer.comm.base import Communicator
from trainer.comm.nonblocking import Request
from trainer.compression.base import Compression
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.core.clock import Clock
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.task import Task
from trainer.training.trained import IN_DDP

Hook = Callable[[Any, GradBucket], Future[Tensor]]


class Alone(ProcessGroup):
    """A process group of this rank alone, for DDP whose hook exchanges over a communicator."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]

    def getBackendName(self) -> str:
        return "alone"

    def allgather(self, outputs: Any, inputs: Any, _: Any = None) -> Any:
        for own, value in zip(outputs, inputs, strict=True):
            own[0].copy_(value)
        return _finished(inputs)

    def broadcast(self, tensors: Any, _: Any = None) -> Any:  # type: ignore[override]
        return _finished(tensors)

    def allreduce(self, tensors: Any, _: Any = None) -> Any:  # type: ignore[override]
        return _finished(tensors)


def averaging(comm: Communicator, compression: Compression | None = None, seed: int = 0) -> Hook:
    """The communication hook that averages gradients over the ranks.

    seed: of the initial matrices of power_sgd, the same on all ranks.
    """
    match compression:
        case PowerSgd(rank=rank) if comm.size > 1:
            state = PowerSGDState(
                _Blocking(comm),
                matrix_approximation_rank=rank,
                start_powerSGD_iter=2,  # the earliest: DDP rebuilds its buckets after the first step
                min_compression_rate=1,
                orthogonalization_epsilon=1e-8,  # without it a gradient of zeros becomes nan
                random_seed=seed % 2**32,
            )
            return lambda _, bucket: powerSGD_hook(state, bucket)
        case _:
            buckets = Buckets(comm, fp16=isinstance(compression, Fp16))
            return lambda _, bucket: buckets.mean(bucket)  # DDP refuses annotations that are text


class Buckets:
    """All-reduces each bucket of gradients while the backward pass computes the next one.

    Each bucket b becomes Σ b/P over the ranks, summed in float16 with `fp16`, as by torch's own hooks.
    """

    def __init__(self, comm: Communicator, fp16: bool = False) -> None:
        self._comm, self._fp16 = comm, fp16 and comm.size > 1
        self._started: list[tuple[Request, Tensor, Future[Tensor]]] = []

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """Start to reduce a bucket. The last one ends the backward pass: wait for all of them."""
        buffer, future = bucket.buffer(), _future(self._comm.device)
        sent = buffer.half() if self._fp16 else buffer
        request = self._comm.iall_reduce(sent.div_(self._comm.size), "sum")
        self._started.append((request, buffer, future))
        if bucket.is_last():
            for started, own, reduced in self._started:
                found = started.wait()
                reduced.set_result(own.copy_(found) if self._fp16 else found)
            self._started.clear()
        return future


class DdpReplica(Replica):
    """A replica whose model is in DistributedDataParallel, which averages the sum over micro-batches."""

    def __init__(self, model: nn.Module, task: Task, clock: Clock) -> None:
        """model: in DistributedDataParallel."""
        super().__init__(model, task, clock)
        named = ((name.removeprefix(IN_DDP), each) for name, each in model.named_parameters())
        unused = task.spec.model.unused
        self._averaged = [(name, each) for name, each in named if each.requires_grad and name not in unused]

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """As `Replica.backward`. Raises RuntimeError before a step whose gradient DDP does not average."""
        super().backward(batch, weight)
        for name, parameter in self._averaged:
            if parameter.grad is None:
                raise RuntimeError(
                    f"{name} gets a gradient in some steps only, and DDP averages that of every parameter "
                    "in each step; choose another strategy, such as all_reduce"
                )

    def _begin_micro_batch(self, last: bool) -> None:
        ddp: Any = self.model
        ddp.require_backward_grad_sync = last  # as its context manager `no_sync` does


class _Blocking:
    """All-reduces over a communicator, where torch's hook takes a process group."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def size(self) -> int:
        return self._comm.size

    def allreduce(self, tensors: list[Tensor], _: object) -> Any:
        for tensor in tensors:
            self._comm.all_reduce(tensor, "sum")
        return _finished(tensors)


def _finished(tensors: list[Tensor]) -> Any:
    future: Future[Any] = Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def _future(device: str) -> Future[Tensor]:
    """One whose reader waits for the streams of a GPU."""
    return Future(devices=[] if device == "cpu" else [torch.device(device)])

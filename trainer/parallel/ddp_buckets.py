"""What DistributedDataParallel sends, timed and counted: the reduction of its buckets of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from trainer.compression.base import Compression
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.core.trace import Kind
from trainer.training.replica import Replica
from trainer.training.trained import IN_DDP

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch._C._distributed_c10d import AllreduceOptions, GradBucket
    from torch.distributed import Work
    from torch.futures import Future

    from trainer.comm.base import Communicator
    from trainer.core.clock import Clock
    from trainer.training.loader import Batch
    from trainer.training.task import Task


class Buckets:
    """torch's reduction of DDP's buckets, timed and counted."""

    def __init__(self, comm: Communicator, compression: Compression, seed: int) -> None:
        """seed: the seed of the initial matrices of power_sgd, the same on all ranks."""
        self._comm = comm
        self._hook, self._state = _hook(compression, _CountedGroup(comm), seed)
        self._handed_over = comm.clock.now()

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """The communication hook: start to reduce the bucket."""
        clock = self._comm.clock
        if bucket.is_last():  # on a GPU reading the clock synchronises, so read it once
            self._handed_over = clock.now()
        reduced: Future[Tensor] = self._hook(self._state, bucket)
        if clock.tracer and bucket.is_last():
            clock.tracer.hold()  # what follows is part of the wait for all buckets
        return reduced

    def book_exposed(self) -> None:
        """Book the exposed communication after a backward pass, as a collective of all ranks."""
        clock = self._comm.clock
        (entered, cpu), (left, cpu_left) = self._handed_over, clock.now()
        # CPU time too: the rank's thread copies the reduced buckets.
        clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        self._comm.traffic.collectives.append((entered, left))
        if clock.tracer:
            self._comm.trace_at(Kind.WAIT_STARTED, entered, left)
            clock.tracer.release(compute_s=cpu_left - cpu)  # a replay computes it after the wait


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


class _CountedGroup:
    """The default process group as torch's hooks use it, with a count of the bytes."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def size(self) -> int:
        return self._comm.size

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> Work:
        world: Any = dist.group.WORLD
        payload = sum(tensor.nbytes for tensor in tensors)
        self._comm.traffic.bytes_sent += 2 * payload * (self.size() - 1) / self.size()
        if (clock := self._comm.clock).tracer:
            # The rank's thread has computed until now. The later exchanges of a PowerSGD bucket are
            # handed over by a thread of gloo, which has its own CPU time.
            now = clock.lap()[0] if clock.tracer.on_own_thread else clock.wall()
            self._comm.trace_at(Kind.START_ALL_REDUCE, now, now, payload)
        work: Work = world.allreduce(tensors, options)
        return work


def _hook(compression: Compression, group: _CountedGroup, seed: int) -> tuple[Any, Any]:
    """torch's communication hook for a compression, and the hook's state."""
    if group.size() == 1:  # nothing is sent
        return allreduce_hook, group
    match compression:
        case Fp16():
            return fp16_compress_hook, group
        case PowerSgd(rank=rank):
            return powerSGD_hook, PowerSGDState(
                group,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=2,  # the earliest: DDP rebuilds its buckets after the first step
                min_compression_rate=1,
                orthogonalization_epsilon=1e-8,  # without it a gradient of zeros becomes nan
                random_seed=seed % 2**32,
            )
        case _:
            return allreduce_hook, group

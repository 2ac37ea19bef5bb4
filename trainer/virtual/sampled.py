"""Training whose computation is skipped: its replicas have shapes and costs, but no values."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.comm.base import Communicator, Op
from trainer.comm.nonblocking import Finished, Operation, Request
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch, BatchLoader, PartitionedSplit
from trainer.training.replica import Moment, Replica
from trainer.training.session import Own, Session
from trainer.training.task import Task
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.sample import Sample


class SampledCommunicator(VirtualCommunicator):
    """Exchanges of tensors without values: they take time, and nothing is added up."""

    device = "meta"

    def all_reduce(self, buffer: Tensor, op: Op) -> None:
        super().all_reduce(buffer, "sum")  # a mean has the same exchange

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        if self.size > 1:
            self.all_reduce(values.new_empty(len(values) + 1), "sum")
        return values

    def iweighted_mean(self, values: Tensor, weight: float) -> Request:
        if self.size == 1:
            return Request(self, Finished(values), "weighted_mean", values)
        sums = values.new_empty(len(values) + 1)
        return self._begin(Kind.START_ALL_REDUCE, lambda: self._iall_reduce(sums), sums, lambda _: values)

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        return self._begin_meeting(Kind.START_ALL_REDUCE, None, None, lambda _: buffer, buffer.nbytes)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        gathered = buffer.new_empty(self.size, len(buffer))
        return self._begin_meeting(Kind.START_ALL_GATHER, None, None, lambda _: gathered, buffer.nbytes)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        return self._begin_meeting(Kind.START_REDUCE_SCATTER, None, None, lambda _: buffer, buffer.nbytes)

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        return self._begin_meeting(Kind.START_BROADCAST, None, None, lambda _: buffer, buffer.nbytes, root)

    def _all_reduce(self, buffer: Tensor) -> None:
        self._meet(Kind.ALL_REDUCE, buffer.nbytes)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        if not buffer.is_meta:
            return super()._all_gather(buffer)
        self._meet(Kind.ALL_GATHER, buffer.nbytes)
        return buffer.new_empty(self.size, len(buffer))

    def _reduce_scatter(self, buffer: Tensor) -> Tensor:
        self._meet(Kind.REDUCE_SCATTER, buffer.nbytes)
        return buffer.new_empty(len(buffer) // self.size)

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._meet(Kind.BROADCAST, buffer.nbytes, peer=root)


class Playing(Replica):
    """A replica on torch's device `meta`. It pays for steps that it does not compute.

    Attributes:
        sample: whose costs it pays.
    """

    sample: Sample
    _has_stepped = False

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        samples = batch.targets.shape[0]
        if self._listener:
            self.zero_grad()
            for moment in self.sample.costs.shares:
                self._tell(cast("Moment", moment), samples)
        self._clock.charge(samples)
        if self.activation_bytes is None:  # in the first step
            self.activation_bytes = self.sample.gradient(samples).activation_bytes

    def _tell(self, moment: Moment, samples: int) -> None:
        if moment.event == "gradient":
            parameter = self._parameters[moment.number]
            parameter.grad = torch.empty_like(parameter)
        if self._listener and (self._notifies_of_blocks or moment.event == "gradient"):
            self._clock.charge(samples, moment)
            self._listener(moment)

    def step(self) -> None:
        if self._clip_norm is not None:
            self._clip_gradient(self._clip_norm)
        if not self._has_stepped:  # makes the state of the optimizer, which has a size
            self._optimizer.step()
            self._has_stepped = True
        self._clock.charge_update()


class SampledReplica(Playing):
    """A replica that is not sharded.

    Its flat tensors have the lengths of real ones. Each is shared, because it has no values.
    """

    def __init__(self, sample: Sample, task: Task, clock: Clock) -> None:
        super().__init__(sample.model, task, clock)
        self.sample = sample
        self._has_gradient = self._has_optimizer_state = False
        buffers = sum(buffer.numel() for buffer in self._statistics)
        lengths = self.parameter_count, buffers, self.parameter_count + buffers, sample.optimizer_state
        self._flat = [torch.empty(length, device="meta") for length in lengths]

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        super().backward(batch, weight)
        self._has_gradient = True

    def step(self) -> None:
        self._clock.charge_update()
        self._has_optimizer_state = True

    @property
    def state_bytes(self) -> dict[str, int]:
        holds = {"gradient": self._has_gradient, "optimizer": self._has_optimizer_state}
        return {
            kind: size if holds.get(kind, True) else 0 for kind, size in self.sample.state_bytes.items()
        }

    def gradient(self) -> Tensor:
        return self._flat[0]

    def set_gradient(self, flat: Tensor) -> None:
        self._has_gradient = True

    def optimizer_state(self) -> Tensor:
        return self._flat[3] if self._has_optimizer_state else self._flat[3][:0]

    def set_optimizer_state(self, flat: Tensor) -> None: ...

    def reset_optimizer(self) -> None:
        self._has_optimizer_state = False

    def flat_parameters(self) -> Tensor:
        return self._flat[0]

    def set_flat_parameters(self, flat: Tensor) -> None: ...

    def flat_buffers(self) -> Tensor:
        return self._flat[1]

    def set_flat_buffers(self, flat: Tensor) -> None: ...

    def weights(self) -> Tensor:
        return self._flat[2]

    def set_weights(self, flat: Tensor) -> None: ...


class SampledLoader(BatchLoader):
    """Batches with as many samples as real ones, and without their values."""

    def __init__(self, split: PartitionedSplit, spec: RunSpec, rngs: RngFactory, rank: int) -> None:
        super().__init__(split.train, spec, rngs, rank, split.size, sees_inputs=False, shared=split)
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}  # by number of samples: inputs and targets

    def _order(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        return np.arange(self.sizes(epoch)[rank])

    def _gather(self, indices: npt.NDArray[np.int64], epoch: int, step: int) -> tuple[Tensor, Tensor]:
        samples, split = len(indices), self._split
        if samples not in self._tensors:
            inputs, targets = (
                like.new_empty((samples, *like.shape[1:]), device="meta")
                for like in (torch.from_numpy(split.train.inputs[:0]), split.targets)
            )
            self._tensors[samples] = inputs, targets
        return self._tensors[samples]


class SampledSession(Session):
    """One rank's part in the exchanges of a training. Nothing is trained, evaluated or certified."""

    def __init__(
        self, context: NodeContext, task: Task, events: EventWriter, comm: Communicator, *, sample: Sample
    ) -> None:
        super().__init__(context, task, events, comm)
        self._sample = sample

    def _batch_loader(self) -> BatchLoader:
        return SampledLoader(self.task.split("cpu"), self.spec, self.task.rngs, self._replica_number)

    def replica(self, weights_seed: int = 0) -> Replica:
        return SampledReplica(self._sample, self.task, self.clock)

    def replica_of(self, kind: type[Own], *arguments: Any) -> Own:
        playing: Any = type(f"Playing{kind.__name__}", (kind, Playing), {"sample": self._sample})
        replica: Own = playing(deepcopy(self._sample.model), self.task, self.comm, *arguments)
        return replica

    def _timed(
        self, epoch: int, batches: Iterator[tuple[Batch, np.ndarray]], uneven: Uneven
    ) -> Iterator[Batch]:
        metrics, reports_samples = self._metrics, self._reports_samples
        for batch, indices in batches:
            metrics.samples_since_average += batch.samples
            yield batch
            metrics.steps += 1
            self._mark(Kind.STEP)
            metrics.samples += len(indices) if reports_samples else 0

    def _evaluate_epoch(self, *_: Any, **__: Any) -> bool:
        return False

    def _learned(self) -> dict[str, Any]:
        return {}

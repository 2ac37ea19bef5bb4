"""A stage that torch.distributed.pipelining drives; here it is timed, and what it sends is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import P2POp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import nll_loss

from trainer.comm.base import Communicator, communication_errors
from trainer.parallel.pipeline_stage import Stage
from trainer.parallel.schedules import Schedule
from trainer.training.loader import Batch
from trainer.training.replica import channels_last
from trainer.training.task import Task


class TorchPipelineStage(Stage):
    """As `Stage`, but that the library takes a batch through."""

    def __init__(
        self,
        task: Task,
        comm: Communicator,
        split_points: Sequence[str],
        schedule: Schedule,
        micro_batches: int,
    ) -> None:
        super().__init__(task, comm.clock, comm, split_points, replica=0)
        self._alternates = schedule == "1f1b"
        self._micro_batches = micro_batches
        # By number of samples: an epoch's last batch has fewer.
        self._schedules: dict[int, ScheduleGPipe | Schedule1F1B] = {}

    def pass_through(self, batch: Batch) -> None:
        """Forward and backward pass of a batch, in micro-batches of equal size."""
        samples = len(batch.labels)
        if samples not in self._schedules:
            self._schedules[samples] = self._schedule(samples)
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (batch.images,) if self._first else ()
        target: dict[str, Any] = {"target": batch.labels, "losses": losses} if self._last else {}
        with self._clock.phase("communicate"), communication_errors("a step of the pipeline"):
            output = self._schedules[samples].step(*inputs, **target)
        if self._last:
            self.loss = torch.stack(losses).sum().detach()
            self._output, self._labels = output.detach(), batch.labels

    def _schedule(self, samples: int) -> Any:
        pieces = next(n for n in range(min(self._micro_batches, samples), 0, -1) if samples % n == 0)
        # Without an example of both torch runs the model on whatever is in memory, to see what comes out:
        # dropout would draw, and running means and variances would take it for samples.
        enters = torch.empty(samples // pieces, *self._enters, requires_grad=self._learns(self.number))
        leaves = torch.empty(samples // pieces, *self._leaves, requires_grad=self._learns(self.number + 1))
        stage = TimedStage(Plain(self.model), self._comm, self.number, self.stages, enters, leaves)

        def loss(output: Tensor, labels: Tensor) -> Tensor:
            return nll_loss(output, labels, reduction="sum") / samples

        kind = Schedule1F1B if self._alternates and pieces >= self.stages else ScheduleGPipe
        return kind(stage, pieces, loss_fn=loss, scale_grads=False)

    def _learns(self, parts: int) -> bool:
        """Whether so many first parts have parameters: then what leaves them has a gradient."""
        return any(parameters for parameters, _ in self._sizes[:parts])


class Plain(nn.Module):
    """A part of the model: inside tensors lie in memory as is fast, at its ends as gloo sends them."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)  # its gradient travels too
        output: Tensor = self.part(channels_last(x))
        return output.contiguous()


class TimedStage(PipelineStage):
    """torch's stage, which books what it computes, and counts what it gives out to be sent."""

    def __init__(
        self, part: nn.Module, comm: Communicator, number: int, stages: int, enters: Tensor, leaves: Tensor
    ) -> None:
        """enters, leaves: tensors like those of a micro-batch."""
        super().__init__(part, number, stages, torch.device(comm.device), enters, leaves)
        self._shardyard = comm

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._shardyard.clock.phase("compute"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._shardyard.clock.phase("compute"):
            return super().backward_one_chunk(*args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, sends: list[P2POp]) -> list[P2POp]:
        traffic = self._shardyard.traffic
        for send in sends:
            traffic.bytes_sent += send.tensor.nbytes
            traffic.bytes_to[send.peer] += send.tensor.nbytes
        return sends

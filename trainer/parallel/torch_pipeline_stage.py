"""A pipeline stage driven by torch.distributed.pipelining, with time and traffic recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import P2POp, pipelining
from torch.nn.functional import nll_loss

from trainer.comm.base import Communicator, communication_errors
from trainer.parallel.pipeline_stage import PipelineStage
from trainer.parallel.schedules import Schedule
from trainer.training.loader import Batch
from trainer.training.replica import channels_last
from trainer.training.task import Task


class TorchPipelineStage(PipelineStage):
    """A PipelineStage whose micro-batches are scheduled and exchanged by torch."""

    def __init__(
        self,
        task: Task,
        comm: Communicator,
        split_points: Sequence[str],
        schedule: Schedule,
        micro_batches: int,
    ) -> None:
        super().__init__(task, comm.clock, comm, split_points, replica=0)
        self._is_1f1b = schedule == "1f1b"
        self._micro_batches = micro_batches
        # By batch size: the last batch of an epoch may be smaller.
        self._schedules: dict[int, pipelining.ScheduleGPipe | pipelining.Schedule1F1B] = {}

    def forward_backward(self, batch: Batch) -> None:
        """Forward and backward pass of a batch, in micro-batches of equal size."""
        samples = len(batch.labels)
        if samples not in self._schedules:
            self._schedules[samples] = self._build_schedule(samples)
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (batch.images,) if self._is_first else ()
        target: dict[str, Any] = {"target": batch.labels, "losses": losses} if self._is_last else {}
        with self._clock.phase("communicate"), communication_errors("a step of the pipeline"):
            output = self._schedules[samples].step(*inputs, **target)
        if self._is_last:
            self.loss = torch.stack(losses).sum().detach()
            self._output, self._labels = output.detach(), batch.labels

    def _build_schedule(self, samples: int) -> Any:
        micro_batches = next(
            count for count in range(min(self._micro_batches, samples), 0, -1) if samples % count == 0
        )
        size = samples // micro_batches
        # Without example tensors torch runs the model on uninitialised memory to infer shapes, which would
        # advance the dropout generator and the running statistics.
        x = torch.empty(size, *self._input_shape, requires_grad=self._has_parameters(self.stage_index))
        y = torch.empty(size, *self._output_shape, requires_grad=self._has_parameters(self.stage_index + 1))
        stage = InstrumentedStage(
            ContiguousEnds(self.model), self._comm, self.stage_index, self.num_stages, x, y
        )

        def loss(output: Tensor, labels: Tensor) -> Tensor:
            return nll_loss(output, labels, reduction="sum") / samples

        use_1f1b = self._is_1f1b and micro_batches >= self.num_stages
        schedule = pipelining.Schedule1F1B if use_1f1b else pipelining.ScheduleGPipe
        return schedule(stage, micro_batches, loss_fn=loss, scale_grads=False)

    def _has_parameters(self, stages: int) -> bool:
        """Whether the output of the first `stages` stages needs a gradient: one of them has parameters."""
        return any(parameters for parameters, _ in self._state_sizes[:stages])


class ContiguousEnds(nn.Module):
    """Runs a stage in channels_last format, with contiguous input and output as gloo needs them."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)  # the gradient of x is sent, too
        output: Tensor = self.stage(channels_last(x))
        return output.contiguous()


class InstrumentedStage(pipelining.PipelineStage):
    """torch's PipelineStage that records compute time and the bytes of its sends."""

    def __init__(
        self, stage: nn.Module, comm: Communicator, stage_index: int, num_stages: int, x: Tensor, y: Tensor
    ) -> None:
        """x, y: example input and output of a micro-batch."""
        super().__init__(stage, stage_index, num_stages, torch.device(comm.device), x, y)
        self._shardyard_comm = comm

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._shardyard_comm.clock.phase("compute"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._shardyard_comm.clock.phase("compute"):
            return super().backward_one_chunk(*args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._recorded(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._recorded(super().get_bwd_send_ops(bwd_chunk_id))

    def _recorded(self, sends: list[P2POp]) -> list[P2POp]:
        traffic = self._shardyard_comm.traffic
        for send in sends:
            traffic.bytes_sent += send.tensor.nbytes
            traffic.bytes_to[send.peer] += send.tensor.nbytes
        return sends

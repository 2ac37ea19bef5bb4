"""A pipeline stage driven by torch.distributed.pipelining, with time and traffic recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import P2POp, pipelining

from trainer.comm.base import Communicator
from trainer.comm.errors import communication_errors
from trainer.core.trace import Kind
from trainer.parallel.pipeline_stage import PipelineStage
from trainer.parallel.schedules import FlushSchedule
from trainer.training.loader import Batch
from trainer.training.task import Task


class TorchPipelineStage(PipelineStage):
    """A PipelineStage whose micro-batches are scheduled and exchanged by torch."""

    def __init__(
        self,
        task: Task,
        comm: Communicator,
        split_points: Sequence[str],
        schedule: FlushSchedule,
        micro_batches: int,
    ) -> None:
        super().__init__(task, comm.clock, comm, split_points, replica=0)
        self._is_1f1b = schedule == "1f1b"
        self._micro_batches = micro_batches
        # By batch size: the last batch of an epoch may be smaller.
        self._schedules: dict[int, tuple[pipelining.ScheduleGPipe | pipelining.Schedule1F1B, Exchanges]]
        self._schedules = {}

    def forward_backward(self, batch: Batch) -> None:
        """Forward and backward pass of a batch, in micro-batches of equal size."""
        samples = len(batch.targets)
        micro_batches = next(
            count for count in range(min(self._micro_batches, samples), 0, -1) if samples % count == 0
        )
        if samples not in self._schedules:
            self._schedules[samples] = self._build_schedule(samples, micro_batches)
        self.zero_grad()
        self._total = self._loss_function.total(batch.targets)
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if self._is_first else ()
        target: dict[str, Any] = {"target": batch.targets, "losses": losses} if self._is_last else {}
        schedule, exchanges = self._schedules[samples]
        self._weigh_balance(1 / micro_batches)
        with self._clock.phase("communicate"), communication_errors("a step of the pipeline"):
            output = schedule.step(*inputs, **target)
            exchanges.end_step()
        if self._is_last:
            self.loss = torch.stack(losses).sum().detach()
            self._outputs, self._targets = [output.detach()], [batch.targets]

    def _build_schedule(self, samples: int, micro_batches: int) -> Any:
        size = samples // micro_batches
        # Without example tensors torch runs the model on uninitialised memory to infer shapes, which would
        # advance the dropout generator and the running statistics.
        x = torch.empty(
            size,
            *self._input_shape,
            dtype=self._input_type,
            requires_grad=self._has_parameters(self.stage_index),
        )
        y = torch.empty(size, *self._output_shape, requires_grad=self._has_parameters(self.stage_index + 1))
        use_1f1b = self._is_1f1b and micro_batches >= self.num_stages
        exchanges = Exchanges(self._comm, use_1f1b)
        stage = InstrumentedStage(
            ContiguousEnds(self.model, self.in_format), exchanges, self.stage_index, self.num_stages, x, y
        )

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return self._loss_function.of(output, target, "sum") / self._total

        schedule = pipelining.Schedule1F1B if use_1f1b else pipelining.ScheduleGPipe
        return schedule(stage, micro_batches, loss_fn=loss, scale_grads=False), exchanges

    def _has_parameters(self, stages: int) -> bool:
        """Whether the output of the first `stages` stages needs a gradient: one of them has parameters."""
        return any(stage.parameters for stage in self._state_sizes[:stages])


class ContiguousEnds(nn.Module):
    """Runs a stage in the model's memory format, with contiguous input and output as gloo needs them."""

    def __init__(self, stage: nn.Module, in_format: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stage, self.in_format = stage, in_format

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)  # the gradient of x is sent, too
        output: Tensor = self.stage(self.in_format(x))
        return output.contiguous()


class Exchanges:
    """Bytes and trace of the sends and receives of torch's schedule.

    torch shows when it creates an operation and when it computes, but not when it waits. Its schedules wait
    for receives before they compute. GPipe waits for the sends of a pass at the end of that pass. 1F1B
    waits for a send together with the next receive in the other direction, and for one that no such receive
    follows, before the next send.
    """

    def __init__(self, comm: Communicator, is_1f1b: bool) -> None:
        self.comm, self._is_1f1b = comm, is_1f1b
        self._receives: list[tuple[P2POp, float]] = []  # and when they were created
        self._sends: list[tuple[int, int]] = []  # receiver and index of those not waited for
        self._sends_forward = True  # their direction
        self._waits_for_both = False  # before it computes

    def send(self, operations: Sequence[P2POp], forward: bool) -> None:
        """torch is about to send."""
        if self._is_1f1b:
            self._wait_for_sends()
        now = self.comm.clock.wall()
        for each in operations:
            size, to = each.tensor.nbytes, each.peer
            self._sends.append((to, self.comm.traffic.record_send(now, to, size)))
            self.comm.trace_at(Kind.SEND, now, now, size, to)
        self._sends_forward = forward

    def receive(self, operations: Sequence[P2POp], forward: bool) -> None:
        """torch is about to receive."""
        turns = forward != self._sends_forward
        if turns and not self._is_1f1b:
            self._wait_for_sends()
        self._waits_for_both = turns and self._is_1f1b
        now = self.comm.clock.wall()
        self._receives += [(each, now) for each in operations]

    def compute(self) -> None:
        """torch is about to compute: it has received what it needs."""
        now = self.comm.clock.wall()
        for each, entered in self._receives:
            self.comm.trace_at(Kind.RECEIVE, entered, now, each.tensor.nbytes, each.peer)
        self._receives.clear()
        if self._waits_for_both:
            self._wait_for_sends()
            self._waits_for_both = False

    def end_step(self) -> None:
        """torch has ended a step, and so has waited for all sends."""
        self._wait_for_sends()

    def _wait_for_sends(self) -> None:
        now = self.comm.clock.wall()
        for to, index in self._sends:
            self.comm.trace_at(Kind.SEND_WAIT, now, now, index, to)
        self._sends.clear()


class InstrumentedStage(pipelining.PipelineStage):
    """torch's PipelineStage that records compute time and its exchanges."""

    def __init__(
        self, module: nn.Module, exchanges: Exchanges, index: int, num_stages: int, x: Tensor, y: Tensor
    ) -> None:
        """x, y: example input and output of a micro-batch."""
        device = torch.device(exchanges.comm.device)
        super().__init__(module, index, num_stages, device, x, y)
        self._shardyard_exchanges = exchanges

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self._shardyard_exchanges.compute()
        with self._shardyard_exchanges.comm.clock.phase("compute"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self._shardyard_exchanges.compute()
        with self._shardyard_exchanges.comm.clock.phase("compute"):
            return super().backward_one_chunk(*args, **kwargs)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._receives(super().get_fwd_recv_ops(fwd_chunk_id), forward=True)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._receives(super().get_bwd_recv_ops(bwd_chunk_id), forward=False)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._sends(super().get_fwd_send_ops(fwd_chunk_id), forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._sends(super().get_bwd_send_ops(bwd_chunk_id), forward=False)

    def _receives(self, operations: list[P2POp], forward: bool) -> list[P2POp]:
        self._shardyard_exchanges.receive(operations, forward)
        return operations

    def _sends(self, operations: list[P2POp], forward: bool) -> list[P2POp]:
        self._shardyard_exchanges.send(operations, forward)
        return operations

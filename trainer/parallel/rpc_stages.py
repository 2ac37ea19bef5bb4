"""Model partitioning over RPC: the stages that hold the model, and the master that drives them.

Requests use torch RPC; gradients return through its distributed autograd. A stage therefore computes in
torch's RPC threads while its main thread waits. Only the main thread writes to the clock, at the end of an
epoch.

Every request has the run's `timeout_s`. Requests that torch sends itself, for backward passes and the
optimizer, use the RPC agent's timeout, which has the same value.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.rpc import RRef

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.rpc_calls import HEARTBEAT_S, Heartbeat, check_alive, rpc_errors, worker_name
from trainer.core.trace import Kind
from trainer.models.shapes import block_shapes, input_type
from trainer.models.split_points import stage_blocks
from trainer.training.loader import Batch
from trainer.training.memory import Activations
from trainer.training.replica import Replica, join_stages
from trainer.training.task import Task

if TYPE_CHECKING:
    from torch.distributed.optim import DistributedOptimizer

MASTER = 0  # its rank

# The stages of this process by rank. Module state, because torch RPC requests name functions, not objects.
_stages: dict[int, RpcStage] = {}


class RpcStage(Replica):
    """One stage of the model, its optimizer, and its time and traffic.

    Events divide the stage's time: each interval between two of them is compute, communication or waiting.
    The backward pass takes from the arrival of the output's gradient to the last gradient that autograd
    computes here. Sends and receives are recorded as a Communicator records them, so that waiting is
    separated from transfers after training.
    """

    def __init__(
        self, task: Task, comm: Communicator, split_points: Sequence[str], timeout_s: float
    ) -> None:
        """Build this rank's stage: rank 1 holds the first one.

        timeout_s: the time limit of each wait for an epoch, and of each transfer from another stage.
        """
        names = task.spec.model.names
        self._blocks = stage_blocks(names, split_points)[comm.rank - 1]
        super().__init__(task.build_model(0, device=comm.device, only=self._blocks), task, comm.clock)
        self.loss = None
        self._comm, self._timeout_s = comm, timeout_s
        self._previous_rank, self._next_rank = comm.rank - 1, (comm.rank + 1) % comm.size
        self._input_shape = block_shapes(task.spec.model, task.spec.dataset)[names.index(self._blocks[0])]
        is_first = comm.rank - 1 == MASTER
        self._input_type = input_type(task.spec.dataset) if is_first else torch.get_default_dtype()
        self._sends_gradient = self._gets_gradient = False  # in the present step
        self._in_step = False  # from its forward pass on
        self._in_epoch = threading.Event()
        self._epoch_steps: SimpleQueue[int] = SimpleQueue()
        self._last_event = comm.clock.now()
        # Wall and CPU seconds of the epoch that are not on the clock yet.
        self._communicate_s, self._compute_s = [0.0, 0.0], [0.0, 0.0]
        for parameter in self._parameters:
            parameter.register_hook(lambda _: self._add_interval(self._compute_s))
        _stages[comm.rank] = self

    @property
    def blocks(self) -> list[str]:
        return self._blocks

    def run_epoch(self) -> int:
        """Execute the master's requests until it ends the epoch. Raises CommunicationError.

        Returns:
            The number of steps of the epoch.
        """
        heartbeat = Heartbeat(MASTER, self._timeout_s)
        with self._clock.phase("wait"):
            self._last_event = self._clock.now()
            self._in_epoch.set()
            while True:
                try:
                    steps = self._epoch_steps.get(timeout=HEARTBEAT_S)
                    break
                except Empty:
                    heartbeat.check()
            self._in_epoch.clear()
        self._end_step()
        tracer = self._clock.tracer
        if tracer:
            tracer.work_until(self._clock.booked_until)
        # Meanwhile the RPC threads have computed and communicated.
        self._clock.transfer("wait", "compute", *self._compute_s)
        self._clock.transfer("wait", "communicate", *self._communicate_s)
        self._compute_s, self._communicate_s = [0.0, 0.0], [0.0, 0.0]
        if tracer:
            tracer.skip_work()  # what the RPC threads have computed was recorded then
        return steps

    def predict(self, inputs: Tensor) -> None:
        """Receive activations from the previous stage and send this stage's output to the next rank."""
        buffer = torch.empty(len(inputs), *self._input_shape, dtype=self._input_type)
        self._comm.recv(buffer.view(-1), self._previous_rank)
        self._comm.send(self.model(self.in_format(buffer)).reshape(-1), self._next_rank)

    def full_weights(self) -> None:
        """The master returns the weights of the whole model."""

    # Requests of the master, executed one after the other in torch's RPC threads.

    def end_epoch(self, steps: int) -> None:
        """End the epoch, which had `steps` steps."""
        self._epoch_steps.put(steps)

    def forward(self, x: Tensor | RRef[Tensor]) -> Tensor:
        """Forward pass of a batch. x: inputs, or a reference to the output of the previous stage."""
        if not self._in_epoch.wait(self._timeout_s):  # the main thread may still be on its way to it
            raise TimeoutError(f"the stage did not start the epoch within {self._timeout_s:g} s")
        self._end_step()
        self._in_step = True
        x = x if isinstance(x, Tensor) else x.to_here(self._timeout_s)
        self._record_receive(self._previous_rank, x.nbytes)
        if self.activation_bytes is None:  # equal in all steps
            with Activations() as activations:
                y: Tensor = self.model(x)
            self.activation_bytes = activations.peak_bytes
        else:
            y = self.model(x)
        self._add_interval(self._compute_s)
        self._record_send(self._next_rank, y.nbytes)
        self._sends_gradient, self._gets_gradient = x.requires_grad, y.requires_grad
        if y.requires_grad:
            size = y.nbytes
            y.register_hook(lambda _: self._record_receive(self._next_rank, size))
        if x.requires_grad:
            payload = x.nbytes
            x.register_hook(lambda _: self._send_gradient(payload))
        return y

    def step(self) -> None:
        """Step the optimizer. torch has stored the gradients of this step in the parameters."""
        ended = self._last_event[0]
        self._last_event = self._clock.now()  # the interval before was waiting
        # Without payload: the master requests the step after the backward pass, and waits for its end.
        self._answer(ended)
        self._trace(Kind.RECEIVE, self._last_event[0], MASTER)
        self._optimizer.step()
        self._add_interval(self._compute_s)
        self._trace(Kind.SEND, self._last_event[0], MASTER)
        self._end_step()

    def _send_gradient(self, payload: int) -> None:
        """Record that the gradient of the input is computed, which distributed autograd sends back now."""
        self._add_interval(self._compute_s)
        self._record_send(self._previous_rank, payload)

    def _record_receive(self, source: int, size: int) -> None:
        entered = self._last_event[0]
        self._add_interval(self._communicate_s)
        self._comm.traffic.receives.append((entered, self._last_event[0], source, entered))
        self._trace(Kind.RECEIVE, entered, source, size)

    def _record_send(self, to: int, payload: int) -> None:
        self._comm.traffic.record_send(self._last_event[0], to, payload)
        self._trace(Kind.SEND, self._last_event[0], to, payload)

    def _answer(self, ended: float) -> None:
        """Record the answers, without payload, that this stage and those before it end the backward pass.

        ended: when this stage ended. It answers the next one when the previous one has answered.
        """
        if self._sends_gradient:
            self._trace(Kind.RECEIVE, ended, self._previous_rank)
        if self._gets_gradient:
            self._trace(Kind.SEND, self._last_event[0], self._next_rank)
        self._sends_gradient = self._gets_gradient = False

    def _end_step(self) -> None:
        """End the step in the trace. The master requests no step of a stage without parameters."""
        self._answer(self._last_event[0])
        if (tracer := self._clock.tracer) and self._in_step:
            tracer.mark(Kind.STEP, self._last_event[0])
        self._in_step = False

    def _trace(self, kind: Kind, entered: float, peer: int, size: int = 0) -> None:
        """Record an exchange from `entered` to the last event."""
        self._comm.trace_at(kind, entered, self._last_event[0], size, peer)

    def _add_interval(self, seconds: list[float]) -> None:
        """Add wall and CPU time since the last event. The main thread waits and uses no CPU time."""
        (wall, cpu), now = self._last_event, self._clock.now()
        seconds[0] += now[0] - wall
        seconds[1] += now[1] - cpu
        self._last_event = now
        if seconds is self._compute_s and (tracer := self._clock.tracer):
            tracer.work_elsewhere(now[1] - cpu, wall, now[0])


class RpcMaster(Replica):
    """The master's view of the model. It holds no blocks and drives the stages by remote calls."""

    def __init__(self, task: Task, comm: Communicator, timeout_s: float) -> None:
        """timeout_s: the time limit of each request to a stage, in seconds."""
        super().__init__(task.build_model(0, only=()), task, comm.clock)
        self._comm, self._timeout_s = comm, timeout_s
        self._stage_ranks = range(1, comm.size)
        self._output_shape = block_shapes(task.spec.model, task.spec.dataset)[-1]

    @property
    def blocks(self) -> list[str]:
        return []

    def distributed_optimizer(self) -> DistributedOptimizer:
        """Return one optimizer over the parameters of all stages, which must be ready for requests."""
        with warnings.catch_warnings():  # torch's own use of TorchScript
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import DistributedOptimizer
        owned = {rank: self._call(rank, _parameters) for rank in self._stage_ranks}
        self._ranks_that_step = [rank for rank, parameters in owned.items() if parameters]
        parameters = [each for rank in self._stage_ranks for each in owned[rank]]
        log = logging.getLogger(DistributedOptimizer.__module__)
        before, log.disabled = log.disabled, True  # it warns of optimizers without a TorchScript version
        try:
            return DistributedOptimizer(_local_optimizer, parameters)
        finally:
            log.disabled = before

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean loss over the batch; its autograd graph spans all stages.

        Each stage gets a reference to the output of the previous one and fetches it from there.
        """
        traffic, last = self._comm.traffic, self._stage_ranks[-1]
        with self._clock.phase("communicate") as span:
            traffic.record_send(span.entered, self._stage_ranks[0], batch.inputs.nbytes)
            self._trace(Kind.SEND, span.entered, self._stage_ranks[0], batch.inputs.nbytes)
            x: Tensor | RRef[Tensor] = batch.inputs
            for rank in self._stage_ranks[:-1]:
                x = rpc.remote(worker_name(rank), _forward, args=(rank, x), timeout=self._timeout_s)
            output: Tensor = rpc.rpc_async(
                worker_name(last), _forward, args=(last, x), timeout=self._timeout_s
            ).wait()
        traffic.receives.append((span.entered, span.left, last, span.entered))
        self._comm.trace(Kind.RECEIVE, span, output.nbytes, last)
        with self._clock.phase("compute") as span:
            loss = self._loss_function.of(output, batch.targets)
            self.loss, self._outputs, self._targets = loss.detach(), [output.detach()], [batch.targets]
        traffic.record_send(span.left, last, output.nbytes)  # the gradient of the output
        self._trace(Kind.SEND, span.left, last, output.nbytes)
        return loss

    @contextmanager
    def waiting_for_stages(self) -> Iterator[None]:
        """Book the block, in which the stages take the backward pass and step, as waiting."""
        with self._clock.phase("wait") as span:
            yield
        # The answers without payload that `RpcStage.step` records.
        self._comm.trace(Kind.RECEIVE, span, 0, self._stage_ranks[-1])
        for kind in (Kind.SEND, Kind.RECEIVE):
            for rank in self._ranks_that_step:
                self._trace(kind, span.left, rank)

    def _trace(self, kind: Kind, at: float, peer: int, size: int = 0) -> None:
        self._comm.trace_at(kind, at, at, size, peer)

    @contextmanager
    def failures_as_communication_errors(self) -> Iterator[None]:
        """Raise errors of the block as CommunicationError, which names a node that is gone."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            check_alive(self._stage_ranks)
            lines = str(error).strip().splitlines()  # an error of a stage: where, what, and its stack
            reason = " ".join(lines[: 2 if "On WorkerInfo" in lines[0] else 1])
            raise CommunicationError(f"training over RPC failed: {reason}") from error

    def end_epoch(self, steps: int) -> None:
        """End the epoch, which had `steps` steps, on all stages."""
        with self._clock.phase("communicate"):
            for rank in self._stage_ranks:
                self._call(rank, _end_epoch, steps)

    def predict(self, inputs: Tensor) -> Tensor:
        """The output of the whole model. Every stage calls its own `predict`."""
        self._comm.send(inputs.reshape(-1), self._stage_ranks[0])
        output = torch.empty(len(inputs), *self._output_shape)
        self._comm.recv(output.view(-1), self._stage_ranks[-1])
        return output

    def full_weights(self) -> Tensor:
        """Weights of the whole model, fetched from all stages."""
        return join_stages([self._call(rank, _weights) for rank in self._stage_ranks])

    def _call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        with rpc_errors(rank, "calling"):
            return rpc.rpc_async(
                worker_name(rank), function, args=(rank, *args), timeout=self._timeout_s
            ).wait()


# These functions run in the process of a stage. torch RPC pickles a function by its name.


def _forward(rank: int, x: Tensor | RRef[Tensor]) -> Tensor:
    return _stages[rank].forward(x)


def _end_epoch(rank: int, steps: int) -> None:
    _stages[rank].end_epoch(steps)


def _parameters(rank: int) -> list[RRef[Tensor]]:
    return [RRef(parameter) for parameter in _stages[rank].model.parameters()]


def _weights(rank: int) -> tuple[Tensor, Tensor]:
    return _stages[rank].parameters_and_buffers()


def _local_optimizer(parameters: list[Tensor]) -> RpcStage:
    """Called by DistributedOptimizer: the stage steps its own optimizer over these parameters."""
    (stage,) = _stages.values()
    return stage

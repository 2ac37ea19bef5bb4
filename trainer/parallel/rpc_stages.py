"""Both ends of a model that is split over remote calls: who holds a part of it, and who drives them all.

Requests are torch RPC's, and its distributed autograd goes the same way back. So a part computes in threads
of torch's while its own thread waits; that one settles the accounts once an epoch, and nothing else does.

Every request has the run's `timeout_s`. What torch sends by itself, for backward passes and the optimiser,
has the agent's, which is the same.
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
from torch.nn.functional import nll_loss

from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.rpc import HEARTBEAT_S, Heartbeat, check_alive, rpc_errors, worker_name
from trainer.models.shapes import input_shapes
from trainer.models.split_points import stage_blocks
from trainer.training.activations import Activations
from trainer.training.loader import Batch
from trainer.training.replica import Replica, channels_last, joined
from trainer.training.task import Task

if TYPE_CHECKING:
    from torch.distributed.optim import DistributedOptimizer

MASTER = 0  # its rank

# What this process holds, by its rank. A module's, because a process has one RPC agent, whose requests
# name functions and not objects.
_parts: dict[int, Part] = {}


class Part(Replica):
    """A part of the model, its optimiser, and what they take their time for.

    Its time goes from one event to the next, each noted where it happens: something has come, something is
    computed. A backward pass is computed from the gradient of the output to the last gradient that the
    engine has of this part. Messages are noted as a Communicator's are, so waiting for them is told from
    moving them after training.
    """

    def __init__(
        self, task: Task, comm: Communicator, split_points: Sequence[str], timeout_s: float
    ) -> None:
        names = task.spec.model.names
        self._blocks = stage_blocks(names, split_points)[comm.rank - 1]
        super().__init__(task.build_model(0, device=comm.device, only=self._blocks), task, comm.clock)
        self.loss = None
        self._comm, self._timeout_s = comm, timeout_s
        self._before, self._after = comm.rank - 1, (comm.rank + 1) % comm.size
        shapes = input_shapes(task.spec.model, task.data.train.images.shape[1:], task.data.classes)
        self._enters = shapes[names.index(self._blocks[0])]
        self._serving = threading.Event()
        self._steps: SimpleQueue[int] = SimpleQueue()
        self._noted = comm.clock.now()
        self._received, self._computed = [0.0, 0.0], [0.0, 0.0]  # wall and CPU seconds, not booked yet
        for parameter in self._parameters:
            parameter.register_hook(lambda _: self._note(self._computed))
        _parts[comm.rank] = self

    @property
    def blocks(self) -> list[str]:
        return self._blocks

    def serve(self) -> int:
        """Let the master train for an epoch. Returns how many steps it took. Raises CommunicationError."""
        knock = Heartbeat(MASTER, self._timeout_s)
        with self._clock.phase("wait"):
            self._noted = self._clock.now()
            self._serving.set()
            while True:
                try:
                    steps = self._steps.get(timeout=HEARTBEAT_S)
                    break
                except Empty:
                    knock.check()
            self._serving.clear()
        # Of the waiting, what others have done in this process meanwhile.
        self._clock.transfer("wait", "compute", *self._computed)
        self._clock.transfer("wait", "communicate", *self._received)
        self._computed, self._received = [0.0, 0.0], [0.0, 0.0]
        return steps

    def predict(self, images: Tensor) -> None:
        """Take activations from the part before, and send on what this one makes of them."""
        buffer = torch.empty(len(images), *self._enters)
        self._comm.recv(buffer.view(-1), self._before)
        self._comm.send(self.model(channels_last(buffer)).reshape(-1), self._after)

    def full_weights(self) -> None:
        """The master has them."""

    # What the master asks for, in threads of torch's. It asks for one thing after the other.

    def over(self, steps: int) -> None:
        """The epoch is over: it had so many steps."""
        self._steps.put(steps)

    def forward(self, made_before: Tensor | RRef[Tensor]) -> Tensor:
        """One batch through this part: images, or what the part before has made of them."""
        if not self._serving.wait(self._timeout_s):  # its own thread is about to
            raise TimeoutError(f"it has not begun the epoch within {self._timeout_s:g} s")
        x: Tensor
        x = made_before if isinstance(made_before, Tensor) else made_before.to_here(self._timeout_s)
        self._receipt(self._before)
        if self.activation_bytes is None:  # all steps keep as much
            with Activations() as activations:
                y: Tensor = self.model(x)
            self.activation_bytes = activations.most_bytes
        else:
            y = self.model(x)
        self._note(self._computed)
        self._post(self._after, y.nbytes)
        if y.requires_grad:
            y.register_hook(lambda _: self._receipt(self._after))
        if x.requires_grad:
            payload = x.nbytes
            x.register_hook(lambda _: self._pass_back(payload))
        return y

    def step(self) -> None:
        """As the optimiser's; torch has put this step's gradients where it looks for them."""
        self._noted = self._clock.now()  # what was before is waiting
        self._optimizer.step()
        self._note(self._computed)

    def _pass_back(self, payload: int) -> None:
        self._note(self._computed)
        self._post(self._before, payload)

    def _receipt(self, source: int) -> None:
        entered = self._noted[0]
        self._note(self._received)
        self._comm.traffic.receives.append((entered, self._noted[0], source))

    def _post(self, to: int, payload: int) -> None:
        self._comm.traffic.record_send(self._noted[0], to, payload)

    def _note(self, book: list[float]) -> None:
        """Wall and CPU seconds since the last note; the main thread has used none of them."""
        (wall, cpu), now = self._noted, self._clock.now()
        book[0] += now[0] - wall
        book[1] += now[1] - cpu
        self._noted = now


class Master(Replica):
    """The whole model, as who drives the parts sees it: none of its blocks are here."""

    def __init__(self, task: Task, comm: Communicator, timeout_s: float) -> None:
        super().__init__(task.build_model(0, only=()), task, comm.clock)
        self._comm, self._timeout_s = comm, timeout_s
        self._holders = range(1, comm.size)
        self._classes = task.data.classes

    @property
    def blocks(self) -> list[str]:
        return []

    def optimizer(self) -> DistributedOptimizer:
        """The optimisers of all parts, as one. The parts must be there."""
        with warnings.catch_warnings():  # of TorchScript, which torch itself uses in there
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import DistributedOptimizer
        parameters = [each for rank in self._holders for each in self._of(rank, _parameters)]
        log = logging.getLogger(DistributedOptimizer.__module__)
        before, log.disabled = log.disabled, True  # it warns of optimisers that TorchScript does not know
        try:
            return DistributedOptimizer(_optimizer, parameters)
        finally:
            log.disabled = before

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss over the batch, whose way back leads through all parts.

        A part gets a reference to what the one before has made, and fetches it there.
        """
        traffic, last = self._comm.traffic, self._holders[-1]
        with self._clock.phase("communicate") as span:
            traffic.record_send(span.entered, self._holders[0], batch.images.nbytes)
            x: Tensor | RRef[Tensor] = batch.images
            for rank in self._holders[:-1]:
                x = rpc.remote(worker_name(rank), _forward, args=(rank, x), timeout=self._timeout_s)
            output: Tensor = rpc.rpc_async(
                worker_name(last), _forward, args=(last, x), timeout=self._timeout_s
            ).wait()
        traffic.receives.append((span.entered, span.left, last))
        with self._clock.phase("compute") as span:
            loss = nll_loss(output, batch.labels)
            self.loss, self._output, self._labels = loss.detach(), output.detach(), batch.labels
        traffic.record_send(span.left, last, output.nbytes)  # its gradient's
        return loss

    @contextmanager
    def in_reach(self) -> Iterator[None]:
        """Turn what goes wrong in the block into a CommunicationError, which names a node that is gone."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            check_alive(self._holders)
            lines = str(error).strip().splitlines()  # of a part's: where, what, and its stack
            reason = " ".join(lines[: 2 if "On WorkerInfo" in lines[0] else 1])
            raise CommunicationError(f"training over remote calls failed: {reason}") from error

    def over(self, steps: int) -> None:
        """Tell the parts that the epoch, which had so many steps, is over."""
        with self._clock.phase("communicate"):
            for rank in self._holders:
                self._of(rank, _over, steps)

    def predict(self, images: Tensor) -> Tensor:
        """As of the whole model; every part calls its own."""
        self._comm.send(images.reshape(-1), self._holders[0])
        output = torch.empty(len(images), self._classes)
        self._comm.recv(output.view(-1), self._holders[-1])
        return output

    def full_weights(self) -> Tensor:
        """As of the whole model, from all parts."""
        return joined([self._of(rank, _halves) for rank in self._holders])

    def _of(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        with rpc_errors(rank, "asking"):
            return rpc.rpc_async(
                worker_name(rank), function, args=(rank, *args), timeout=self._timeout_s
            ).wait()


# These run in the process of a part. torch pickles a function by its name.


def _forward(rank: int, x: Tensor | RRef[Tensor]) -> Tensor:
    return _parts[rank].forward(x)


def _over(rank: int, steps: int) -> None:
    _parts[rank].over(steps)


def _parameters(rank: int) -> list[RRef[Tensor]]:
    return [RRef(parameter) for parameter in _parts[rank].model.parameters()]


def _halves(rank: int) -> tuple[Tensor, Tensor]:
    return _parts[rank].halves()


def _optimizer(parameters: list[Tensor]) -> Part:
    """What DistributedOptimizer lets step here: the part, which has an optimiser over its parameters."""
    (part,) = _parts.values()
    return part

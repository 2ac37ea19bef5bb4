"""Strategies that break one law each, or none, partitioners that do not end, and other kinds."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from trainer.core.strategy import Strategy
from trainer.data.base import Partitioner


class Averages(Strategy):
    """All-reduce; subclasses change a step."""

    transports = ("memory",)
    synchronous = True
    operation: ClassVar[str] = "mean"

    def batches(self, session: Any, epoch: int) -> Any:
        return session.synchronous_batches(epoch, "join")

    def weight(self, session: Any, batch: Any) -> float:
        return batch.share * session.size

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, self.weight(session, batch))
        gradient = replica.gradient()
        self.reduce(session, gradient)
        replica.set_gradient(gradient)

    def reduce(self, session: Any, gradient: Any) -> None:
        session.comm.all_reduce(gradient, self.operation)

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in self.batches(session, epoch):
                self.exchange(session, replica, batch)
                replica.step()


class Sums(Averages):
    equals = "all_reduce"
    operation: ClassVar[str] = "sum"


class IgnoresSizes(Averages):
    """The mean over ranks, whatever each has."""

    equals = "all_reduce"

    def weight(self, session: Any, batch: Any) -> float:
        return float(batch.samples > 0)


class Halves(Averages):
    equals = "serial"

    def weight(self, session: Any, batch: Any) -> float:
        return super().weight(session, batch) / 2


class Stays(Averages):
    def weight(self, session: Any, batch: Any) -> float:
        return 0.0


class Diverges(Averages):  # no rank learns from another
    def reduce(self, session: Any, gradient: Any) -> None:
        pass


class SendsMore(Averages):
    def reduce(self, session: Any, gradient: Any) -> None:
        gradient.copy_(session.comm.all_gather(gradient).mean(dim=0))

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float:
        return 2 * gradient_bytes * (ranks - 1) / ranks


class DrawsNoise(Averages):
    def reduce(self, session: Any, gradient: Any) -> None:
        super().reduce(session, gradient)
        noise = torch.full_like(gradient, time.monotonic() % 1)
        session.comm.broadcast(noise, 0)
        gradient += noise


class HalfTheSamples(Averages):
    def batches(self, session: Any, epoch: int) -> Any:
        return islice(super().batches(session, epoch), 1)


class OwnStatistics(Strategy):
    """Averages parameters once, at the end, and leaves each rank its BatchNorm statistics."""

    transports = ("memory",)

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs(evaluate="local"):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
        replica.set_flat_parameters(session.comm.weighted_mean(replica.flat_parameters(), 1))


class WithTheNextRank(Averages):
    """Equals all_reduce on two ranks, and not on more."""

    def reduce(self, session: Any, gradient: Any) -> None:
        other = session.comm.shift(gradient, 1) if session.size > 1 else gradient
        gradient.copy_((gradient + other) / 2)


# Strategies that do not train to the end


class NoReplica(Averages):
    def train(self, session: Any) -> None:
        pass


class NeedsWholeBatches(Averages):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        batch.targets.reshape(10)
        super().exchange(session, replica, batch)


class Deadlocks(Averages):
    """After more steps than a short training has."""

    def reduce(self, session: Any, gradient: Any) -> None:
        super().reduce(session, gradient)
        if session.steps_taken == 25 and session.rank == 0 and session.size > 1:
            session.comm.recv(gradient, session.size - 1)  # which sends nothing


class CallsDiffer(Averages):
    def reduce(self, session: Any, gradient: Any) -> None:
        if session.rank == 0:
            session.comm.all_reduce(gradient, "mean")
        else:
            session.comm.broadcast(gradient, 0)


class LocksOutside(Averages):
    def reduce(self, session: Any, gradient: Any) -> None:
        threading.Event().wait(60)


# Strategies whose ranks must be processes


class OverGloo(Averages):
    transports = ("gloo", "mpi")


class CallsTorch(Averages):
    transports = ("gloo",)

    def reduce(self, session: Any, gradient: Any) -> None:
        torch.distributed.all_reduce(gradient)
        gradient /= session.size


class CallsTorchOverMpi(CallsTorch):
    transports = ("mpi",)


class FailsOnOneRank(CallsTorch):
    def reduce(self, session: Any, gradient: Any) -> None:
        if session.rank == 1:
            raise ValueError("no gradient")
        super().reduce(session, gradient)


class DiesOnOneRank(CallsTorch):
    def reduce(self, session: Any, gradient: Any) -> None:
        if session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().reduce(session, gradient)


class WaitsForOthers(CallsTorch):
    def reduce(self, session: Any, gradient: Any) -> None:
        super().reduce(session, gradient)
        if session.rank == 0 and session.size > 1:
            torch.distributed.recv(gradient, 1)  # which sends nothing


# Partitioners


class Hangs(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        while True:
            time.sleep(0.1)


class Exits(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        os.abort()


# Other kinds


class Unused(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(784, classes)
        self.unused = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return self.output(x.flatten(1))


class Decays(torch.optim.SGD):
    def __init__(self, params: Any, lr: float, decay: float = 0.1) -> None:
        super().__init__(params, lr, weight_decay=decay)


class TestInTraining(torch.utils.data.Dataset):
    def __init__(self, train: bool) -> None:
        self.inputs = np.random.default_rng(0).random((20 if train else 10, 4), np.float32)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, at: int) -> Any:
        return self.inputs[at], at % 2

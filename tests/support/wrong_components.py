"""Strategies that break one law each, or none, partitioners that do not end, and other kinds."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.core.strategy import Strategy
from trainer.data.base import Partitioner


class Averages(Strategy):
    """All-reduce; subclasses change a step."""

    transports = ("memory",)
    synchronous = True

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in self.batches(session, epoch):
                replica.backward(batch, self.weight(session, batch))
                gradient = replica.gradient()
                self.reduce(session, gradient)
                replica.set_gradient(gradient)
                replica.step()

    def batches(self, session: Any, epoch: int) -> Any:
        return session.synchronous_batches(epoch, "join")

    def weight(self, session: Any, batch: Any) -> float:
        return batch.share * session.size

    def reduce(self, session: Any, gradient: Any) -> None:
        session.comm.all_reduce(gradient, "mean")


class Wrong(Averages):
    """how: what is wrong of it, if anything is."""

    how: str = ""

    @property
    def claimed_equal(self) -> Any:
        return {"sums": "all_reduce", "ignores sizes": "all_reduce", "halves": "serial"}.get(self.how)

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float | None:
        return 2 * gradient_bytes * (ranks - 1) / ranks if self.how == "sends more" else None

    def train(self, session: Any) -> None:
        if self.how != "never starts":
            super().train(session)

    def batches(self, session: Any, epoch: int) -> Any:
        # A batch counts when the next one is asked for.
        return islice(super().batches(session, epoch), 2 if self.how == "takes half the samples" else None)

    def weight(self, session: Any, batch: Any) -> float:
        if self.how == "needs whole batches":
            batch.targets.reshape(10)
        factors = {"halves": 0.5, "stays": 0.0}
        ignores = self.how == "ignores sizes"
        return (
            float(batch.samples > 0)
            if ignores
            else super().weight(session, batch) * factors.get(self.how, 1)
        )

    def reduce(self, session: Any, gradient: Any) -> None:
        comm, several = session.comm, session.size > 1
        match self.how:
            case "diverges":  # no rank learns from another
                return
            case "sums":
                comm.all_reduce(gradient, "sum")
            case "sends more":
                gradient.copy_(comm.all_gather(gradient).mean(dim=0))
            case "takes the next rank's":  # equals all_reduce on two ranks, and not on more
                gradient.copy_((gradient + (comm.shift(gradient, 1) if several else gradient)) / 2)
            case _:
                super().reduce(session, gradient)
        if self.how == "draws noise":
            noise = torch.full_like(gradient, time.monotonic() % 1)
            comm.broadcast(noise, 0)
            gradient += noise
        if self.how == "deadlocks" and session.steps_taken == 25 and session.rank == 0 and several:
            comm.recv(gradient, session.size - 1)  # which sends nothing


class Overlaps(Averages):
    """Averages two parts of a gradient at a time. how: what is wrong of it, if anything is."""

    how: str = ""

    def reduce(self, session: Any, gradient: Any) -> None:
        first, second = gradient[:10], gradient[10:]
        if self.how == "order" and session.rank == 1:
            first, second = second, first
            requests = [session.comm.iall_reduce(first, "mean")]  # 1 starts
        else:
            requests = [session.comm.iall_reduce(first, "mean")]  # 0 starts
        requests.append(session.comm.iall_reduce(second, "mean"))  # second
        _ = torch.empty_like(gradient[:4].view(2, 2))  # has no elements of it
        if self.how == "writes":
            gradient[3] = 0.0  # writes
        if self.how == "reads":
            gradient.sum()  # reads
        if self.how == "forgets" and session.rank == 1:
            requests.pop()
        for request in requests:
            request.wait()


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


# Strategies that do not train to the end


class LocksOutside(Averages):
    def reduce(self, session: Any, gradient: Any) -> None:
        threading.Event().wait(60)


# Strategies whose ranks must be processes


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

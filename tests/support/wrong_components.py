"""Components that break exactly one law each, or none: `halves` and those that average."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from trainer.core.strategy import Strategy
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Data, Dataset, Partitioner, Split
from trainer.losses.base import Loss
from trainer.models.base import Model
from trainer.training.replica import Replica

# Partitioners


class Overlaps(Partitioner):
    disjoint = True
    covers = True

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        split = np.array_split(rng.permutation(len(labels)), parts)
        return [np.union1d(part, split[0][:1]) for part in split]


class DropsRemainder(Partitioner):
    disjoint = True
    covers = True

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        size = len(labels) // parts
        order = rng.permutation(len(labels))
        return [order[part * size : (part + 1) * size] for part in range(parts)]


class GlobalState(Partitioner):
    disjoint = True
    covers = True

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return np.array_split(np.random.permutation(len(labels)), parts)


class MutatesLabels(Partitioner):
    disjoint = True
    covers = True
    random = False

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        order = np.argsort(labels, kind="stable")
        labels.sort()
        return np.array_split(order, parts)


class EmptyPart(Partitioner):
    disjoint = True
    covers = True
    random = False

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return [np.flatnonzero(labels % parts == part) for part in range(parts)]


class IgnoresSeed(Partitioner):
    disjoint = True
    covers = True

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return np.array_split(np.arange(len(labels)), parts)


class OnePartTooFew(Partitioner):  # of a single part, none is left to drop
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return np.array_split(rng.permutation(len(labels)), max(1, parts - 1))


class ShortIndices(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return np.array_split(rng.permutation(len(labels)).astype(np.int16), parts)


class Misspelt(Partitioner):
    def partiton(self, labels: Any, parts: int, rng: Any) -> Any:
        return np.array_split(rng.permutation(len(labels)), parts)


class TakesArguments(Partitioner):
    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        return np.array_split(rng.permutation(len(labels)), parts)


class OnlyContiguous(Partitioner):
    disjoint = True
    covers = True
    random = False

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        start = 0 if labels.flags.c_contiguous else 1
        return np.array_split(np.roll(np.arange(len(labels)), start), parts)


class DependsOnProcess(Partitioner):
    disjoint = True
    covers = True
    random = False

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return np.array_split(np.roll(np.arange(len(labels)), hash("shardyard") % 491), parts)


class FailsOnOneClass(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        1 / (len(np.unique(labels)) - 1)
        return np.array_split(rng.permutation(len(labels)), parts)


class DistortsPartZero(Partitioner):
    transforms_images = True

    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return [rng.integers(len(labels), size=1) for _ in range(parts)]

    def transform_images(self, images: Any, rank: int, parts: int, rng: Any) -> Any:
        return images + rng.standard_normal(images.shape).astype(np.float32)


def halves(labels: Any, parts: int, rng: Any) -> Any:
    return np.array_split(rng.permutation(len(labels)), parts)


# Strategies


class Sums(Strategy):
    transports = ("memory",)
    synchronous = True
    equals = "all_reduce"

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share)
        gradient = replica.gradient()
        session.comm.all_reduce(gradient, "sum")
        replica.set_gradient(gradient * session.size)

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, "join"):
                self.exchange(session, replica, batch)
                replica.step()


class Averages(Sums):
    equals = None
    operation: ClassVar[str] = "mean"

    def weight(self, session: Any, batch: Any) -> float:
        return batch.share * session.size

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, self.weight(session, batch))
        gradient = replica.gradient()
        session.comm.all_reduce(gradient, self.operation)
        replica.set_gradient(gradient)


class Totals(Averages):
    """The sum where others take the mean."""

    operation: ClassVar[str] = "sum"


class IgnoresSizes(Averages):
    """The mean over ranks, whatever each has."""

    equals = "all_reduce"

    def weight(self, session: Any, batch: Any) -> float:
        return float(batch.samples > 0)


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


class CallsTorch(Averages):
    transports = ("gloo",)

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share)
        gradient = replica.gradient()
        torch.distributed.all_reduce(gradient)
        replica.set_gradient(gradient)


class CallsTorchOverMpi(CallsTorch):
    transports = ("mpi",)


class OverGloo(Averages):
    transports = ("gloo", "mpi")


class WrapsInDdp(Strategy):
    transports = ("gloo", "nccl")
    synchronous = True
    equals = "all_reduce"

    def backward(self, session: Any, replica: Any, batch: Any, ddp: Any) -> None:
        replica.backward(batch, batch.share * session.size)

    def train(self, session: Any) -> None:
        model = session.task.build_model(session.rank)
        ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
        replica = Replica(ddp, session.task, session.clock)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, "join"):
                self.backward(session, replica, batch, ddp)
                replica.step()


class ForgetsToSynchronize(WrapsInDdp):
    equals = None

    def backward(self, session: Any, replica: Any, batch: Any, ddp: Any) -> None:
        if session.steps_taken % 4 != 3:
            super().backward(session, replica, batch, ddp)
            return
        with ddp.no_sync():  # and the gradients are not averaged later
            super().backward(session, replica, batch, ddp)


class FailsOnOneRank(WrapsInDdp):
    def backward(self, session: Any, replica: Any, batch: Any, ddp: Any) -> None:
        if session.rank == 1:
            raise ValueError("no gradient")
        super().backward(session, replica, batch, ddp)


class DiesOnOneRank(WrapsInDdp):
    def backward(self, session: Any, replica: Any, batch: Any, ddp: Any) -> None:
        if session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().backward(session, replica, batch, ddp)


class WaitsForOthers(WrapsInDdp):
    def backward(self, session: Any, replica: Any, batch: Any, ddp: Any) -> None:
        super().backward(session, replica, batch, ddp)
        if session.rank == 0 and session.size > 1:
            torch.distributed.barrier()  # which no other rank calls


class Deadlocks(Sums):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share * session.size)
        if session.rank == 0 and session.size > 1:
            session.comm.recv(replica.gradient(), session.size - 1)  # which sends nothing


class DeadlocksLater(Averages):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        super().exchange(session, replica, batch)
        if session.steps_taken == 25 and session.rank == 0 and session.size > 1:
            session.comm.barrier()  # which no other rank calls


class NeedsWholeBatches(Averages):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        batch.targets.reshape(10)
        super().exchange(session, replica, batch)


class FailsAtAnEpochsEnd(Averages):
    def train(self, session: Any) -> None:
        replica, losses = session.replica(), [0.0] * 3  # the first epoch has number 1
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, "join"):
                self.exchange(session, replica, batch)
                replica.step()
            losses[epoch] = replica.loss.item()


class CallsDiffer(Sums):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share * session.size)
        gradient = replica.gradient()
        if session.rank == 0:
            session.comm.all_reduce(gradient, "mean")
        else:
            session.comm.broadcast(gradient, 0)
        replica.set_gradient(gradient)


class LocksOutside(Sums):
    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        threading.Event().wait(60)


class Diverges(Sums):  # no rank learns from another
    equals = None

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch)


class WithTheNextRank(Sums):
    """Equals all_reduce on two ranks, and not on more."""

    equals = None
    synchronous = False

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica, "broadcast")
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, "join"):
                replica.backward(batch, batch.share * session.size)
                gradient = replica.gradient()
                other = session.comm.shift(gradient, 1) if session.size > 1 else gradient
                replica.set_gradient((gradient + other) / 2)
                replica.step()
        replica.set_weights(session.comm.weighted_mean(replica.weights(), 1))


class NoReplica(Strategy):
    transports = ("memory",)

    def train(self, session: Any) -> None:
        pass


class HalfTheSamples(Sums):
    equals = None

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for number, batch in enumerate(session.synchronous_batches(epoch, "join")):
                if number == 1:
                    break
                replica.backward(batch, batch.share * session.size)
                gradient = replica.gradient()
                session.comm.all_reduce(gradient, "mean")
                replica.set_gradient(gradient)
                replica.step()


class SendsMore(Sums):
    equals = None

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share * session.size)
        gradient = replica.gradient()
        replica.set_gradient(session.comm.all_gather(gradient).mean(dim=0))

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float:
        return 2 * gradient_bytes * (ranks - 1) / ranks


class DrawsNoise(Sums):
    equals = None

    def exchange(self, session: Any, replica: Any, batch: Any) -> None:
        replica.backward(batch, batch.share * session.size)
        gradient = replica.gradient()
        session.comm.all_reduce(gradient, "mean")
        noise = torch.full_like(gradient, time.monotonic() % 1) if session.rank == 0 else gradient * 0
        session.comm.broadcast(noise, 0)
        replica.set_gradient(gradient + noise)


# Models


class NamesLie(Model):
    @property
    def names(self) -> list[str]:
        return ["flatten", "first", "log_softmax"]

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        yield "flatten", nn.Flatten()
        yield "output", nn.Linear(784, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)


class Unused(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(784, classes)
        self.unused = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return self.output(x.flatten(1))


class PlainList(nn.Module):
    """Its hidden layer is in a list, so the optimizer does not get its weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.hidden = [nn.Linear(784, 16)]
        for parameter in self.hidden[0].parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 28
        self.output = nn.Linear(16, classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.hidden[0](x.flatten(1)).relu())


class CountsBatches(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(784, classes)
        self.batches = 0

    def forward(self, x: Any) -> Any:
        self.batches += 1
        return self.output(x.flatten(1)) * (1 + 0.1 * self.batches)


class HidesBatchNorm(Model):  # in training, samples depend on each other, too
    names = property(lambda self: ["flatten", "norm", "output"])

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        yield "flatten", nn.Flatten()
        yield "norm", nn.BatchNorm1d(784)
        yield "output", nn.Linear(784, classes)


class SharesState(Model):
    names = property(lambda self: ["flatten", "hidden", "output"])

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        kept: list[Any] = []

        class Keeps(nn.Linear):
            def forward(self, x: Any) -> Any:
                kept.append(x)
                return super().forward(x)

        class Uses(nn.Linear):
            def forward(self, x: Any) -> Any:
                return super().forward(x) * len(kept)

        yield "flatten", nn.Flatten()
        yield "hidden", Keeps(784, 8)
        yield "output", Uses(8, classes)


class OwnSeed(Model):
    names = property(lambda self: ["flatten", "output"])

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        yield "flatten", nn.Flatten()
        layer = nn.Linear(784, classes)
        nn.init.zeros_(layer.bias)
        if layer.weight.device.type != "meta":
            layer.weight.data = torch.from_numpy(np.random.rand(classes, 784).astype(np.float32))
        yield "output", layer


class WrongPairs(Model):
    names = property(lambda self: ["flatten", "first", "softmax", "second"])
    tensor_parallel_pairs = property(lambda self: [("first", "second", 8)])

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        from trainer.models.base import ParallelPair

        type(self).tensor_parallel_pairs = property(lambda _: [ParallelPair("first", "second", 8)])
        yield "flatten", nn.Flatten()
        yield "first", nn.Linear(784, 8)
        yield "softmax", nn.Softmax(dim=1)  # over all features, which no rank has
        yield "second", nn.Linear(8, classes)


# Optimizers


class WrongDecay(torch.optim.Optimizer):
    """Its weight decay pushes weights away from 0."""

    sign = 1.0

    def __init__(self, params: Any, lr: float, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight -= self.rate(group) * (weight.grad - self.sign * group["decay"] * weight)

    def rate(self, group: Any) -> float:
        return group["lr"]


class Ascends(WrongDecay):
    sign = 0.0

    def rate(self, group: Any) -> float:
        return -group["lr"]


class WrongCurve(WrongDecay):
    """A step of double length."""

    sign = -1.0
    equals = "sgd"

    def rate(self, group: Any) -> float:
        group["decay"] = 0.0
        return 2 * group["lr"]


class FixedRate(WrongDecay):
    sign = -1.0

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.fixed = lr

    def rate(self, group: Any) -> float:
        return self.fixed


class ForgetsState(WrongDecay):
    sign = -1.0

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        super().step()

    def rate(self, group: Any) -> float:
        return group["lr"] / self.taken


class HidesLayers(WrongDecay):
    sign = -1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight -= group["lr"] * weight.grad / (weight.grad.norm() + 1e-8)


# Losses


def sums(output: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(output, target, reduction="sum")


class IgnoresReduction(Loss):
    def of(self, output: Any, target: Any, reduction: Any = "mean") -> Any:
        return nn.functional.cross_entropy(output, target)

    def output_error(self, output: Any, target: Any) -> str | None:
        fits = output.dim() == 2 and target.dim() == 1 and not target.is_floating_point()
        return None if fits else "it needs scores of classes"


class WrongGradient(IgnoresReduction):
    def of(self, output: Any, target: Any, reduction: Any = "mean") -> Any:
        doubled = 2 * output - output.detach()
        return nn.functional.cross_entropy(doubled, target, reduction=reduction)


class RightAboveOne(IgnoresReduction):
    def of(self, output: Any, target: Any, reduction: Any = "mean") -> Any:
        return nn.functional.cross_entropy(output, target, reduction=reduction)

    def right(self, output: Any, target: Any) -> Any:
        return 2 + output[:, 0] * 0


class TakesAnyShape(RightAboveOne):
    def right(self, output: Any, target: Any) -> Any:
        return Loss.right(self, output, target)

    def output_error(self, output: Any, target: Any) -> str | None:
        return None


# Datasets


class GlobalSamples(torch.utils.data.Dataset):
    classes = ("a", "b")

    def __init__(self) -> None:
        self.inputs = np.random.rand(20, 1, 4, 4).astype(np.float32)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> Any:
        return self.inputs[at], at % 2


class TestInTraining(torch.utils.data.Dataset):
    classes = ("a", "b")

    def __init__(self, train: bool) -> None:
        self.inputs = np.random.default_rng(0).random((20 if train else 10, 4), np.float32)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, at: int) -> Any:
        return self.inputs[at], at % 2


class StatesMore(Dataset):
    train_samples = property(lambda self: 100)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 2)

    def load(self, data_dir: Any) -> Data:
        rng = np.random.default_rng(0)
        splits = [Split(rng.random((count, 4), np.float32), np.arange(count) % 2) for count in (20, 10)]
        return Data(*splits, classes=2, scale=None)


class LabelTooHigh(StatesMore):
    train_samples = property(lambda self: 20)

    def load(self, data_dir: Any) -> Data:
        data = super().load(data_dir)
        data.train.labels[7] = 2
        return data


# Augmentations


def changes_argument(inputs: Any, rng: Any) -> Any:
    return inputs.add_(float(rng.random()))


def changes_nothing(inputs: Any, rng: Any) -> Any:
    return inputs.clone()


def global_noise(inputs: Any, rng: Any) -> Any:
    return inputs + torch.rand(1)


class Doubles(Augmentation):
    def build(self, scale: Any, device: str) -> Any:
        return lambda inputs, rng: (inputs + float(rng.random())).double()


# Crashes


class Hangs(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        while True:
            time.sleep(0.1)


class Exits(Partitioner):
    def partition(self, labels: Any, parts: int, rng: Any) -> Any:
        os.abort()

"""Components of users, most of them wrong in one way. `# here` marks lines that messages must name."""

import ctypes
import os
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, log_softmax, nll_loss, poisson_nll_loss
from torch.utils.data import Dataset, IterableDataset

from shardyard import Dataset as OwnDataset
from trainer.core.strategy import Strategy
from trainer.data.base import Data, Partitioner, Split
from trainer.losses.base import Loss
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.strategies.local_sgd import LocalSGD


def good(samples: int = 60, classes: int = 3, scale: float = 1.0):
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, 4)) * scale, rng.integers(classes, size=samples)


class Net(nn.Sequential):
    def __init__(self, shape, classes, width: int = 8):
        layers = nn.Linear(shape[0], width), nn.Dropout(0.5), nn.Linear(width, classes)
        super().__init__(*layers, nn.LogSoftmax(1))


class Wide(Net):
    def __init__(self, shape, classes, widths: tuple[int, ...] = (8,)):
        super().__init__(shape, classes, *widths)


class Unstepped(torch.optim.Optimizer):
    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})


class Langevin(torch.optim.SGD):
    """Adds noise from the second step on."""

    noise = 0.0

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data += self.noise * torch.randn_like(weight)
        self.noise = 0.01


class InRounds(LocalSGD):
    @property
    def parts_of_work(self):
        return 7

    def recompute_error(self, recompute):
        return "it exchanges" if recompute == "full" else None


def in_order(samples: int = 300):
    inputs, labels = good(samples)
    order = np.argsort(labels)
    return inputs[order], labels[order]


class Ragged(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.zeros(3 + (index > 4)), 0


class Raises(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        raise ValueError("no item")  # here: data


class Stream(IterableDataset):
    def __iter__(self):
        yield np.zeros(3), 0


class stated(Dataset):
    """Ten classes, and samples of two."""

    classes = tuple("abcdefghij")

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.zeros(3), index % 2


def labelled(low: int, step: int):
    return np.zeros((9, 3)), low + step * np.arange(9)


def shaped(inputs: list[int], targets: list[int]):
    return np.zeros(inputs), np.zeros(targets, int)


def filled(value: str):
    return np.full((9, 3), float(value)), np.zeros(9, int)


def damaged(value: str, samples: int = 2, targets: bool = False, images: bool = False):
    """Samples from 5 on have another value in one place."""
    found = np.ones((9, 2, 3, 3) if images else (9, 3)), np.ones((9, 1))
    found[targets][5 : 5 + samples, ..., -1] = float(value)
    return found


def words():
    return np.full((9, 3), "word"), np.zeros(9, int)


def mixed():
    inputs = np.ones((9, 3), object)
    inputs[4, 1] = "missing"
    return inputs, np.zeros(9, int)


def beyond_int64():
    targets = np.zeros(9, np.uint64)
    targets[3] = 2**63
    return np.ones((9, 3)), targets


def nothing():
    return None


def triples():
    return [(np.zeros(3), 0, 1)] * 9


def mapping():
    inputs, targets = good()
    return {"x": inputs, "y": targets}


def lists(samples: int = 9):
    return [[0.5, 1.5]] * samples, [0] * samples


def four():
    return (*good(), *good())


def one_array():
    return good()[0]


class Shaped(Dataset):
    """Has the attributes of an array that a dataset may have as well."""

    shape = (4,)

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.full(self.shape, index / 9), index % 3


def unequal_splits(train: bool):
    return shaped([9, 3 if train else 4], [9])


class States(OwnDataset):
    """States numbers, and gives tokens."""

    train_samples = property(lambda self: 9)
    shape = property(lambda self: (3,))
    class_count = property(lambda self: 1)

    def load(self, data_dir):
        split = Split(np.zeros((9, 3), np.int64), np.zeros(9, np.int64))
        return Data(split, split, 1, None)


class Own(OwnDataset):
    """A subclass whose samples nothing converts."""

    fault: str = ""

    train_samples = property(lambda self: 9)
    shape = property(lambda self: (3,))
    class_count = property(lambda self: 2)

    def load(self, data_dir):
        inputs, labels = np.ones((9, 3), np.float32), np.arange(9) % 2
        test = Split(inputs.copy(), labels.copy())
        if self.fault == "nan":
            test.inputs[3, 1] = np.nan
        if self.fault == "label":
            test.labels[4:6] = 2
        if self.fault == "sizes":
            test = Split(inputs, labels[:8])
        return Data(Split(inputs, labels), test, 2, None)


def random_data():
    return np.random.rand(9, 3), np.zeros(9, int)


def numbers():
    inputs, _ = good()
    return inputs, inputs[:, :1]


def float_labels(classes: int = 3):
    inputs, labels = good(classes=classes)
    return inputs, labels.astype(float)


def beside():
    return np.load("table.npy"), np.zeros(9, int)  # here: relative path


class Scores(nn.Sequential):
    def __init__(self, shape, classes: int):
        super().__init__(nn.Linear(shape[0], classes))


class TwoClasses(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Linear(shape[0], 2), nn.LogSoftmax(1))


class TwoScores(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Flatten(), nn.LazyLinear(2), nn.LogSoftmax(1))
        self(torch.zeros(1, *shape))


class Normalised(nn.Sequential):
    def __init__(self, shape, classes, frozen: bool = False):
        super().__init__(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes), nn.LogSoftmax(1))
        self.frozen = frozen

    def train(self, mode: bool = True):
        super().train(mode)
        self[0].train(mode and not self.frozen)
        return self


class Sometimes(nn.Module):
    """A branch that the first sample of a batch decides."""

    def __init__(self, shape, classes):
        super().__init__()
        self.left, self.right = nn.Linear(shape[0], classes), nn.Linear(shape[0], classes)

    def forward(self, x):
        scores = self.left(x) + self.right(x) if x[0, 0] > 0 else self.left(x)
        return log_softmax(scores, 1)


class OneNumber(nn.Sequential):
    def __init__(self, shape, outputs: int = 1):
        super().__init__(nn.Linear(shape[0], outputs))


class Flat(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Linear(shape[0], 1), nn.Flatten(0))


class Tree(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.left, self.right = nn.Linear(shape[0], classes), nn.Linear(shape[0], classes)

    def forward(self, x):
        return log_softmax(self.left(x) + self.right(x), 1)


class GlobalWeights(Tree):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.left.bias.data.fill_(random.random())


class Pair(Tree):
    def forward(self, x):
        return self.left(x), self.right(x)


class Failing(Tree):
    def forward(self, x):
        raise RuntimeError("no output")  # here: forward


class Misnamed(Model):
    names = property(lambda self: ["one"])

    def blocks(self, shape, classes, generator):
        yield "two", nn.Linear(shape[0], classes)


class Undefined(Model):
    pass


def lazy(classes):
    return nn.Sequential(nn.LazyLinear(classes), nn.LogSoftmax(1))


def exits():
    os._exit(3)


def crashes():
    ctypes.string_at(0)


def leaves():
    sys.exit("bye")  # here: exit


def hangs():
    time.sleep(600)


def loud(shape, classes):
    print("x" * 200_000)
    os.write(1, b"not an answer\n")
    return Net(shape, classes)


def typed(shape, classes, names: list[str] = (), share: float = 0.1):
    return Net(shape, classes)


def summed(output, target):
    return nll_loss(output, target, reduction="sum")


def weighted(output, target):
    return nll_loss(output, target, weight=torch.tensor([1.0, 2.0, 30.0]))


def of_each(output, target):
    return nll_loss(output, target, reduction="none")


def constant(output, target):
    return torch.tensor(1.0)


def one_argument(output):
    return output.mean()


def failing_loss(output, target):
    raise ValueError("no loss")  # here: loss


def mean_loss(output, target):
    return nll_loss(output, target)


def rounding(output, target):
    return nll_loss(log_softmax(output, 1), target.long())


def absolute(output, target):
    return (output - target).abs().mean()


def poisson(output, target):
    return poisson_nll_loss(output, target)


def entropy(output, target):
    return binary_cross_entropy(output.sigmoid(), target)


def always(output, target):
    return torch.ones(len(output))


def percent(output, target):
    return 100.0 * (output.argmax(1) == target)


class UndefinedLoss(Loss):
    pass


def without_lr(weights):
    return torch.optim.SGD(weights, 0.1)


def no_optimizer(weights, lr):
    return lr


class UndefinedOptimizer(Optimizer):
    pass


class NoTransports(Strategy):
    def train(self, session):
        pass


class Pigeons(NoTransports):
    transports = ("pigeon",)


class NoTrain(Strategy):
    transports = ("gloo",)


def no_strategy(session):
    pass


def random_parts(labels, parts, rng):
    return np.array_split(np.random.permutation(len(labels)), parts)


def three_classes(labels, parts):
    assert len(np.unique(labels)) == 3
    return np.array_split(np.arange(len(labels)), parts)


def one_part(labels, parts, rng):
    return [np.arange(len(labels))]


def failing_parts(labels, parts, rng):
    return [labels[10**9]]  # here: parts


class UndefinedPartitioner(Partitioner):
    pass


def random_inputs(inputs, rng):
    return inputs + torch.randn_like(inputs)


def in_place(inputs, rng):
    return inputs.add_(1)


def shorter(inputs, rng):
    return inputs[:, :2]


built = Net((4,), 3)
number = 3

"""Components of users, some of them wrong in one way. `# here` marks lines that messages must name."""

import ctypes
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, log_softmax, nll_loss, poisson_nll_loss
from torch.utils.data import Dataset

from trainer.core.strategy import Strategy
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


class Raises(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        raise ValueError("no item")  # here: data


class stated(Dataset):
    """Ten classes, and samples of two."""

    classes = tuple("abcdefghij")

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.zeros(3), index % 2


class Shaped(Dataset):
    """Has the attributes of an array that a dataset may have as well."""

    shape = (4,)

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.full(self.shape, index / 9), index % 3


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


class Failing(Tree):
    def forward(self, x):
        raise RuntimeError("no output")  # here: forward


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


class NoTransports(Strategy):
    def train(self, session):
        pass


class Pigeons(NoTransports):
    transports = ("pigeon",)


def three_classes(labels, parts):
    assert len(np.unique(labels)) == 3
    return np.array_split(np.arange(len(labels)), parts)


def failing_parts(labels, parts, rng):
    return [labels[10**9]]  # here: parts


number = 3

"""Components of users, some of them wrong in one way. `# here` marks lines that messages must name."""

import ctypes
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import log_softmax, mse_loss, nll_loss
from torch.utils.data import Dataset

from trainer.core.strategy import Strategy
from trainer.strategies.local_sgd import LocalSGD

number = 3


def good(samples: int = 60, classes: int = 3, scale: float = 1.0):
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, 4)) * scale, rng.integers(classes, size=samples)


def in_order(samples: int = 300):
    inputs, labels = good(samples)
    order = np.argsort(labels)
    return inputs[order], labels[order]


def float_labels():
    inputs, labels = good()
    return inputs, labels.astype(float)


def numbers():
    inputs, _ = good()
    return inputs, inputs[:, :1]


def beside():
    return np.load("table.npy"), np.zeros(9, int)  # here: relative path


class Stated(Dataset):
    """States ten classes, and an attribute of an array; its samples are of two classes."""

    classes = tuple("abcdefghij")
    shape = (3,)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.zeros(3), index % 2


class Raises(Stated):
    def __getitem__(self, index):
        raise ValueError("no item")  # here: data


class Net(nn.Sequential):
    def __init__(self, shape, classes, width: int = 8):
        layers = nn.Linear(shape[0], width), nn.Dropout(0.5), nn.Linear(width, classes)
        super().__init__(*layers, nn.LogSoftmax(1))


class Outputs(nn.Sequential):
    def __init__(self, shape, outputs: int = 1, flat: bool = False):
        super().__init__(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs), nn.Flatten(0 if flat else 1)
        )


class Normalised(nn.Sequential):
    def __init__(self, shape, classes, frozen: bool = False):
        super().__init__(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes), nn.LogSoftmax(1))
        self.frozen = frozen

    def train(self, mode: bool = True):
        super().train(mode)
        self[0].train(mode and not self.frozen)
        return self


class Tree(nn.Module):
    """sometimes: the first sample of a batch decides whether a branch is used."""

    def __init__(self, shape, classes, sometimes: bool = False):
        super().__init__()
        self.left, self.right = nn.Linear(shape[0], classes), nn.Linear(shape[0], classes)
        self.sometimes = sometimes

    def forward(self, x):
        both = x[0, 0] > 0 or not self.sometimes
        return log_softmax(self.left(x) + self.right(x) if both else self.left(x), 1)


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


def typed(shape, classes, names: tuple[str, ...] = ("a",), share: float = 0.1):
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


def squares(output, target):
    return mse_loss(output, target)


def always(output, target):
    return torch.ones(len(output))


def percent(output, target):
    return 100.0 * (output.argmax(1) == target)


class Pigeons(Strategy):
    transports = ("pigeon",)

    def train(self, session):
        pass


class Recomputes(LocalSGD):
    def recompute_error(self, recompute):
        return "it exchanges" if recompute == "full" else None


def three_classes(labels, parts):
    assert len(np.unique(labels)) == 3  # here: parts
    return np.array_split(np.arange(len(labels)), parts)

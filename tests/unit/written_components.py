"""Components of users that a trainer may take for something else, and some that are wrong in one way.

The models, optimizers and losses at the top are sound as their own loop runs them. `# here` marks lines
that messages must name.
"""

import ctypes
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, mse_loss, nll_loss
from torch.utils.data import Dataset

from trainer.core.strategy import Strategy
from trainer.strategies.local_sgd import LocalSGD

SHAPE, CLASSES = (6,), 3
IMAGES = (3, 8, 8)


def vectors(samples: int = 60, classes: int = CLASSES, scale: float = 1.0):
    """Samples in the order of their classes, as many files have them."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, *SHAPE)) * scale, np.arange(samples) * classes // samples


class Layers(nn.Sequential):
    def __init__(self, *middle):
        super().__init__(nn.Linear(*SHAPE, 8), *(middle or [nn.ReLU()]), nn.Linear(8, CLASSES))


class RepeatedReLU(Layers):
    def __init__(self):
        relu = nn.ReLU()
        super().__init__(relu, nn.Linear(8, 8), relu)


class RepeatedLinear(Layers):
    def __init__(self):
        linear = nn.Linear(8, 8)
        super().__init__(nn.ReLU(), linear, nn.ReLU(), linear)


class RepeatedNorm(Layers):
    def __init__(self):
        norm = nn.BatchNorm1d(8, affine=False)
        super().__init__(norm, nn.Linear(8, 8), norm)


class Tied(Layers):
    def __init__(self):
        super().__init__(nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self[4].weight = self[2].weight


class Norm(Layers):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(8), nn.ReLU())


class FrozenNormInAChain(Norm):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


class FrozenChain(Norm):
    def __init__(self):
        super().__init__()
        self[0].requires_grad_(False)


class OwnForward(Layers):
    def forward(self, x):
        return 2 * super().forward(x)


class Hooked(Layers):
    def __init__(self):
        super().__init__()
        self.register_forward_hook(lambda module, inputs, output: 2 * output)


class Double(Layers):
    def __init__(self):
        super().__init__()
        self.double()

    def forward(self, x):
        return super().forward(x.double())


class Listed(Layers):
    """Shows some of its parameters to an optimizer."""

    def parameters(self, recurse=True):
        return self[-1].parameters(recurse)


class Two(nn.Module):
    """Two layers. others: more attributes."""

    def __init__(self, **others):
        super().__init__()
        self.body, self.head = nn.Linear(*SHAPE, 8), nn.Linear(8, CLASSES)
        for name, each in others.items():
            setattr(self, name, each)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class FrozenNorm(Two):
    """BatchNorm in evaluation mode, with statistics of its own, as in fine-tuning."""

    def __init__(self):
        super().__init__(norm=nn.BatchNorm1d(8))
        self.norm.running_mean.fill_(0.3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


class NormFrozenInForward(FrozenNorm):
    train = nn.Module.train

    def forward(self, x):
        self.norm.eval()
        return super().forward(x)


class FrozenBody(Two):
    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)


class Unfrozen(FrozenBody):
    """Trains its body from the second epoch on."""

    calls = 0

    def train(self, mode=True):
        self.calls += mode
        self.body.requires_grad_(self.calls > 1)
        return super().train(mode)


class Unused(Two):
    def __init__(self):
        super().__init__(unused=nn.Linear(3, 3))


class Integers(Two):
    def __init__(self):
        super().__init__(steps=nn.Parameter(torch.tensor([3, 4]), requires_grad=False))


class Masked(Two):
    """Has a buffer with infinite numbers, as a causal mask has."""

    def __init__(self):
        super().__init__(mask=nn.Buffer(torch.tensor([0.0] * 7 + [float("-inf")])))

    def forward(self, x):
        return self.head(torch.softmax(self.body(x) + self.mask, 1))


class Experts(nn.Module):
    """Samples choose one of many experts, so in most batches some experts get no gradient."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(*SHAPE, CLASSES) for _ in range(6))

    def forward(self, x):
        chosen, outputs = x[:, : len(self.experts)].argmax(1), x.new_zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            if (mine := chosen == number).any():
                outputs[mine] = expert(x[mine])
        return outputs


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(5, 8, sparse=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.words((x[:, 0].abs() * 2).long().clamp(max=4)))


class Detached(Two):
    """The chain of its children in the forward pass, and not in the backward pass."""

    def forward(self, x):
        return self.head(self.body(x).detach())


class Probabilities(Two):
    """The chain of its children in training, and not in evaluation."""

    def forward(self, x):
        scores = self.head(self.body(x))
        return scores if self.training else scores.softmax(1)


class Scalar(Two):
    def __init__(self):
        super().__init__(scale=nn.Parameter(torch.tensor(1.5)))

    def forward(self, x):
        return super().forward(x) * self.scale


class Average(Two):
    """Keeps a running mean of its inputs in a buffer."""

    def __init__(self):
        super().__init__(mean=nn.Buffer(torch.zeros(*SHAPE)))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return super().forward(x - self.mean)


class ReplacedAverage(Average):
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return Two.forward(self, x - self.mean)


class Noise(Two):
    """Draws in the forward pass, as a variational autoencoder does."""

    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x))


class Mixed(Two):
    def __init__(self):
        super().__init__()
        self.head.double()

    def forward(self, x):
        return self.head(torch.relu(self.body(x)).double())


class Complex(Two):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(*SHAPE, 8, dtype=torch.complex64)

    def forward(self, x):
        return self.head(self.body(x.to(torch.complex64)).abs().to(self.head.weight.dtype))


class Views(nn.Module):
    """Takes a contiguous activation."""

    def __init__(self):
        super().__init__()
        self.convolution, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, CLASSES)

    def forward(self, x):
        x = torch.relu(self.convolution(x))
        return self.last(x.view(x.size(0), -1)[:, :144])


def two_rates(weights, lr):
    first, *others = weights
    groups = [{"params": [first], "lr": lr}, {"params": others, "lr": lr / 10, "momentum": 0.5}]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def by_dimensions(weights, lr):
    """Decays matrices alone, as most training code of transformers does."""
    matrices, others = [w for w in weights if w.dim() > 1], [w for w in weights if w.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def decays(weights, lr):
    return torch.optim.AdamW(weights, lr=lr, weight_decay=0.5)


def only_the_last(weights, lr):
    return torch.optim.SGD(weights[-2:], lr=lr)


class Clipped(torch.optim.SGD):
    """Scales the gradient of all weights to a norm of 1."""

    def __init__(self, weights, lr: float):
        super().__init__(weights, lr)

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([w for group in self.param_groups for w in group["params"]], 1.0)
        return super().step(closure)


CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 0.2])


def plain(output, target):
    return cross_entropy(output, target)


def weighted(output, target):
    return cross_entropy(output, target, weight=CLASS_WEIGHTS.to(output.dtype))


def weight_of_class(target):
    return CLASS_WEIGHTS[target]


def ignoring(output, target):
    return cross_entropy(output, target, ignore_index=1)


def counts(target):
    return (target != 1).double()


class WeightedModule(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__(weight=CLASS_WEIGHTS.to(torch.get_default_dtype()))


def added(output, target):
    return nll_loss(output.log_softmax(1), target, reduction="sum")


# Of runs, with the parameters that these give, most of them wrong

number = 3


def float_labels():
    inputs, labels = vectors()
    return inputs, labels.astype(float)


def numbers():
    inputs, _ = vectors()
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


def ends(how: str):
    match how:
        case "exits":
            os._exit(3)
        case "crashes":
            ctypes.string_at(0)
        case "leaves":
            sys.exit("bye")  # here: exit
        case "hangs":
            time.sleep(600)


def loud(shape, classes):
    print("x" * 200_000)
    os.write(1, b"not an answer\n")
    return Net(shape, classes)


def typed(shape, classes, names: tuple[str, ...] = ("a",), share: float = 0.1):
    return Net(shape, classes)


def failing_loss(output, target):
    raise ValueError("no loss")  # here: loss


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

"""Mistakes in the laws of all kinds but strategies: each law finds what breaks it, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from trainer.conformance.law import Law, examine_all
from trainer.conformance.report import Finding
from trainer.user_components.loss import FunctionLoss

from trainer.conformance import augmentation, dataset, loss, model, optimizer, partitioner
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Data, Dataset, Partitioner, Split
from trainer.data.datasets.synthetic import Synthetic
from trainer.launch.threads import threads_in_torch
from trainer.losses.base import Loss
from trainer.models.base import Model, ParallelPair
from trainer.optimizers.base import Optimizer
from trainer.optimizers.momentum import Momentum

Laws = Callable[[], Iterator[Law[Any]]]
# What is tried, by the law that it breaks and a pattern of the smallest input and of what is found for it.
Faults = dict[str, Laws]
# A law that is not broken, its status, a part of the reason, and what is tried.
Sound = list[tuple[str, str, str, Laws]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def findings(laws: Laws, *tried: str) -> dict[str, Finding]:
    """What some of the laws find, by their names."""
    chosen = (law for law in laws() if law.name in tried)
    return {each.law: each for each in examine_all(chosen, Path(__file__).parent)}


def declaring(base: type[Any], **members: Any) -> Any:
    """An instance of a subclass with these members."""
    return type("Own", (base,), {"__module__": __name__, **members})()


# Partitioners


def partitioners(split: Callable[..., Any], **members: Any) -> Laws:
    """The laws of a partitioner. members: what it declares beside disjoint and covers."""

    def partition(self: Partitioner, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return split(labels, parts, rng)

    own = declaring(Partitioner, **{"disjoint": True, "covers": True, "partition": partition, **members})
    return partial(partitioner.laws, own)


def halves(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(rng.permutation(len(labels)), parts)


def blocks(labels: Any, parts: int, rng: Any, first: int = 0) -> list[Any]:
    return np.array_split(np.roll(np.arange(len(labels)), first), parts)


def changed_parts(change: Callable[[Any], Any]) -> Laws:
    return partitioners(lambda *of: [*map(change, halves(*of))])


def sorting(labels: Any, parts: int, rng: Any) -> list[Any]:
    labels.sort()
    return blocks(labels, parts, rng)


def distorting(change: Callable[..., Any], **members: Any) -> Laws:
    given = {"transforms_images": True, "transform_images": lambda self, *of: change(*of), **members}
    return partitioners(halves, **given)


PARTITIONERS: Faults = {
    "runs: 1 sample .*: test_conformance_faults.py:[0-9]+: ZeroDivisionError": partitioners(
        lambda labels, *_: 1 / (len(np.unique(labels)) - 1)
    ),
    "possible: DataError: ": partitioners(halves, validation_error=lambda _, samples, *of: samples > 1000),
    "count: 2 parts, .*1 parts": partitioners(lambda x, n, rng: halves(x, max(1, n - 1), rng)),
    "indices: 1 sample .*int16": changed_parts(lambda part: part.astype("i2")),
    "indices: 1 sample .*part 0 is of type list, not an array": changed_parts(list),
    "indices: 1 sample .*0 to 0: part 0 has 1": changed_parts(lambda part: part + 1),
    "indices: 1 sample .*part 0 has -1": changed_parts(lambda part: part - 1),
    "filled: 2 samples of 1 class, labels 0 0, 2 parts.*part 1": partitioners(
        lambda labels, parts, _: [np.flatnonzero(labels % parts == part) for part in range(parts)]
    ),
    "repeats: 1 part.*2 times": partitioners(
        lambda *of: [np.append(part, part[0]) for part in halves(*of)]
    ),
    "disjoint: 2 samples of 1 class, labels 0 0, 2 parts.*parts 0 and 1": partitioners(
        lambda *of: [np.union1d(part, [0]) for part in halves(*of)]
    ),
    "covers: 3 samples of 1 class, labels 0 0 0, 2 parts.*: 3 samples in parts: 2; sample": partitioners(
        lambda labels, parts, rng: [part[: len(labels) // parts] for part in halves(labels, parts, rng)]
    ),
    "seeded: labels 0 0, 1 part.*global random state": partitioners(lambda *of: halves(*of[:2], np.random)),
    "random: 500 samples.*equal parts; declare random = False": partitioners(blocks),
    "random: 500 samples.*other parts": partitioners(halves, random=False),
    "labels: 1 sample of 1 class, labels 0, 1 part.*read-only": partitioners(sorting, random=False),
    "layout: labels 0 0, 1 part.*stride": partitioners(
        lambda labels, *of: blocks(labels, *of, first=not labels.flags.c_contiguous), random=False
    ),
    "reshuffle: none": partitioners(blocks, random=False, validation_error=lambda *_: None),
    "images: part 0 of 1: unchanged images of the first part: changed": distorting(lambda x, *_: x + 1),
    "images: part 1 of 2: changed images as .*: unchanged": distorting(lambda x, *_: x),
    "images: part 1 of 2: unchanged images as .*: changed": distorting(
        lambda x, rank, *_: x + rank, transforms_images=False
    ),
}
NEITHER = {"disjoint": False, "covers": False}
SOUND_PARTITIONERS: Sound = [
    ("declared", "note", "disjoint = True and covers = True", partitioners(halves, **NEITHER)),
    # That all samples are in one part shows nothing.
    ("declared", "ok", "", partitioners(halves, **NEITHER, validation_error=lambda *of: of[-1] > 1)),
    # The largest of the usual training sets has 60,000 samples.
    ("indices", "ok", "", changed_parts(lambda part: part.astype("u2"))),
]

# Models

IMAGES = Synthetic(channels=1, height=4, width=4)  # of 10 classes


def net(
    hidden: Callable[..., Any] = lambda self, x: x, last: Callable[..., Any] = lambda x: x, **made: Any
) -> Callable[[int], nn.Module]:
    """A model of flat images by the number of classes. made: functions that make its other attributes."""

    class Net(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.output = nn.Linear(16, classes)
            for name, make in made.items():
                setattr(self, name, make(self))

        def forward(self, x: Tensor) -> Any:
            return last(self.output(hidden(self, x.flatten(1))))

    return Net


def layer(*_: Any) -> nn.Module:
    return nn.Linear(16, 16)


def number(_: Any) -> Tensor:
    return torch.zeros(())


def models(make: Callable[[int], Any], stated: Any = None, pairs: Any = ()) -> Laws:
    """The laws of a model of the blocks that a function makes. stated: their names, if others."""

    def made(classes: int) -> dict[str, nn.Module]:
        made = make(classes)
        return made if isinstance(made, dict) else {"model": made}

    members = {
        "names": property(lambda self: stated or [*made(10)]),
        "tensor_parallel_pairs": property(lambda self: [*pairs]),
        "blocks": lambda self, shape, classes, generator: iter(made(classes).items()),
    }
    return partial(model.laws, declaring(Model, **members), IMAGES)


def sharing(classes: int) -> dict[str, nn.Module]:
    """The last block uses what the first has kept."""
    kept: list[Tensor] = []
    first, third = nn.Flatten(), nn.Linear(16, classes)
    first.register_forward_hook(lambda module, inputs, output: kept.append(output))
    third.register_forward_hook(lambda module, inputs, output: output * len(kept))
    return {"first": first, "second": nn.Identity(), "third": third}


def pair(units: int, between: nn.Module) -> Laws:
    def make(classes: int) -> dict[str, nn.Module]:
        first, second = nn.Linear(16, units), nn.Linear(units, classes)
        return {"flatten": nn.Flatten(), "first": first, "between": between, "second": second}

    return models(make, pairs=(ParallelPair("first", "second", units),))


def normalised(classes: int) -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes))  # changes buffers in training
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), norm)


MODELS: Faults = {
    "runs: 2 samples of shape 1×4×4.*infinite": models(net(last=lambda x: x / 0)),
    "classes: 9": models(lambda classes: net()(classes - 1)),
    "names: model from": models(net(), stated=["other"]),
    "splits: split before third": models(sharing),
    r"shapes: \(10,\)": models(net(last=lambda x: x[:, : 4 if x.is_meta else 10])),
    "weights: other weights .*equal": models(lambda _: nn.Sequential(nn.Flatten(), nn.LayerNorm(16))),
    "weights: model.own": models(net(own=lambda _: nn.Parameter(torch.ones(2) * np.random.rand()))),
    # It draws a number, which almost never changes the output.
    "draws: from random": models(net(lambda self, x: x + (random.random() < 1e-9))),
    "draws: other outputs": models(net(lambda self, x: x + np.random.default_rng().random())),
    "repeats: in evaluation": models(
        net(lambda self, x: x * self.calls.add_(1), calls=lambda _: nn.Buffer(torch.zeros(())))
    ),
    "repeats: in training": models(
        net(lambda self, x: x * self.calls.add_(1) if self.training else x, calls=number)
    ),
    "parameters: Net.mine: use nn.ModuleList": models(
        net(lambda self, x: self.mine[0](x), mine=lambda _: [layer()])
    ),
    "parameters: Net.mine: use nn.ModuleDict": models(
        net(lambda self, x: self.mine[0][0](x), mine=lambda _: {0: (layer(), "a name")})
    ),
    "parameters: 1 of its weights .* shape 16 in Net.mine: use nn.Parameter": models(
        net(lambda self, x: x * self.mine, mine=lambda _: torch.ones(16, requires_grad=True))
    ),
    "parameters: in no attribute": models(
        net(lambda self, x: self.mine[0](x), mine=lambda _: [partial(lambda own, x: own(x), layer())])
    ),
    "gradients: 6 samples.*unused.weight, model.unused.bias": models(net(unused=layer)),
    "samples: 6 samples.*declare batch_statistics": models(normalised),
    "norms: batch_statistics .*: False": models(normalised),
    "pairs: 2 ranks": pair(8, nn.Softmax(dim=1)),  # over all features, which no rank has
}


def reached(self: Any, x: Tensor) -> Any:
    """Uses a list of layers that are parameters, and leaves that the forward pass makes."""
    return self.all[0](x.clone().requires_grad_()) * torch.ones(16, requires_grad=True)


SOUND_MODELS: Sound = [
    ("parameters", "ok", "", models(net(reached, one=layer, all=lambda self: [self.one]))),
    ("repeats", "ok", "", models(net(lambda self, x: x.mul_(2)))),
    ("repeats", "ok", "", models(normalised)),
    ("classes", "note", "3 outputs whatever the number of classes", models(lambda classes: net()(3))),
    ("classes", "ok", "", models(lambda classes: net()(classes + 1))),
    ("classes", "skipped", "(2, 1, 4, 4)", models(lambda classes: nn.Identity())),
    ("gradients", "skipped", "no parameters", models(lambda classes: nn.Flatten())),
    ("splits", "skipped", "one block", models(net())),
    ("pairs", "ok", "", pair(2, nn.Identity())),  # on 2 ranks, as many as units
]

# Optimizers


class Sgd(torch.optim.Optimizer):
    """Subclasses change the step."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, {"lr": lr})
        self.taken, self.first = 0, lr

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for group in self.param_groups:
            for number, weight in enumerate(group["params"]):
                if weight.grad is not None:
                    weight -= self.change(group["lr"], weight, number)

    def change(self, lr: float, weight: Any, number: int) -> Any:
        return lr * weight.grad


def stepping(change: Callable[..., Any], equals: str = "", given: str = "", **members: Any) -> Laws:
    """The laws of an optimizer. change: what a step subtracts. members: other members of torch's class."""
    torchs = type("Changed", (Sgd,), {"change": change, **members})
    own = declaring(Optimizer, build=lambda self, weights, lr: torchs(weights, lr), equals=equals or None)
    return partial(optimizer.laws, own, given)


def moving_all(self: Sgd, closure: Any = None) -> None:
    for group in self.param_groups:
        for weight in group["params"]:
            weight.data -= group["lr"]


OPTIMIZERS: Faults = {
    "runs: 1 step.*is as before": stepping(lambda self, lr, weight, _: 0 * weight.grad),
    "runs: 1 step.*nan": stepping(lambda self, lr, weight, _: weight.grad * np.nan),
    "curve: 1 step": stepping(lambda self, lr, weight, _: 2 * lr * weight.grad, equals="sgd"),
    "curve: ^1 step": stepping(Sgd.change, equals="sgd", given="adam"),  # what is given comes first
    "descends: 20 steps": stepping(lambda self, lr, weight, _: -lr * weight.grad),
    "zero: 1 step": stepping(lambda self, lr, weight, _: lr * (weight.grad - 0.1 * weight)),
    "zero: 1 step.*: nan": stepping(lambda self, lr, weight, _: lr * weight.grad / weight.grad.norm()),
    "skips: 1 step.*moved": stepping(Sgd.change, step=moving_all),
    "rate: 1 step.*param_groups": stepping(lambda self, lr, weight, _: self.first * weight.grad),
    "rate: 1 step.*by": stepping(lambda self, lr, weight, _: 0.01 * weight.grad),
    "state: 1 step": stepping(lambda self, lr, weight, _: lr / self.taken * weight.grad),
    "order: 1 step": stepping(lambda self, lr, weight, number: lr * (1 + number) * weight.grad),
    "layers: layerwise": stepping(lambda self, lr, weight, _: lr * weight.grad / weight.grad.norm()),
    "seeded: 1 step.*global random state": stepping(
        lambda self, lr, weight, _: lr * (weight.grad + torch.randn_like(weight))
    ),
}
SOUND_OPTIMIZERS: Sound = [
    ("curve", "ok", "", stepping(Sgd.change, equals="sgd")),
    ("curve", "ok", "", partial(optimizer.laws, Momentum(momentum=0.5), "momentum")),  # of both
]

# Losses


def losses(of: Callable[..., Any], **members: Any) -> Laws:
    """The laws of a subclass of Loss for outputs and targets of the same shape."""

    def of_loss(self: Loss, output: Tensor, target: Tensor, reduction: str = "mean") -> Any:
        return of(output, target, reduction)

    def output_error(self: Loss, output: Tensor, target: Tensor) -> str | None:
        return None if output.shape == target.shape and target.is_floating_point() else "other shapes"

    defaults = {"output_error": output_error, "right": lambda self, output, target: output[:, 0] * 0}
    return partial(loss.laws, declaring(Loss, **{"of": of_loss, **defaults, **members}))


def function(of: Callable[..., Any]) -> Laws:
    return partial(loss.laws, FunctionLoss(function=of, accuracy=None))


def squared(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    mean = (output - target).square().mean()
    return mean if reduction == "mean" else mean * len(output)


def moving(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    value = squared(output, target, reduction)
    target += 1
    return value


def weighted(output: Tensor, target: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 0.5])  # float32
    return functional.cross_entropy(output, target, weight=weights, reduction="none").mean()


LOSSES: Faults = {
    r"runs: 1 sample.*shape \(1, 3\)": losses(lambda output, target, _: (output - target).abs()),
    "runs: none of the 7 kinds.*var": function(functional.gaussian_nll_loss),
    "mean: 2 samples": losses(lambda output, target, _: squared(output, target) * len(output)),
    "sum: 2 samples": losses(lambda output, target, _: squared(output, target)),
    "gradient: ^1 sample": losses(lambda x, *of: squared(2 * x - x.detach(), *of)),
    "gradient: 1 sample": function(lambda x, target: weighted(2 * x - x.detach(), target)),
    "right: 1 sample.*2 to 2": losses(squared, right=lambda self, output, target: 2 + output[:, 0] * 0),
    "unchanged: 1 sample.*other ones": losses(moving),
    "shapes: 1 sample.*none": losses(squared, output_error=lambda self, output, target: None),
}
SOUND_LOSSES: Sound = [
    ("gradient", "ok", "", function(weighted)),
    # Differences in float32 are rounded: a large loss is allowed more.
    ("gradient", "ok", "", function(lambda output, target: 1000 + weighted(output, target))),
    ("right", "note", "--set accuracy=NAME", function(functional.huber_loss)),
    # Tokens, tokens in a row, labels, and probabilities of them.
    ("mean", "ok", "", function(lambda x, y: functional.cross_entropy(x.transpose(1, 2), y))),
    ("mean", "ok", "", function(lambda x, y: functional.cross_entropy(x.flatten(0, 1), y.flatten()))),
    ("mean", "ok", "", function(lambda x, y: functional.binary_cross_entropy_with_logits(x, y.float()))),
    ("mean", "ok", "", function(functional.binary_cross_entropy)),
]


# Datasets


class Stated(Dataset):
    train_samples = property(lambda self: 20)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 2)

    def load(self, data_dir: Path) -> Data:
        rng = np.random.default_rng(0)
        splits = [Split(rng.random((count, 4), np.float32), np.arange(count) % 2) for count in (20, 10)]
        return Data(*splits, classes=2, scale=None)


def datasets(change: Callable[[Data], Any], elsewhere: Callable[[], str] | None = None) -> Laws:
    """The laws of a dataset whose samples are changed. elsewhere: the digest in another process."""

    def load() -> Data:
        data = Stated().load(Path())
        return change(data) or data

    return lambda: dataset.laws(load, Stated(), elsewhere or (lambda: dataset.digest(load())))


def putting(split: str, what: str, at: Any, value: Callable[[], Any]) -> Laws:
    return datasets(lambda data: getattr(getattr(data, split), what).__setitem__(at, value()))


def first(split: Split, inputs: int, labels: int) -> Split:
    return Split(split.inputs[:inputs], split.labels[:labels])


def common(same: int) -> Laws:
    """Of 100 samples for tests, so many are in both splits."""
    inputs = np.arange(1000, dtype=np.float32)[:, None]
    of = (inputs[:900], inputs[900 - same : 1000 - same])
    data = Data(*(Split(each, np.zeros(len(each), np.int64)) for each in of), classes=1, scale=None)
    return lambda: dataset.laws(lambda: data, None, str)


COUNT = count()
DATASETS: Faults = {
    "runs: both splits.*ZeroDivisionError": datasets(lambda data: 1 / 0),
    "sizes: 9 training.*20 inputs, 9 labels": datasets(
        lambda data: Data(first(data.train, 20, 9), data.test, 2, None)
    ),
    "stated: 10 training.*samples 10": datasets(lambda data: Data(data.test, data.test, 2, None)),
    "stated: 20 training.*classes 3": datasets(lambda data: Data(data.train, data.test, 3, None)),
    "labels: 2 of training sample 7": putting("train", "labels", 7, lambda: 2),
    "numbers: nan in sample 3, column 1": putting("test", "inputs", (3, 1), lambda: np.nan),
    "again: inputs of training sample 3 when global random .*: use a generator": putting(
        "train", "inputs", 3, np.random.rand
    ),
    "again: inputs of training sample 3 in a second call": putting("train", "inputs", 3, COUNT.__next__),
    "process: other ones": datasets(lambda data: None, lambda: "other"),
    r"apart: 10 of 10 \(100 %\), such as test sample 0, which is training sample 0": datasets(
        lambda data: Data(data.train, first(data.train, 10, 10), 2, None)
    ),
    r"apart: 6 of 100 \(6 %\)": common(6),
}
SOUND_DATASETS: Sound = [
    ("apart", "note", "5 of 100 (5 %)", common(5)),
]

# Augmentations


def augmenting(augment: Callable[..., Any], channels: int = 1) -> Laws:
    own = declaring(Augmentation, build=lambda self, scale, device: augment)
    return partial(augmentation.laws, own, (channels, 4, 4))


def noisy(inputs: Tensor, rng: Any) -> Tensor:
    return inputs + float(rng.random())


AUGMENTATIONS: Faults = {
    "runs: 1 input of shape 1×4×4.*ndarray": augmenting(lambda inputs, rng: inputs.numpy()),
    "shape: 1 input.*float64": augmenting(lambda inputs, rng: noisy(inputs, rng).double()),
    "shape: 3×4×4.*another": augmenting(lambda inputs, rng: noisy(inputs, rng).contiguous(), 3),
    "argument: 1 input.*16 of 16": augmenting(lambda inputs, rng: inputs.add_(float(rng.random()))),
    "seeded: 1 input.*global random state": augmenting(lambda inputs, rng: inputs + torch.rand(1)),
    "changes: 64 inputs.*the same": augmenting(lambda inputs, rng: inputs.clone()),
    "finite: 1 input.*infinite": augmenting(lambda inputs, rng: noisy(inputs, rng) / 0),
}


# All kinds

FAULTS: dict[str, tuple[Faults, Sound]] = {
    "partitioner": (PARTITIONERS, SOUND_PARTITIONERS),
    "model": (MODELS, SOUND_MODELS),
    "optimizer": (OPTIMIZERS, SOUND_OPTIMIZERS),
    "loss": (LOSSES, SOUND_LOSSES),
    "dataset": (DATASETS, SOUND_DATASETS),
    "augmentation": (AUGMENTATIONS, []),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_every_law_has_faults_that_break_it_alone(kind: str) -> None:
    faults, _ = FAULTS[kind]
    for case, laws in faults.items():
        law, _, text = case.partition(": ")
        found = findings(laws, "runs", law)
        assert {name for name, each in found.items() if each.status == "failed"} == {law}, case
        shown = f"{found[law].input}: {found[law].expected}: {found[law].got}"
        assert re.search(text, shown), f"{case}: {shown}"
        assert found[law].inputs > 0
    unbroken = {law.name for law in laws()} - {case.partition(":")[0] for case in faults}
    assert unbroken <= {"declared"}  # which only notes


@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_no_fault_breaks_no_law(kind: str) -> None:
    for law, status, text, laws in FAULTS[kind][1]:
        found = findings(laws, "runs", law)[law]
        assert (found.status, text in found.reason) == (status, True), f"{law} {text}: {found}"

"""Mistakes in the laws of all kinds but strategies: each law finds what breaks it, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.conformance import augmentation, dataset, loss, model, optimizer, partitioner
from trainer.conformance.law import Law, examine_all
from trainer.conformance.report import Finding
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Data, DataError, Dataset, Partitioner, Split
from trainer.data.datasets.synthetic import Synthetic
from trainer.launch.threads import threads_in_torch
from trainer.losses.base import Loss
from trainer.models.base import Model, ParallelPair
from trainer.optimizers.base import Optimizer
from trainer.user_components.loss import FunctionLoss

Laws = Callable[[], Iterator[Law[Any]]]
# The law that is broken, a pattern of the smallest input and of what is found for it, and what is tried.
Fault = tuple[str, str, Laws]


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


def halves(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(rng.permutation(len(labels)), parts)


def blocks(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(np.arange(len(labels)), parts)


def one_too_few(labels: Any, parts: int, rng: Any) -> list[Any]:
    return halves(labels, max(1, parts - 1), rng)


def of_classes(labels: Any, parts: int, rng: Any) -> list[Any]:
    return [np.flatnonzero(labels % parts == part) for part in range(parts)]


def twice(labels: Any, parts: int, rng: Any) -> list[Any]:
    return [np.append(part, part[0]) for part in halves(labels, parts, rng)]


def overlapping(labels: Any, parts: int, rng: Any) -> list[Any]:
    first, *rest = halves(labels, parts, rng)
    return [first, *(np.append(part, first[0]) for part in rest)]


def without_rest(labels: Any, parts: int, rng: Any) -> list[Any]:
    return [part[: len(labels) // parts] for part in halves(labels, parts, rng)]


def of_global_state(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(np.random.permutation(len(labels)), parts)


def by_layout(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(np.roll(np.arange(len(labels)), not labels.flags.c_contiguous), parts)


def sorting(labels: Any, parts: int, rng: Any) -> list[Any]:
    labels.sort()
    return blocks(labels, parts, rng)


def views(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(labels if labels.tolist() == [0, 1] else np.arange(len(labels)), parts)


def for_few(labels: Any, parts: int, rng: Any) -> list[Any]:
    if len(labels) > 1000:
        raise DataError("too many")
    return halves(labels, parts, rng)


def in_one_part(labels: Any, parts: int, rng: Any) -> list[Any]:
    if parts > 1:
        raise DataError("too many parts")
    return halves(labels, parts, rng)


def partitioners(split: Callable[..., Any], **members: Any) -> Laws:
    """The laws of a partitioner. members: what it declares beside disjoint and covers."""

    def partition(self: Partitioner, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return split(labels, parts, rng)

    own = declaring(Partitioner, **{"disjoint": True, "covers": True, "partition": partition, **members})
    return partial(partitioner.laws, own)


def distorted(self: Any, images: Any, rank: int, parts: int, rng: Any) -> Any:
    return images + rng.standard_normal(images.shape).astype(np.float32)


NEITHER = {"disjoint": False, "covers": False}
FIXED = {"random": False}
PARTITIONERS: list[Fault] = [
    ("runs", "1 sample .*faults.py:", partitioners(lambda labels, *_: 1 / (len(np.unique(labels)) - 1))),
    ("possible", "DataError: ", partitioners(for_few)),
    ("count", "2 parts, .*1 parts", partitioners(one_too_few)),
    ("indices", "1 sample .*int16", partitioners(lambda *of: [each.astype("i2") for each in halves(*of)])),
    ("filled", "2 samples of 1 class, labels 0 0, 2 parts.*part 1", partitioners(of_classes)),
    ("repeats", "1 part.*2 times", partitioners(twice)),
    ("disjoint", "2 samples of 1 class, labels 0 0, 2 parts.*parts 0 and 1", partitioners(overlapping)),
    ("covers", "3 samples of 1 class, labels 0 0 0, 2 parts.*2; sample", partitioners(without_rest)),
    ("seeded", "labels 0 0, 1 part.*global random state", partitioners(of_global_state)),
    ("seeded", "labels 0 1, 1 part.*change with the labels", partitioners(views, **FIXED)),
    ("random", "500 samples.*equal parts; declare random = False", partitioners(blocks)),
    ("random", "500 samples.*other parts", partitioners(halves, **FIXED)),
    ("labels", "1 sample of 1 class, labels 0, 1 part.*read-only", partitioners(sorting, **FIXED)),
    ("layout", "labels 0 0, 1 part.*stride", partitioners(by_layout, **FIXED)),
    ("reshuffle", "none", partitioners(blocks, **FIXED, validation_error=lambda *_: None)),
    (
        "images",
        "part 0 of 1.*changed",
        partitioners(halves, transforms_images=True, transform_images=distorted),
    ),
]


def test_a_partitioner_is_shown_what_it_could_declare() -> None:
    found = findings(partitioners(halves, **NEITHER), "declared")["declared"]
    assert (found.status, "disjoint = True and covers = True" in found.reason) == ("note", True)
    # That all samples are in one part shows nothing.
    assert findings(partitioners(in_one_part, **NEITHER), "declared")["declared"].status == "ok"


@pytest.mark.parametrize(("kind", "status"), [(np.int16, "failed"), (np.int32, "ok"), (np.uint16, "ok")])
def test_indices_hold_the_samples_of_usual_training_sets(kind: type, status: str) -> None:
    """The largest has 60,000 samples."""
    own = partitioners(lambda *of: [part.astype(kind) for part in halves(*of)])
    assert findings(own, "indices")["indices"].status == status


# Models

IMAGES = Synthetic(channels=1, height=4, width=4)  # of 10 classes


class Net(nn.Module):
    """Flatten and a linear layer; subclasses change what lies between."""

    layers: Any = None

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.output = nn.Linear(16, classes)
        self.extend()

    def extend(self) -> None:
        """Add what a subclass needs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.hidden(x.flatten(1)))  # type: ignore[no-any-return]

    def hidden(self, x: Tensor) -> Tensor:
        return x


class Listed(Net):
    def extend(self) -> None:
        self.layers = [nn.Linear(16, 16)]

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0](x)  # type: ignore[no-any-return]


class Nested(Net):
    def extend(self) -> None:
        self.layers = {0: (nn.Linear(16, 16), "a name")}

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0][0](x)  # type: ignore[no-any-return]


class Scaled(Net):
    def extend(self) -> None:
        self.layers = torch.full((16,), 2.0, requires_grad=True)

    def hidden(self, x: Tensor) -> Tensor:
        return x * self.layers  # type: ignore[no-any-return]


class Closed(Listed):
    def extend(self) -> None:
        layer = nn.Linear(16, 16)
        self.layers = [lambda x: layer(x)]


class AlsoListed(Listed):
    """A list of layers that are parameters, and leaves that the forward pass makes."""

    def extend(self) -> None:
        self.first = nn.Linear(16, 16)
        self.layers = [self.first]

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x.clone().requires_grad_()) * torch.ones(16, requires_grad=True)


class Counts(Net):
    in_evaluation: ClassVar[bool] = True

    def extend(self) -> None:
        self.batches = 0

    def hidden(self, x: Tensor) -> Tensor:
        self.batches += 1
        return x * self.batches if self.training or self.in_evaluation else x


class CountsInTraining(Counts):
    in_evaluation = False


class InPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class Draws(Net):
    """Draws a number, which almost never changes the output."""

    def hidden(self, x: Tensor) -> Tensor:
        return x + (random.random() < 1e-9)


class DrawsUnseeded(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return x + np.random.default_rng().random()


class OwnSeed(Net):
    def extend(self) -> None:
        self.output.bias.data += float(np.random.rand())


class Unused(Net):
    def extend(self) -> None:
        self.unused = nn.Linear(3, 4)


class OtherOnMeta(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, : 4 if x.is_meta else 10]


class Infinite(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


class Own(Model):
    """Blocks that a function of the number of classes makes. stated: their names, if others."""

    make: Any
    stated: list[str] | None = None
    pairs: tuple[Any, ...] = ()

    @property
    def names(self) -> list[str]:
        return self.stated or [*self.made(10)]

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        return [*self.pairs]

    def made(self, classes: int) -> dict[str, nn.Module]:
        made = self.make(classes)
        return made if isinstance(made, dict) else {"model": made}

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Any:
        yield from self.made(classes).items()


def models(make: Callable[[int], Any], **fields: Any) -> Laws:
    return partial(model.laws, Own(make=make, **fields), IMAGES)


def sharing(classes: int) -> dict[str, nn.Module]:
    """The last block uses what the first has kept."""
    kept: list[Tensor] = []

    class Keeps(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            kept.append(x)
            return super().forward(x)

    class Uses(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * len(kept)

    return {"first": Keeps(), "second": nn.Identity(), "third": Uses(16, classes)}


def softmax_between(classes: int) -> dict[str, nn.Module]:
    """A softmax over all features, which no rank has."""
    layers = nn.Linear(16, 8), nn.Softmax(dim=1), nn.Linear(8, classes)
    return dict(zip(("flatten", "first", "softmax", "second"), (nn.Flatten(), *layers), strict=True))


def normalised(classes: int) -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes))  # changes buffers in training
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), norm)


def two_units(classes: int) -> dict[str, nn.Module]:
    return {"flatten": nn.Flatten(), "first": nn.Linear(16, 2), "second": nn.Linear(2, classes)}


MODELS: list[Fault] = [
    ("runs", "2 samples of shape 1×4×4.*infinite", models(Infinite)),
    ("classes", "9", models(lambda classes: Net(classes - 1))),
    ("names", "model from", models(Net, stated=["other"])),
    ("splits", "split before third", models(sharing)),
    ("shapes", r"\(10,\)", models(OtherOnMeta)),
    ("weights", "output.bias", models(OwnSeed)),
    ("draws", "from random", models(Draws)),
    ("draws", "other outputs", models(DrawsUnseeded)),
    ("repeats", "in evaluation", models(Counts)),
    ("repeats", "in training", models(CountsInTraining)),
    ("parameters", "Listed.layers: use nn.ModuleList", models(Listed)),
    ("parameters", "Nested.layers: use nn.ModuleDict", models(Nested)),
    ("parameters", "1 of its weights .* shape 16 in Scaled.layers: use nn.Parameter", models(Scaled)),
    ("parameters", "in no attribute", models(Closed)),
    ("gradients", "6 samples.*unused.weight, model.unused.bias", models(Unused)),
    ("samples", "6 samples.*declare batch_statistics", models(normalised)),
    ("norms", "False", models(normalised)),
    ("pairs", "2 ranks", models(softmax_between, pairs=(ParallelPair("first", "second", 8),))),
]


@pytest.mark.parametrize(
    ("law", "status", "text", "laws"),
    [
        ("parameters", "ok", "", models(AlsoListed)),
        ("repeats", "ok", "", models(InPlace)),
        ("repeats", "ok", "", models(normalised)),
        ("classes", "note", "3 outputs whatever the number of classes", models(lambda classes: Net(3))),
        ("classes", "ok", "", models(lambda classes: Net(classes + 1))),
        ("classes", "skipped", "(2, 1, 4, 4)", models(lambda classes: nn.Identity())),
        ("gradients", "skipped", "no parameters", models(lambda classes: nn.Flatten())),
        ("splits", "skipped", "one block", models(Net)),
        ("pairs", "ok", "", models(two_units, pairs=(ParallelPair("first", "second", 2),))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_fault_of_a_model(law: str, status: str, text: str, laws: Laws) -> None:
    found = findings(laws, law)[law]
    assert found.status == status
    assert text in found.reason
    assert law != "pairs" or found.inputs == 1  # 2 ranks, as many as units


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


def stepping(change: Callable[..., Any], equals: str | None = None, **members: Any) -> Laws:
    """The laws of an optimizer. change: what a step subtracts. members: other members of torch's class."""
    torchs = type("Changed", (Sgd,), {"change": change, **members})
    return partial(optimizer.laws, built_by(torchs, equals=equals))


def built_by(torchs: type[Sgd], **members: Any) -> Optimizer:
    return declaring(Optimizer, build=lambda self, weights, lr: torchs(weights, lr), **members)  # type: ignore[no-any-return]


def moving_all(self: Sgd, closure: Any = None) -> None:
    for group in self.param_groups:
        for weight in group["params"]:
            weight.data -= group["lr"]


def noise(self: Sgd, lr: float, weight: Any, number: int) -> Any:
    return lr * (weight.grad + torch.randn_like(weight))


OPTIMIZERS: list[Fault] = [
    ("runs", "1 step.*is as before", stepping(lambda self, lr, weight, _: 0 * weight.grad)),
    ("runs", "1 step.*nan", stepping(lambda self, lr, weight, _: weight.grad * np.nan)),
    ("curve", "1 step", stepping(lambda self, lr, weight, _: 2 * lr * weight.grad, equals="sgd")),
    ("descends", "20 steps", stepping(lambda self, lr, weight, _: -lr * weight.grad)),
    ("zero", "1 step", stepping(lambda self, lr, weight, _: lr * (weight.grad - 0.1 * weight))),
    ("skips", "1 step.*moved", stepping(Sgd.change, step=moving_all)),
    ("rate", "1 step.*param_groups", stepping(lambda self, lr, weight, _: self.first * weight.grad)),
    ("rate", "1 step.*by", stepping(lambda self, lr, weight, _: 0.01 * weight.grad)),
    ("state", "1 step", stepping(lambda self, lr, weight, _: lr / self.taken * weight.grad)),
    ("order", "1 step", stepping(lambda self, lr, weight, number: lr * (1 + number) * weight.grad)),
    ("layers", "layerwise", stepping(lambda self, lr, weight, _: lr * weight.grad / weight.grad.norm())),
    ("seeded", "1 step.*global random state", stepping(noise)),
]


def test_the_given_optimizer_comes_before_the_declared_one() -> None:
    own = built_by(Sgd, equals="sgd")
    for given, status in (("", "ok"), ("adam", "failed")):
        assert findings(partial(optimizer.laws, own, given), "curve")["curve"].status == status


# Losses


def losses(of: Callable[..., Any], **members: Any) -> Laws:
    """The laws of a subclass of Loss for outputs and targets of the same shape."""

    def of_loss(self: Loss, output: Tensor, target: Tensor, reduction: str = "mean") -> Any:
        return of(output, target, reduction)

    def output_error(self: Loss, output: Tensor, target: Tensor) -> str | None:
        return None if output.shape == target.shape and target.is_floating_point() else "other shapes"

    defaults = {"output_error": output_error, "right": lambda self, output, target: output[:, 0] * 0}
    return partial(loss.laws, declaring(Loss, **{"of": of_loss, **defaults, **members}))


def summed(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    mean = (output - target).square().mean()
    return mean if reduction == "mean" else mean * len(output)


def moving(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    value = summed(output, target, reduction)
    target += 1
    return value


def doubled(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return summed(2 * output - output.detach(), target, reduction)


UNFIT = FunctionLoss(function=functional.gaussian_nll_loss, accuracy=None)
LOSSES: list[Fault] = [
    ("runs", r"1 sample.*shape \(1, 3\)", losses(lambda output, target, _: (output - target).abs())),
    ("runs", "none of the 7 kinds.*var", partial(loss.laws, UNFIT)),
    ("mean", "2 samples", losses(lambda output, target, _: summed(output, target) * len(output))),
    ("sum", "2 samples", losses(lambda output, target, _: summed(output, target))),
    ("gradient", "1 sample", losses(doubled)),
    ("right", "1 sample.*2 to 2", losses(summed, right=lambda self, output, target: 2 + output[:, 0] * 0)),
    ("unchanged", "1 sample.*other ones", losses(moving)),
    ("shapes", "1 sample.*none", losses(summed, output_error=lambda self, output, target: None)),
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


def short(data: Data) -> Data:
    return Data(Split(data.train.inputs, data.train.labels[:9]), data.test, 2, None)


def first_ten(split: Split) -> Split:
    return Split(split.inputs[:10], split.labels[:10])


DATASETS: list[Fault] = [
    ("runs", "both splits.*ZeroDivisionError", datasets(lambda data: 1 / 0)),
    ("sizes", "9 training.*20 inputs, 9 labels", datasets(short)),
    ("stated", "10 training.*samples 10", datasets(lambda data: Data(data.test, data.test, 2, None))),
    ("stated", "20 training.*classes 3", datasets(lambda data: Data(data.train, data.test, 3, None))),
    ("labels", "2 of training sample 7", putting("train", "labels", 7, lambda: 2)),
    ("numbers", "nan in sample 3, column 1", putting("test", "inputs", (3, 1), lambda: np.nan)),
    ("again", "inputs of training sample 3", putting("train", "inputs", 3, np.random.rand)),
    ("process", "other ones", datasets(lambda data: None, lambda: "other")),
    (
        "apart",
        r"10 of 10 \(100 %\), such as test sample 0, which is training sample 0",
        datasets(lambda data: Data(data.train, first_ten(data.train), 2, None)),
    ),
]


@pytest.mark.parametrize(
    ("labels", "note"),
    [([1, 2, 3], "class 0: labels are 1 to 3"), ([0, 1, 2, 3], ""), ([0, 3], "class 1, 2:")],
    ids=str,
)
def test_classes_without_samples_are_noted(labels: list[int], note: str) -> None:
    inputs = np.arange(4 * len(labels), dtype=np.float32).reshape(-1, 4)
    data = Data(
        Split(inputs, np.array(labels)), Split(-1 - inputs, np.array(labels)), classes=4, scale=None
    )
    found = findings(lambda: dataset.laws(lambda: data, None, str), "runs", "labels")["labels"]
    assert (found.status, note in found.reason) == ("note" if note else "ok", True)


def test_a_few_samples_in_both_splits_are_noted() -> None:
    """Up to 5 % of those for tests."""
    for same, status in ((5, "note"), (6, "failed")):
        inputs = np.arange(1000, dtype=np.float32)[:, None]
        train, test = inputs[:900], inputs[900 - same : 1000 - same]
        splits = (Split(each, np.zeros(len(each), np.int64)) for each in (train, test))
        data = Data(*splits, classes=1, scale=None)
        found = findings(lambda data=data: dataset.laws(lambda: data, None, str), "runs", "apart")["apart"]
        assert found.status == status
        assert f"{same} of 100 ({same} %)" in found.reason + found.got


# Augmentations


def augmenting(augment: Callable[..., Any], channels: int = 1) -> Laws:
    own = declaring(Augmentation, build=lambda self, scale, device: augment)
    return partial(augmentation.laws, own, (channels, 4, 4))


def noisy(inputs: Tensor, rng: Any) -> Tensor:
    return inputs + float(rng.random())


AUGMENTATIONS: list[Fault] = [
    ("runs", "1 input of shape 1×4×4.*ndarray", augmenting(lambda inputs, rng: inputs.numpy())),
    ("shape", "1 input.*float64", augmenting(lambda inputs, rng: noisy(inputs, rng).double())),
    ("shape", "3×4×4.*another", augmenting(lambda inputs, rng: noisy(inputs, rng).contiguous(), 3)),
    ("argument", "1 input.*16 of 16", augmenting(lambda inputs, rng: inputs.add_(float(rng.random())))),
    ("seeded", "1 input.*global random state", augmenting(lambda inputs, rng: inputs + torch.rand(1))),
    ("changes", "64 inputs.*the same", augmenting(lambda inputs, rng: inputs.clone())),
    ("finite", "1 input.*infinite", augmenting(lambda inputs, rng: noisy(inputs, rng) / 0)),
]


@pytest.mark.parametrize(("least", "takes"), [(0.0, True), (0.5, False)])
def test_an_augmentation_takes_inputs_that_it_takes_for_every_seed(least: float, takes: bool) -> None:
    def augment(inputs: Tensor, rng: Any) -> Tensor:
        assert rng.random() >= least
        return inputs

    own = declaring(Augmentation, build=lambda self, scale, device: augment)
    assert augmentation.takes(own, (4,)) is takes


# All kinds

FAULTS = {
    "partitioner": PARTITIONERS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "loss": LOSSES,
    "dataset": DATASETS,
    "augmentation": AUGMENTATIONS,
}
NAMED = [
    pytest.param(*fault, id=f"{kind}-{fault[0]}") for kind, faults in FAULTS.items() for fault in faults
]


@pytest.mark.parametrize(("law", "text", "laws"), NAMED)
def test_a_fault_breaks_its_law(law: str, text: str, laws: Laws) -> None:
    found = findings(laws, "runs", law)
    assert {name for name, each in found.items() if each.status == "failed"} == {law}
    assert re.search(text, f"{found[law].input}: {found[law].got}")
    assert found[law].expected
    assert found[law].inputs > 0


@pytest.mark.parametrize("kind", FAULTS)
def test_every_law_has_a_fault_that_breaks_it(kind: str) -> None:
    *_, laws = FAULTS[kind][-1]
    unbroken = {law.name for law in laws()} - {law for law, *_ in FAULTS[kind]}
    assert unbroken <= {"declared"}  # which only notes

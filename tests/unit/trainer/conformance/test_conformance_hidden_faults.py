"""Faults of models, optimizers, partitioners and datasets that show only in use, and what is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainer.conformance import dataset, model, optimizer, partitioner
from trainer.conformance.law import Law, examine_all
from trainer.conformance.report import Finding
from trainer.data.base import Data, Indices, Labels, Partitioner, Split
from trainer.data.datasets.synthetic import Synthetic
from trainer.launch.threads import threads_in_torch
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer

IMAGES = Synthetic(channels=1, height=4, width=4)  # of 10 classes


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def findings(laws: Iterator[Law[Any]], *tried: str) -> dict[str, Finding]:
    """What some of the laws find, by their names."""
    chosen = (law for law in laws if law.name in tried)
    return {each.law: each for each in examine_all(chosen, Path(__file__).parent)}


# Models


class Net(nn.Module):
    """Flatten and a linear layer; subclasses change what lies between."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.hidden(x.flatten(1)))  # type: ignore[no-any-return]

    def hidden(self, x: Tensor) -> Tensor:
        return x


class Listed(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layers: Any = [nn.Linear(16, 16)]

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0](x)  # type: ignore[no-any-return]


class Nested(Listed):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layers = {0: (nn.Linear(16, 16), "a name")}

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0][0](x)  # type: ignore[no-any-return]


class Scaled(Listed):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layers = torch.full((16,), 2.0, requires_grad=True)

    def hidden(self, x: Tensor) -> Tensor:
        return x * self.layers  # type: ignore[no-any-return]


class Closed(Listed):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        layer = nn.Linear(16, 16)
        self.layers = [lambda x: layer(x)]


class AlsoListed(Listed):
    """A list of layers that are parameters, and leaves that the forward pass makes."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.first = nn.Linear(16, 16)
        self.layers = [self.first]

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0](x.clone().requires_grad_()) * torch.ones(16, requires_grad=True)  # type: ignore[no-any-return]


class Counts(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.batches = 0

    def hidden(self, x: Tensor) -> Tensor:
        self.batches += 1
        return x * self.batches


class CountsInTraining(Counts):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) if self.training else x


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


class Built(Model):
    """A model of one block, which a function of the number of classes builds."""

    build: Callable[..., nn.Module]

    @property
    def names(self) -> list[str]:
        return ["model"]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Any:
        yield "model", self.build(classes)


def of_model(build: Callable[..., nn.Module], *laws: str) -> dict[str, Finding]:
    return findings(model.laws(Built(build=build), IMAGES), *laws)


@pytest.mark.parametrize(
    ("build", "got"),
    [
        (Listed, "Listed.layers: use nn.ModuleList"),
        (Nested, "Nested.layers: use nn.ModuleDict"),
        (Scaled, "1 of its weights is none: one of shape 16 in Scaled.layers: use nn.Parameter"),
        (Closed, "in no attribute"),
    ],
)
def test_weights_outside_of_the_parameters_are_found(build: Callable[..., nn.Module], got: str) -> None:
    found = of_model(build, "parameters")["parameters"]
    assert (found.status, found.expected) == ("failed", "parameters only")
    assert got in found.got


def test_what_the_forward_pass_makes_is_no_weight() -> None:
    assert of_model(AlsoListed, "parameters")["parameters"].status == "ok"


def normalised(classes: int) -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes))  # changes buffers in training
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), norm)


@pytest.mark.parametrize(
    ("build", "got"),
    [(Counts, "in evaluation"), (CountsInTraining, "in training"), (InPlace, ""), (normalised, "")],
)
def test_state_between_batches_is_found(build: Callable[..., nn.Module], got: str) -> None:
    found = of_model(build, "repeats")["repeats"]
    assert found.status == ("failed" if got else "ok")
    assert got in found.got


@pytest.mark.parametrize(("build", "got"), [(Draws, "from random"), (DrawsUnseeded, "other outputs")])
def test_draws_of_the_forward_pass_are_found(build: Callable[..., nn.Module], got: str) -> None:
    assert got in of_model(build, "draws")["draws"].got


@pytest.mark.parametrize(
    ("build", "status", "text"),
    [
        (lambda classes: Net(classes - 1), "failed", "9"),
        (
            lambda classes: Net(3),
            "note",
            "3 outputs whatever the number of classes, and the dataset has 10",
        ),
        (lambda classes: Net(classes + 1), "ok", ""),
        (lambda classes: nn.Identity(), "skipped", "(2, 1, 4, 4)"),
    ],
)
def test_outputs_for_each_class(build: Callable[..., nn.Module], status: str, text: str) -> None:
    found = of_model(build, "classes")["classes"]
    assert found.status == status
    assert text in (found.got or found.reason)


def test_a_layer_without_parameters_needs_no_gradient() -> None:
    assert of_model(lambda classes: nn.Flatten(), "gradients")["gradients"].status == "skipped"


# Optimizers


@pytest.mark.parametrize(("sign", "status"), [(1, "ok"), (-1, "failed")])
def test_an_optimizer_that_ascends_is_found(sign: int, status: str) -> None:
    class Own(Optimizer):
        def build(self, weights: Any, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(weights, lr, maximize=sign < 0)

    found = findings(optimizer.laws(Own()), "runs", "zero", "descends")
    assert [each.status for each in found.values()] == ["ok", status, "ok"]


# Partitioners


@pytest.mark.parametrize(("kind", "status"), [(np.int16, "failed"), (np.int32, "ok"), (np.int64, "ok")])
def test_indices_hold_the_samples_of_usual_training_sets(kind: type, status: str) -> None:
    class Own(Partitioner):
        def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
            self.check(labels, parts)
            return [part.astype(kind) for part in np.array_split(rng.permutation(len(labels)), parts)]

    found = findings(partitioner.laws(Own()), "indices")["indices"]
    assert found.status == status
    assert ("int16" in found.got) == (status == "failed")


# Datasets


@pytest.mark.parametrize(
    ("labels", "note"),
    [([1, 2, 3], "class 0: labels are 1 to 3"), ([0, 1, 2, 3], ""), ([0, 3], "class 1, 2:")],
)
def test_classes_without_samples_are_noted(labels: list[int], note: str) -> None:
    inputs = np.arange(4 * len(labels), dtype=np.float32).reshape(-1, 4)
    splits = Split(inputs, np.array(labels)), Split(-1 - inputs, np.array(labels))
    data = Data(*splits, classes=4, scale=None)
    found = findings(dataset.laws(lambda: data, None, str), "runs", "labels")["labels"]
    assert found.status == ("note" if note else "ok")
    assert note in found.reason

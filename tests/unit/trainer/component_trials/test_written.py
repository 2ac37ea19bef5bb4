"""For mistakes by which a user's model, optimizer or loss is trained as something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit import written_components
from tests.unit.written_components import CLASSES, IMAGES, SHAPE
from trainer.component_trials import written
from trainer.data.base import Data, Split
from trainer.launch.threads import threads_in_torch
from trainer.user_components import dataset, loss, model, optimizer
from trainer.user_components.source import CODE, ImportFailure, Source

Forms = dict[str, Any]


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CODE, "")
    monkeypatch.setattr(written, "BUDGET_S", 100.0)  # on a busy machine, too
    with threads_in_torch(1):
        yield


def source(name: str) -> Source:
    file = Path(written_components.__file__)
    return Source(code="", folder=str(file.parent), module=file.name, attribute=name)


def samples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Samples in the order of their classes, as many files have them."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((17, *shape), np.float32)
    return torch.from_numpy(inputs), torch.arange(17) * CLASSES // 17


def forms(
    named: str = "Norm",
    steps: str = "two_rates",
    of: str = "plain",
    shape: tuple[int, ...] = SHAPE,
    **parameters: Any,
) -> Forms:
    """The components of a run as a sweep resolves them."""
    on = dataset.DatasetFacts(
        **dict(source("d")),
        train_samples=17,
        test_samples=17,
        shape=shape,
        input_type="float32",
        class_count=CLASSES,
        data="",
    )
    with_loss = loss.facts(source(of), parameters)
    return {
        "model": form(named, model.facts(source(named), {}, shape, CLASSES, samples(shape)[0])),
        "dataset": form("d", on),
        "optimizer": form(steps, optimizer.facts(source(steps), {})),
        "loss": {**form(of, with_loss), **parameters},
    }


def form(name: str, facts: Source) -> Forms:
    return {"name": name, "imported": facts.model_dump(mode="json")}


def few(shape: tuple[int, ...] = SHAPE) -> Data:
    """The samples in float64, in which rounding is small."""
    inputs, targets = samples(shape)
    split = Split(inputs.double().numpy(), targets.numpy())
    return Data(split, split, CLASSES, None)


def compare(**chosen: Any) -> str:
    return written.compare(forms(**chosen), *samples(chosen.get("shape", SHAPE)))


VECTORS = [
    "RepeatedReLU",
    "RepeatedLinear",
    "RepeatedNorm",
    "RepeatedDropout",
    "Norm",
    "Tied",
    "FrozenNorm",
    "FrozenNormInAChain",
    "NormFrozenInForward",
    "FrozenBody",
    "FrozenChain",
    "Unused",
    "Experts",
    "Integers",
    "Scalar",
    "WeightNorm",
    "Masked",
    "Average",
    "OwnForward",
    "Hooked",
    "Detached",
    "Probabilities",
    "Functional",
    "Noise",
    "Attention",
    "Double",
    "Mixed",
    "Complex",
]


@pytest.mark.parametrize("steps", ["two_rates", "by_dimensions"])
@pytest.mark.parametrize("named", VECTORS)
def test_models_are_trained_as_written(named: str, steps: str) -> None:
    assert "1 and 2 ranks" in compare(named=named, steps=steps)


@pytest.mark.parametrize("named", ["Views", "ChannelsLast", "Convolutions"])
def test_models_of_images_keep_their_memory_format(named: str) -> None:
    assert "1 and 2 ranks" in compare(named=named, steps="decays", shape=IMAGES)


@pytest.mark.parametrize("steps", ["decays", "only_the_last", "Sign"])
def test_optimizers_take_the_steps_of_their_function(steps: str) -> None:
    assert "1 and 2 ranks" in compare(named="FrozenBody", steps=steps)


@pytest.mark.parametrize(
    ("of", "parameters"),
    [
        ("weighted", {"weight": "weight_of_class"}),
        ("ignoring", {"weight": "counts"}),
        ("WeightedModule", {}),
    ],
)
def test_samples_count_by_the_weights_that_a_loss_declares(of: str, parameters: Forms) -> None:
    assert "1 and 2 ranks" in compare(of=of, **parameters)


@pytest.mark.parametrize("of", ["weighted", "ignoring", "added", "contrast"])
def test_losses_that_are_no_mean_over_samples_are_refused(of: str) -> None:
    with pytest.raises(ImportFailure, match=r"on 2 ranks.*weight"):
        compare(of=of)


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ("ReplacedAverage", "mean"),
        ("Half", "0.weight of type bfloat16"),
        ("Sparse", "words.weight has a sparse gradient"),
        ("Tuple", "a tuple of 2"),
        ("Listed", "parameters()"),
    ],
)
def test_models_that_cannot_be_trained_as_written_are_refused(named: str, part: str) -> None:
    with pytest.raises(ImportFailure) as raised:
        compare(named=named)
    assert part in str(raised.value)


@pytest.mark.parametrize(("steps", "part"), [("Rateless", "lr"), ("Closure", "closure")])
def test_optimizers_that_a_run_cannot_step_are_refused(steps: str, part: str) -> None:
    with pytest.raises(ImportFailure) as raised:
        compare(steps=steps)
    assert part in str(raised.value)


STRATEGIES: list[Forms] = [
    {"strategy": "all_gather", "nodes": 2},
    {"strategy": "reduce_broadcast", "nodes": 2},
    {"strategy": "parameter_server", "nodes": 3},
    {"strategy": "zero2", "nodes": 2},
    {"strategy": {"name": "gossip", "graph": "complete"}, "nodes": 2, "optimizer": "sgd"},
    {"strategy": {"name": "local_sgd", "sync_every": 1}, "nodes": 2, "optimizer": "sgd"},
]

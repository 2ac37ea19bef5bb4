"""Mistakes in laws of models and in what a run knows of users' models."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.laws import assert_faults, declaring, failing, imported
from trainer.components.facts import Source
from trainer.components.kind import NOWHERE, Few, On
from trainer.components.model import ImportedModel, ModelKind
from trainer.components.written import described
from trainer.core.user_code import TORCHVISION
from trainer.data.datasets.synthetic import Synthetic
from trainer.models.base import Model, ParallelPair
from trainer.models.layers.draws import Draws
from trainer.spec.registries import DATASETS

IMAGES = Synthetic(channels=1, height=4, width=4)  # of 10 classes


def net(
    hidden: Callable[..., Any] = lambda self, x: x, last: Callable[..., Any] = lambda x: x, **made: Any
) -> Callable[[int], nn.Module]:
    """A model of flat images by the number of classes. made: functions that make its other attributes."""

    def forward(self: Any, x: Tensor) -> Any:
        return last(self.output(hidden(self, x.flatten(1))))

    def model(classes: int) -> nn.Module:
        found: Any = declaring(nn.Module, forward=forward)()
        for name, make in {"output": lambda _: nn.Linear(16, classes), **made}.items():
            setattr(found, name, make(found))
        return found

    return model


def models(make: Callable[[int], Any], **more: Any) -> ModelKind:
    """A model of the blocks that a function makes."""

    def blocks(classes: int) -> dict[str, nn.Module]:
        made = make(classes)
        return made if isinstance(made, dict) else {"model": made}

    own = {"names": property(lambda self: [*blocks(10)]), **more}
    own = {"blocks": lambda self, shape, classes, generator: iter(blocks(classes).items()), **own}
    return ModelKind(declaring(Model, **own)(), On(dataset=IMAGES))


def stated(value: Any) -> Any:
    return property(lambda self: value)


def nets(*of: Any, **made: Any) -> ModelKind:
    return models(net(*of, **made))


def modules(called: Callable[..., nn.Module]) -> ModelKind:
    """The same of a user's module, tried without what a run knows of it."""
    return ModelKind(ModelKind.adapt(called, {}, NOWHERE), On(dataset=IMAGES))


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


def layer(*_: Any) -> nn.Module:
    return nn.Linear(16, 16)


def counting(self: Any, x: Tensor) -> Tensor:
    return x * self.calls.add_(1)


def sharing(classes: int) -> dict[str, nn.Module]:
    """The last block uses what the first has kept."""
    kept: list[Tensor] = []
    first, third = nn.Flatten(), nn.Linear(16, classes)
    first.register_forward_hook(lambda module, inputs, output: kept.append(output))
    third.register_forward_hook(lambda module, inputs, output: output * len(kept))
    return {"first": first, "second": nn.Identity(), "third": third}


def pair(units: int, between: nn.Module) -> ModelKind:
    def make(classes: int) -> dict[str, nn.Module]:
        first, second = nn.Linear(16, units), nn.Linear(units, classes)
        return {"flatten": nn.Flatten(), "first": first, "between": between, "second": second}

    return models(make, tensor_parallel_pairs=stated([ParallelPair("first", "second", units)]))


def normalised(classes: int) -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes))  # changes buffers in training
    return flat(nn.BatchNorm1d(16), norm)


FAULTS: dict[str, ModelKind] = {
    "runs: 2 samples of shape 1×4×4.*infinite": nets(last=lambda x: x / 0),
    "classes: 9": models(lambda classes: net()(classes - 1)),
    "names: model from": models(net(), names=stated(["other"])),
    "splits: split before third": models(sharing),
    r"shapes: \(10,\)": nets(last=lambda x: x[:, : 4 if x.is_meta else 10]),
    "weights: other weights .*equal.*fixed_weights = True": models(lambda _: flat(nn.LayerNorm(16))),
    "names: names without dots: '1.5'": models(lambda classes: {"1.5": net()(classes)}),
    "names: each name once: model 2 times": models(
        net(),
        names=stated(["model"] * 2),
        blocks=lambda *_: [("model", each) for each in flat(nn.Linear(16, 10))],
    ),
    "weights: model.own": nets(own=lambda _: nn.Parameter(torch.ones(2) * np.random.rand())),
    # It draws a number, which almost never changes the output.
    "draws: from random": nets(lambda self, x: x + (random.random() < 1e-9)),
    "draws: other outputs": nets(lambda self, x: x + np.random.default_rng().random()),
    "repeats: in evaluation": nets(counting, calls=lambda _: nn.Buffer(torch.zeros(()))),
    "repeats: in training": nets(
        lambda self, x: counting(self, x) if self.training else x, calls=lambda _: torch.zeros(())
    ),
    "parameters: use nn.ModuleList": nets(lambda self, x: self.mine[0](x), mine=lambda _: [layer()]),
    "parameters: Own.mine: use nn.ModuleDict": nets(
        lambda self, x: self.mine[0][0](x), mine=lambda _: {0: (layer(), "a name")}
    ),
    "parameters: 1 of its weights .* shape 16 in Own.mine: use nn.Parameter": nets(
        lambda self, x: x * self.mine, mine=lambda _: torch.ones(16, requires_grad=True)
    ),
    "parameters: in no attribute": nets(
        lambda self, x: self.mine[0](x), mine=lambda _: [partial(lambda own, x: own(x), layer())]
    ),
    "gradients: 6 samples.*unused.weight, model.unused.bias": nets(unused=layer),
    "samples: 6 samples.*declare batch_statistics": models(normalised),
    "norms: batch_statistics .*: False": models(normalised),
    "pairs: 2 ranks": pair(8, nn.Softmax(dim=1)),  # over all features, which no rank has
}


def reached(self: Any, x: Tensor) -> Any:
    """Uses a list of layers that are parameters, and leaves that the forward pass makes."""
    return self.all[0](x.clone().requires_grad_()) * torch.ones(16, requires_grad=True)


FIXED = {"fixed_weights": True}
SOUND: list[tuple[str, str, str, ModelKind]] = [
    ("parameters", "ok", "", nets(reached, one=layer, all=lambda self: [self.one])),
    ("repeats", "ok", "", nets(lambda self, x: x.mul_(2))),
    ("repeats", "ok", "", models(normalised)),
    ("classes", "note", "3 outputs whatever the number of classes", models(lambda classes: net()(3))),
    ("classes", "ok", "", models(lambda classes: net()(classes + 1))),
    ("classes", "skipped", "(2, 1, 4, 4)", models(lambda classes: nn.Identity())),
    ("gradients", "skipped", "no parameters", models(lambda classes: nn.Flatten())),
    ("splits", "skipped", "one block", nets()),
    ("pairs", "ok", "", pair(2, nn.Identity())),  # on 2 ranks, as many as units
    ("weights", "ok", "", models(lambda _: flat(nn.LayerNorm(16)), **FIXED)),
    ("weights", "ok", "", modules(lambda: declaring(nn.Flatten, **FIXED, own=nn.LayerNorm(1))())),
    ("samples", "skipped", "declares", modules(normalised)),
    ("splits", "ok", "", modules(normalised)),
    ("splits", "skipped", "its forward is not the chain of its children", modules(net(one=layer))),
]
DROPPING = modules(lambda classes: flat(nn.Dropout(), nn.Linear(16, classes)))
SOUND += [(law, "ok", "", DROPPING) for law in ("splits", "draws", "repeats", "samples")]


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, {"written"}, SOUND)


def loaded(called: Any) -> dict[str, Any]:
    """What a run knows of a user's model."""
    inputs = torch.randn(17, 4, generator=torch.Generator().manual_seed(0))
    few = Few(inputs, torch.zeros(17, dtype=torch.int64), np.zeros(17, np.int64))
    on = On(dataset=DATASETS.parse(described(17, shape=(4,), class_count=3)), few=few, loading=True)
    kind = ModelKind(ModelKind.adapt(called, {}, NOWHERE), on)
    kind.load()
    return kind.facts()


def replacing(self: Any, x: Tensor) -> Tensor:
    self.running_mean = 0.9 * self.running_mean
    return x


def blocks(self: Model, shape: Any, classes: int, generator: Any) -> Any:
    yield from {"first": nn.Dropout(), "last": nn.Linear(*shape, classes)}.items()


Own = declaring(Model, names=stated(["first", "last"]), blocks=blocks)  # it draws from torch's generator


def test_models_that_cannot_be_trained_are_refused() -> None:
    cases = {
        "weight | torch": lambda: nn.PReLU(init=np.random.rand()),
        "a tuple of 2 | one tensor": declaring(nn.Flatten, forward=lambda self, x: (x, x)),
        "takes 2 inputs": lambda classes: nn.Bilinear(4, 4, classes),
        "weight of type bfloat16": lambda classes: nn.Linear(4, classes).bfloat16(),
        "another tensor running_mean": lambda: declaring(nn.BatchNorm1d, forward=replacing)(4),
        "one, as `names` states | first from `blocks`": declaring(Own, names=stated(["one"])),
        "too small: (4,)": declaring(Own, validation_error=lambda self, shape: f"too small: {shape}"),
        "drawn from random": declaring(nn.Flatten, forward=lambda self, x: x * random.random()),
        "lazy": lambda classes: nn.LazyLinear(classes),
        "tuple | nn.Module": lambda: (0, 0),
        "class, or a function": nn.Linear(4, 3),
    }
    assert failing(cases, loaded) == {}


def test_models_of_torchvision_have_the_classes_of_the_sweep_or_of_the_dataset() -> None:
    def make(*, weights: Any = 1, progress: bool = True, **others: Any) -> nn.Module:
        return declaring(nn.Flatten, given=(weights, progress, others))()  # type: ignore[no-any-return]

    for parameters, classes in (({}, 3), ({"num_classes": 7}, 7)):
        own: Any = ModelKind.adapt(make, parameters, Source(module=TORCHVISION))
        assert own.build((4,), 3).given == (None, False, {"num_classes": classes})


def test_what_a_run_knows_of_a_model() -> None:
    """Its trained weights, those without a gradient, the buffers that change, and batches that it takes."""
    layers = nn.Linear(4, 8).requires_grad_(False), nn.BatchNorm1d(8), nn.Linear(8, 3), nn.Linear(2, 2)
    partly = declaring(nn.Sequential, forward=lambda self, x: self[2](self[1](self[0](x))))
    found = loaded(lambda: partly(*map(deepcopy, layers)))
    assert found["weights"] == 8 + 8 + 8 * 3 + 3 + 2 * 2 + 2
    assert found["unused"] == ["model.3.weight", "model.3.bias"]
    kept = ("running_mean", "running_var", "num_batches_tracked")
    assert found["statistics"] == [f"model.1.{each}" for each in kept]
    assert (found["fewest_samples"], found["types"]) == (2, {"float32": "model.1.weight"})
    assert (found["batch_statistics"], found["draws"], found["fixed_weights"]) == (True, False, False)


@pytest.mark.parametrize("called", [Own, lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 3))])
def test_blocks_that_draw_from_torch_have_a_stream_in_a_run(
    called: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "load", lambda self: called)
    own = imported(ImportedModel, imported(ImportedModel, loaded(called)).imported.model_dump(mode="json"))
    assert (own.draws, own.indivisible, own.is_plain) == (True, None, called is not Own)
    blocks = dict(own.blocks((4,), 3, torch.Generator()))
    assert [*blocks] == own.names == (["first", "last"] if called is Own else ["0", "1"])
    assert all(isinstance(each, Draws) for each in blocks.values())


def test_a_flag_of_an_imported_model_is_the_one_that_is_known_of_it() -> None:
    facts = ImportedModel.facts_model().model_fields.items()
    flags = [name for name, fact in facts if fact.annotation is bool]
    assert {"draws", "fixed_weights", "channels_last", "batch_statistics"} <= {*flags}
    for true in flags:
        known = {name: name == true for name in flags}
        own = imported(ImportedModel, {"names": ["model"], **known})
        assert {name: getattr(own, name) for name in flags} == known

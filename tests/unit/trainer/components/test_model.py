"""Mistakes in laws of models, in what a run knows of users' models, and in those that are registered."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.laws import assert_faults, assert_sound, findings
from trainer.components.facts import Source
from trainer.components.kind import NOWHERE, Few, On
from trainer.components.model import ImportedModel, ModelKind, ModuleModel
from trainer.core.user_code import TORCHVISION, ImportFailure
from trainer.data.base import Dataset
from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.text import Copy
from trainer.launch.threads import threads_in_torch
from trainer.models.base import Model, ParallelPair
from trainer.models.layers.draws import Draws
from trainer.models.layers.dropout import ChannelDropout, Dropout
from trainer.models.layers.residual import ResidualBlock
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.spec.registries import MODELS


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def declaring(base: type[Any], **members: Any) -> Any:
    """A subclass with these members."""
    return type("Own", (base,), {"__module__": __name__, **members})


# Laws: what is tried, by the law that it breaks and a pattern of the input and of what is found for it

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


def models(make: Callable[[int], Any], stated: Any = None, pairs: Any = (), **more: Any) -> ModelKind:
    """A model of the blocks that a function makes. stated: their names, if others."""

    def made(classes: int) -> dict[str, nn.Module]:
        made = make(classes)
        return made if isinstance(made, dict) else {"model": made}

    members = {
        "names": property(lambda self: stated or [*made(10)]),
        "tensor_parallel_pairs": property(lambda self: [*pairs]),
        "blocks": lambda self, shape, classes, generator: iter(made(classes).items()),
    }
    return ModelKind(declaring(Model, **{**members, **more})(), On(dataset=IMAGES))


def modules(called: Callable[..., nn.Module]) -> ModelKind:
    """The same of a user's module, tried without what a run knows of it."""
    return ModelKind(ModelKind.adapt(called, {}, NOWHERE), On(dataset=IMAGES))


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

    return models(make, pairs=(ParallelPair("first", "second", units),))


def constant(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(16))


def of_four(self: nn.LayerNorm) -> None:
    nn.LayerNorm.__init__(self, 4)


def dropping(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, classes))


def normalised(classes: int) -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes))  # changes buffers in training
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), norm)


FAULTS: dict[str, ModelKind] = {
    "runs: 2 samples of shape 1×4×4.*infinite": models(net(last=lambda x: x / 0)),
    "classes: 9": models(lambda classes: net()(classes - 1)),
    "names: model from": models(net(), stated=["other"]),
    "splits: split before third": models(sharing),
    r"shapes: \(10,\)": models(net(last=lambda x: x[:, : 4 if x.is_meta else 10])),
    "weights: other weights .*equal.*fixed_weights = True": models(constant),
    "names: names without dots: '1.5'": models(lambda classes: {"1.5": net()(classes)}),
    "names: each name once: model 2 times": models(
        net(),
        stated=["model", "model"],
        blocks=lambda *_: [("model", nn.Flatten()), ("model", nn.Linear(16, 10))],
    ),
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


SOUND: list[tuple[str, str, str, ModelKind]] = [
    ("parameters", "ok", "", models(net(reached, one=layer, all=lambda self: [self.one]))),
    ("repeats", "ok", "", models(net(lambda self, x: x.mul_(2)))),
    ("repeats", "ok", "", models(normalised)),
    ("classes", "note", "3 outputs whatever the number of classes", models(lambda classes: net()(3))),
    ("classes", "ok", "", models(lambda classes: net()(classes + 1))),
    ("classes", "skipped", "(2, 1, 4, 4)", models(lambda classes: nn.Identity())),
    ("gradients", "skipped", "no parameters", models(lambda classes: nn.Flatten())),
    ("splits", "skipped", "one block", models(net())),
    ("pairs", "ok", "", pair(2, nn.Identity())),  # on 2 ranks, as many as units
    ("weights", "ok", "", models(constant, fixed_weights=True)),
    (
        "weights",
        "ok",
        "",
        modules(lambda: declaring(nn.Flatten, fixed_weights=True, own=nn.LayerNorm(1))()),
    ),
    ("samples", "skipped", "declares", modules(normalised)),
    ("splits", "ok", "", modules(normalised)),
    ("splits", "skipped", "its forward is not the chain of its children", modules(net(one=layer))),
    *((law, "ok", "", modules(dropping)) for law in ("splits", "draws", "repeats", "samples")),
]


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"written"})


def test_what_is_no_fault_breaks_no_law() -> None:
    assert_sound(SOUND)


# Users' models


class Vectors(Dataset):
    train_samples = property(lambda self: 17)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 3)

    def load(self, data_dir: Any) -> Any:
        raise NotImplementedError


def loaded(called: Any) -> dict[str, Any]:
    """What a run knows of a user's model."""
    inputs = torch.randn(17, 4, generator=torch.Generator().manual_seed(0))
    few = Few(inputs, torch.zeros(17, dtype=torch.int64), np.zeros(17, np.int64))
    kind = ModelKind(ModelKind.adapt(called, {}, NOWHERE), On(dataset=Vectors(), few=few, loading=True))
    kind.load()
    return kind.facts()


class Linear(nn.Linear):
    def __init__(self, shape: Any, classes: int) -> None:
        super().__init__(*shape, classes)


class GlobalWeights(Linear):
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.bias.data.fill_(float(np.random.rand()))


class ReplacedBuffer(nn.BatchNorm1d):
    def forward(self, x: Any) -> Any:
        self.running_mean = 0.9 * self.running_mean
        return super().forward(x)


class Frozen(nn.Sequential):
    """Has a frozen layer, and one that it does not use."""

    def __init__(self, shape: Any, classes: int) -> None:
        frozen = nn.Linear(*shape, 8).requires_grad_(False)
        super().__init__(frozen, nn.BatchNorm1d(8), nn.Linear(8, classes), nn.Linear(2, 2))

    def forward(self, x: Any) -> Any:
        return self[2](self[1](self[0](x)))


class Own(Model):
    """Draws from torch's global generator."""

    names = property(lambda self: ["first", "last"])  # type: ignore[assignment]

    def blocks(self, shape: Any, classes: int, generator: Any) -> Any:
        yield from {"first": nn.Dropout(), "last": nn.Linear(*shape, classes)}.items()


def test_models_that_cannot_be_trained_are_refused() -> None:
    one = {"names": property(lambda self: ["one"]), "blocks": lambda self, *_: [("two", nn.Linear(4, 3))]}
    small = {**one, "validation_error": lambda self, shape: f"too small: {shape}"}
    cases = {
        "bias | torch": GlobalWeights,
        "a tuple of 2 | one tensor": declaring(Linear, forward=lambda self, x: (x, x)),
        "takes 2 inputs": lambda classes: nn.Bilinear(4, 4, classes),
        "weight of type bfloat16": lambda classes: nn.Linear(4, classes).bfloat16(),
        "another tensor running_mean": lambda: ReplacedBuffer(4),
        "one, as `names` states | two from `blocks`": declaring(Model, **one),
        "too small: (4,)": declaring(Model, **small),
        "drawn from random": declaring(Linear, forward=lambda self, x: x * random.random()),
        "blocks, names": Model,
        "lazy": lambda classes: nn.LazyLinear(classes),
        "tuple | nn.Module": lambda: (0, 0),
        "class, or a function": nn.Linear(4, 3),
    }
    for parts, called in cases.items():
        with pytest.raises(ImportFailure) as raised:
            loaded(called)
        assert [part for part in parts.split(" | ") if part not in str(raised.value)] == []
        assert "\n" not in str(raised.value)


def test_models_of_torchvision_have_the_classes_of_the_sweep_or_of_the_dataset() -> None:
    built: list[Any] = []

    def make(*, weights: Any = 1, progress: bool = True, **others: Any) -> nn.Module:
        built.append((weights, progress, others))
        return nn.Flatten()

    for parameters in ({}, {"num_classes": 7}):
        own = ModelKind.adapt(make, parameters, Source(module=TORCHVISION))
        assert isinstance(own, ModuleModel)
        own.build((4,), 3)
    assert built == [(None, False, {"num_classes": classes}) for classes in (3, 7)]


def test_what_a_run_knows_of_a_model() -> None:
    """Its trained weights, those without a gradient, the buffers that change, and batches that it takes."""
    found = loaded(Frozen)
    assert found["weights"] == 8 + 8 + 8 * 3 + 3 + 2 * 2 + 2
    assert found["unused"] == ["model.3.weight", "model.3.bias"]
    assert found["statistics"] == [
        f"model.1.{each}" for each in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert (found["fewest_samples"], found["types"]) == (2, {"float32": "model.1.weight"})
    assert (found["batch_statistics"], found["draws"], found["fixed_weights"]) == (True, False, False)


def imported(**known: Any) -> ImportedModel:
    return ImportedModel.model_validate({"name": "it", "imported": {"names": ["model"], **known}})


@pytest.mark.parametrize("called", [Own, lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 3))])
def test_blocks_that_draw_from_torch_have_a_stream_in_a_run(
    called: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "load", lambda self: called)
    own = imported(**ImportedModel(name="it", imported=loaded(called)).imported.model_dump(mode="json"))
    assert (own.draws, own.indivisible, own.is_plain) == (True, None, called is not Own)
    blocks = dict(own.blocks((4,), 3, torch.Generator()))
    assert [*blocks] == own.names == (["first", "last"] if called is Own else ["0", "1"])
    assert all(isinstance(each, Draws) for each in blocks.values())


def test_a_flag_of_an_imported_model_is_the_one_that_is_known_of_it() -> None:
    flags = [
        name for name, fact in ImportedModel.facts_model().model_fields.items() if fact.annotation is bool
    ]
    assert {"draws", "fixed_weights", "channels_last", "batch_statistics"} <= {*flags}
    for true in flags:
        known = {name: name == true for name in flags}
        assert {name: getattr(imported(**known), name) for name in flags} == known


# Registered models

SHAPE, CLASSES = (1, 28, 28), 10
SMALLER = {
    "wide_resnet": {"widen": 1},
    "gpt": {"layers": 1},
    "vgg_small": {"width": 4},
    "vit_small": {"layers": 1},
}
Blocks = list[tuple[str, nn.Module]]


def build(form: Any, seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> Blocks:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [*MODELS.parse(form).blocks(shape, classes, torch.Generator().manual_seed(5))]


def chain(blocks: Blocks) -> nn.Sequential:
    return nn.Sequential(*(block for _, block in blocks))


def images(batch: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def numbers(blocks: Blocks) -> int:
    return sum(each.numel() for each in chain(blocks).parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS.entries)
def test_a_model_keeps_all_laws(name: str) -> None:
    """On tokens or images, that are not square if it takes them; its blocks have names of identifiers."""
    model: Model = MODELS.parse({"name": name, **SMALLER.get(name, {})})
    sizes = [{"channels": 3, "height": 8, "width": 12}, {"channels": 3, "height": 28, "width": 28}]
    data = [Copy(length=4)] if model.takes_tokens else [Synthetic(**size) for size in sizes]
    dataset = next(each for each in data if not model.validation_error(each.shape))
    before = torch.get_rng_state()
    found = findings(ModelKind(model, On(dataset=dataset)))
    assert torch.equal(torch.get_rng_state(), before)
    assert [each for each in found.values() if each.status == "failed"] == []
    skipped = {law for law, each in found.items() if each.status == "skipped"}
    assert skipped <= {"samples", "pairs", "classes"}
    assert found["splits"].inputs == len(model.names) - 1
    assert all(each.isidentifier() for each in model.names)


def test_outputs_are_log_probabilities_also_of_one_sample() -> None:
    for name in (each for each in MODELS.entries if not MODELS.parse(each).takes_tokens):
        for channels, classes, batch in ((1, 10, 1), (3, 4, 2)):
            shape = (channels, 28, 28)
            form = {"name": name, **SMALLER.get(name, {})}
            output = chain(build(form, shape=shape, classes=classes))(images(batch, shape))
            assert (output.shape, output.dtype) == ((batch, classes), torch.float32), name
            torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(batch))


# Layers


def test_models_have_the_layers_of_the_labs_and_of_an_example() -> None:
    relu, pool, last = nn.ReLU(), nn.MaxPool2d(2), nn.LogSoftmax(dim=1)
    drop, channels = (kind(0.5, torch.Generator()) for kind in (Dropout, ChannelDropout))
    lenet = [nn.Conv2d(1, 10, 5), pool, relu, nn.Conv2d(10, 30, 5), pool, relu, drop, pool, nn.Flatten()]
    lenet5 = [nn.Conv2d(1, 6, 5, padding=2), relu, pool, nn.Conv2d(6, 16, 5), relu, pool, nn.Flatten()]
    lenet += [nn.Linear(120, 60), relu, nn.Linear(60, 10), last]
    lenet5 += [nn.Linear(400, 120), relu, nn.Linear(120, 10), last]
    mnist = [nn.Conv2d(1, 10, 5), pool, relu, nn.Conv2d(10, 20, 5), channels, pool, relu, nn.Flatten()]
    mnist += [nn.Linear(320, 50), relu, drop, nn.Linear(50, 10), last]  # as in the example of PyTorch
    vgg, convolution = list[nn.Module](), partial(nn.Conv2d, kernel_size=3, padding=1)
    for inputs, width in ((1, 32), (32, 64), (64, 128)):
        vgg += [convolution(inputs, width), relu, convolution(width, width), relu, pool]
    vgg += [nn.Flatten(), nn.Linear(128 * 3 * 3, 256), relu, drop, nn.Linear(256, 10), last]
    for name, expected in {"lenet": lenet, "lenet5": lenet5, "mnist_cnn": mnist, "vgg_small": vgg}.items():
        assert [repr(block) for _, block in build(name)] == [*map(repr, expected)]
        assert {each.probability for each in chain(build(name)) if isinstance(each, Dropout)} <= {0.5}


def test_models_have_the_published_numbers_of_parameters() -> None:
    """Of Wide ResNets: tables 4 and 5 of the paper, on CIFAR-10."""
    assert numbers(build("fedavg_cnn")) == 1_663_370
    assert numbers(build({"name": "mlp", "hidden": []}, shape=(3, 5, 4))) == 60 * 10 + 10
    of_mlp = numbers(build({"name": "mlp", "hidden": [9, 8]}, shape=(3, 5, 4)))
    assert of_mlp == 60 * 9 + 9 + 9 * 8 + 8 + 8 * 10 + 10
    for widen, blocks, parameters in ((2, 2, 0.7e6), (10, 4, 36.5e6)):
        with torch.device("meta"):
            form = {"name": "wide_resnet", "widen": widen, "blocks_per_group": blocks}
            assert numbers(build(form, shape=(3, 32, 32))) == pytest.approx(parameters, rel=0.02)


def test_models_of_fixed_size_reject_other_images() -> None:
    for name in ("fedavg_cnn", "lenet", "lenet5", "mnist_cnn"):
        model = MODELS.parse(name)
        assert model.validation_error((3, 28, 28)) is None
        for shape in ((3, 32, 32), (1, 28, 27)):
            assert f"28×28 pixels, not {shape[1]}×{shape[2]}" in (model.validation_error(shape) or "")


@pytest.mark.parametrize("name", ["vgg_small", "wide_resnet"])
def test_models_that_downsample_have_a_least_size_and_a_choice_of_norms(name: str) -> None:
    assert MODELS.parse(name).validation_error((3, 8, 9)) is None
    assert "8×8 pixels, not 9×7" in (MODELS.parse(name).validation_error((3, 9, 7)) or "")
    output = chain(build(name, shape=(3, 8, 9), classes=4))(images(1, (3, 8, 9)))
    assert output.shape == (1, 4)  # a batch of one sample, in training
    for norm, kind in {"batch": nn.BatchNorm2d, "sync_batch": SyncBatchNorm, "group": nn.GroupNorm}.items():
        model, blocks = MODELS.parse({"name": name, "norm": norm}), build({"name": name, "norm": norm})
        norms = [m for m in chain(blocks).modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
        assert {*map(type, norms)} == {kind}
        assert [block for block, _ in blocks] == model.names
        assert model.has_synchronous_layers == (norm == "sync_batch")
        assert model.batch_statistics == (norm != "group")


def test_residual_block_equals_the_formula_of_the_paper() -> None:
    for channels, stride in ((4, 1), (6, 1), (6, 2)):
        block, x = ResidualBlock(4, channels, stride, "batch").train(), images(5, (4, 9, 8))
        first = torch.relu(nn.BatchNorm2d(4)(x))
        second = torch.relu(nn.BatchNorm2d(channels)(block.conv1(first)))
        same = (channels, stride) == (4, 1)
        shortcut = x if same else block.shortcut(first)
        torch.testing.assert_close(block(x), shortcut + block.conv2(second))
        assert isinstance(block.shortcut, nn.Identity) == same


# Dropout


def test_dropout_drops_with_its_probability_and_keeps_the_mean() -> None:
    for probability in (0.1, 0.9):
        x = torch.ones(400, 500, requires_grad=True)
        dropped = Dropout(probability, torch.Generator().manual_seed(0))(x)
        kept = dropped[dropped > 0]
        assert kept.numel() / dropped.numel() == pytest.approx(1 - probability, abs=0.01)
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
        dropped.sum().backward()
        assert torch.equal(x.grad, dropped.detach())  # type: ignore[arg-type]


def test_dropout_draws_a_new_mask_each_time_from_its_own_generator_unless_it_is_off() -> None:
    ones = torch.ones(1000)
    first, second, other = (Dropout(0.5, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    drawn = first(ones)
    torch.manual_seed(0)
    again, later, others = second(ones), second(ones), other(ones)
    assert [torch.equal(each, drawn) for each in (again, later, others)] == [True, False, False]
    generator = torch.Generator().manual_seed(3)
    before, x = generator.get_state(), images()
    for off in (
        *(kind(0.5, generator).eval() for kind in (Dropout, ChannelDropout)),
        Dropout(0.0, generator),
    ):
        assert torch.equal(off(x), x)
    assert torch.equal(generator.get_state(), before)


def test_channel_dropout_drops_whole_channels_of_single_samples() -> None:
    drawn = []
    for memory in (torch.contiguous_format, torch.channels_last):
        ones = torch.ones(200, 50, 3, 4).contiguous(memory_format=memory)
        dropped = ChannelDropout(0.3, torch.Generator().manual_seed(0))(ones)
        factors = dropped[:, :, :1, :1]
        assert torch.equal(dropped, factors.expand_as(dropped))
        assert dropped.is_contiguous(memory_format=memory)
        drawn.append(dropped)
    assert torch.equal(*drawn)  # in any memory format
    kept = factors > 0
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7))
    assert kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.3 * 0.7 / 10_000) ** 0.5)
    assert len(torch.unique(kept.flatten(1), dim=0)) == 200  # no two samples lose the same channels

"""Mistakes in what is refused of users' components, and in what a run knows of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss, nll_loss, poisson_nll_loss
from torch.utils.data import IterableDataset

from trainer.components.facts import Source
from trainer.components.parameters import bound, defaults_left_out
from trainer.core.strategy import Strategy
from trainer.core.user_code import CODE, TORCHVISION, ImportFailure
from trainer.data.base import Data, DataError, Dataset, Partitioner, Split
from trainer.data.datasets import user_files
from trainer.losses.base import Loss
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.strategies.local_sgd import LocalSGD
from trainer.user_components import (
    augmentation,
    dataset,
    loss,
    model,
    optimizer,
    partitioner,
    strategy,
)

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE, "")


class Given(Source):
    """A source whose component is given, not imported."""

    called: Any

    def load(self) -> Any:
        return self.called


def given(called: Any, module: str = "mine.py") -> Given:
    return Given.model_construct(code="", folder="", module=module, attribute="it", called=called)


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(ImportFailure) as raised:
        work()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def failing(cases: dict[str, Any], tried: Callable[[Any], Any]) -> dict[str, str]:
    """Messages in which a part is missing. cases: the component by the parts of its message."""
    found = {parts: refused(lambda called=called: tried(called)) for parts, called in cases.items()}
    return {
        parts: message
        for parts, message in found.items()
        if not all(part in message for part in parts.split(" | "))
    }


def declaring(base: type[Any], **members: Any) -> Any:
    return type("Own", (base,), {"__module__": __name__, **members})


# Datasets


def load(called: Any, **parameters: Any) -> Data:
    return dataset.load_data(called, parameters, Path(), Path())


def good(samples: int = 60, classes: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, 4)), np.arange(samples) % classes


def labelled(*labels: int) -> Make:
    return lambda: (np.zeros((len(labels), 3)), np.array(labels))


def damaged(value: float, samples: int = 2, targets: bool = False, images: bool = False) -> Make:
    """Samples from 5 on have another value in one place."""
    found = np.ones((9, 2, 3, 3) if images else (9, 3)), np.ones((9, 1))
    found[targets][5 : 5 + samples, ..., -1] = value
    return lambda: found


def mixed(value: Any, kind: Any) -> Make:
    inputs = np.ones((9, 3), kind)
    inputs[4, 1] = value
    return lambda: (inputs, np.zeros(9, int))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield np.zeros(3), 0


class Stated(list[Any]):
    classes = ("a", "b")


def test_data_that_is_no_dataset_is_described() -> None:
    bunch = type("Bunch", (dict,), {})(data=1, target=2)
    forms = {
        "item 0 | (3,) | item 5 | (4,)": lambda: [(np.zeros(3 + (at > 4)), 0) for at in range(9)],
        "item 0 | tuple and length 3 | pair": lambda: [(np.zeros(3), 0, 1)] * 9,
        "Stream | map-style": Stream,
        "NoneType": lambda: None,
        "dict | x, y | pair of arrays (inputs, targets)": lambda: {"x": 1, "y": 2},
        "Bunch | target | return_X_y: true": lambda: bunch,
        "(list, list) | np.array": lambda: ([[0.5]] * 9, [0] * 9),
        "4 arrays | `train`": lambda: (*good(), *good()),
        "one array | (60, 4)": lambda: good()[0],
        "no samples": lambda: (np.zeros((0, 3)), np.zeros(0, int)),
        "9 inputs | 8 targets": lambda: (np.zeros((9, 3)), np.zeros(8, int)),
        "first dimension": lambda: (np.zeros(()), np.zeros(())),
        "(3,) | (4,)": lambda train: (np.zeros((9, 3 if train else 4)), np.zeros(9, int)),
        "it has 1 samples": lambda: good(1),
    }
    numbers = {
        "inputs | nan in sample 5, column 2, the first of 2 in 2 samples": damaged(np.nan),
        "nan in sample 5, column 2; expected": damaged(np.nan, samples=1),
        "infinite | sample 5, index [0, 0, 2] | of 12 in 2 samples": damaged(np.inf, images=True),
        "targets | nan in sample 5, column 0": damaged(np.nan, targets=True),
        "inputs in float32 | inf in sample 5, column 2": damaged(1e300),
        "<U4 | 'word' in sample 0, column 0 | numbers": lambda: (np.full((9, 3), "word"), np.zeros(9, int)),
        "object | 'missing' in sample 4, column 1": mixed("missing", object),
        "inputs hold 9223372036854775808 in sample 4, column 1 | int64": mixed(2**63, np.uint64),
    }
    classes = {
        "sample 0 has the label -1; allowed: 0 to 999, or floating-point": labelled(-1, 0, 1),
        "sample 1 has the label -3, the first of 2;": labelled(0, -3, -2),
        "sample 2 has the label 1000;": labelled(0, 999, 1000),
        "sample 1 has the label 2; allowed: 0 to 1": lambda: Stated([(np.zeros(3), 0), (np.zeros(3), 2)]),
    }
    assert failing(forms | numbers | classes, load) == {}
    assert load(labelled(0, 999)).classes == 1000
    assert load(lambda: Stated([(np.zeros(3), 0)] * 3)).classes == 2


def test_a_share_of_the_samples_is_the_test_split() -> None:
    """It is rounded, and each split has a sample. Both keep the order of the samples."""
    for count, share, tests in ((10, 0.25, 2), (10, 0.26, 3), (10, 0.01, 1), (10, 0.99, 9), (2, 0.5, 1)):
        samples = np.arange(count)[:, None], np.zeros(count, int)
        data = load(lambda samples=samples: samples, test_share=share, split_seed=3)
        train, test = data.train.inputs[:, 0].tolist(), data.test.inputs[:, 0].tolist()
        assert (len(train), len(test)) == (count - tests, tests)
        assert (sorted(train), sorted(test), sorted(train + test)) == (train, test, [*range(count)])
        assert tests == count - 1 or test == sorted(np.random.default_rng(3).permutation(count)[:tests])
    for name, values in (("test_share", (0, 1, 1.5, "half", True)), ("split_seed", (-1, 0.5))):
        for value in values:
            assert name in refused(lambda chosen={name: value}: load(good, **chosen))


def test_the_samples_of_a_dataset() -> None:
    """Copies in types of torch, with the classes of both splits, and the pixels of images from 0 to 1."""
    inputs, labels = np.arange(24).reshape(4, 6), np.array([0, 1, 0, 1])
    data = load(lambda train: (inputs, labels if train else labels + 1))
    inputs[:] = 0
    labels[:] = 9
    assert (data.train.inputs[-1, -1], data.train.labels.tolist(), data.classes) == (23, [0, 1, 0, 1], 3)
    assert data.scale is None

    images = np.linspace(-1, 3, 2 * 3 * 4, dtype=np.float64).reshape(2, 1, 3, 4)
    data = load(lambda train: (images, np.zeros((2, 1))))
    assert (data.train.inputs.dtype, data.classes, data.train.labels.tolist()) == (np.float32, 1, [0, 0])
    pixels = data.train.inputs * data.scale.deviation + data.scale.mean  # type: ignore[union-attr]
    assert (pixels.min(), pixels.max()) == (0, pytest.approx(1))


def test_the_digest_is_that_of_both_splits_with_their_types() -> None:
    def split(inputs: Any, label: int = 0) -> Split:
        return Split(inputs, np.full(2, label))

    zeros = np.zeros((2, 3), np.float32)
    others = [split(each) for each in (zeros, zeros + 1, zeros.astype(int), zeros[:, :2])]
    pairs = [*((split(zeros), other) for other in (*others, split(zeros, 1))), (others[1], others[0])]
    assert len({dataset.digest(Data(*pair, 2, None)) for pair in pairs}) == len(pairs)


def test_samples_of_a_subclass_are_those_that_it_states() -> None:
    def of(**test: Any) -> Any:
        inputs, labels = np.ones((9, 3), test.pop("kind", np.float32)), np.arange(9) % 2
        data = Data(Split(inputs, labels), Split(**{"inputs": inputs, "labels": labels, **test}), 2, None)
        stated = {"train_samples": 9, "shape": (3,), "class_count": 2}
        members = {name: property(lambda self, value=value: value) for name, value in stated.items()}
        return declaring(Dataset, **members, load=lambda self, data_dir: data)

    cases = {
        "test inputs | nan in sample 0, column 0": of(inputs=np.full((9, 3), np.nan, np.float32)),
        "2 of test sample 0, the first of 9 | 0 to 1": of(labels=np.full(9, 2)),
        "type int64 | type float32, as stated": of(kind=int),
    }
    assert failing(cases, lambda called: dataset.facts(given(called), {}, Path())) == {}


def test_files_are_below_the_directory_of_the_sweep_file_or_the_data_directory(tmp_path: Path) -> None:
    sweep, data = tmp_path / "sweep", tmp_path / "data"
    for number, place in enumerate((sweep, data)):
        place.mkdir()
        np.savez(place / "both.npz", x=np.full((2, 1), number), y=np.zeros(2, int))
    np.savez(data / "other.npz", x=np.full((2, 1), 2), label=np.zeros(2, int))
    np.savez(data / "objects.npz", x=np.array([None] * 2), y=np.zeros(2, int))
    np.save(data / "one.npy", np.zeros(2))
    (data / "no_array.npz").write_text("no array")
    for name in ("empty/notes.txt", "filled/one.png", ".git/config"):
        (data / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (data / "images" / name).touch()

    def read(path: str, **names: str) -> Any:
        return user_files.npz(path, sweep, data, **names)[0][0, 0]

    assert (read("both.npz"), read("other.npz", targets="label")) == (0, 2)  # the sweep's come first
    np.save(sweep / "two.npy", np.ones(2))
    np.testing.assert_array_equal(user_files.npy("one.npy", "two.npy", sweep, data), [[0, 0], [1, 1]])
    cases = {
        "gone.npz | data directory": "gone.npz",
        "../a.npz | --data-dir": "../a.npz",
        f"{data}/both.npz | --data-dir": f"{data}/both.npz",
        "'y' | x, label": "other.npz",
        "'x' | objects.npz | numbers": "objects.npz",
        "no_array.npz": "no_array.npz",
        "one.npy | npy": "one.npy",
        "images | is a directory": "images",
    }
    assert failing(cases, read) == {}
    for path, text in (("images", "no image in empty;"), ("both.npz", "must be a directory")):
        assert text in refused(lambda path=path: user_files.image_folder(path, sweep, data))


# Models


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


def model_facts(called: Any, source: Source | None = None) -> Any:
    inputs = torch.randn(17, 4, generator=torch.Generator().manual_seed(0))
    return model.facts(source or given(called), {}, (4,), 3, inputs)


def test_models_that_cannot_be_trained_are_refused() -> None:
    two = {"names": property(lambda self: ["one"]), "blocks": lambda self, *_: [("two", nn.Linear(4, 3))]}
    cases = {
        "bias | torch": GlobalWeights,
        "a tuple of 2 | one tensor": declaring(Linear, forward=lambda self, x: (x, x)),
        "takes 2 inputs": lambda classes: nn.Bilinear(4, 4, classes),
        "weight of type bfloat16": lambda classes: nn.Linear(4, classes).bfloat16(),
        "another tensor running_mean": lambda: ReplacedBuffer(4),
        "one, as `names` states | two from `blocks`": declaring(Model, **two),
        "blocks, names": Model,
        "lazy": lambda classes: nn.LazyLinear(classes),
        "tuple | nn.Module": good,
        "class, or a function": nn.Linear(4, 3),
    }
    assert failing(cases, model_facts) == {}


def test_models_of_torchvision_have_the_classes_of_the_sweep_or_of_the_dataset() -> None:
    built: list[Any] = []

    def make(*, weights: Any = 1, progress: bool = True, **others: Any) -> nn.Module:
        built.append((weights, progress, others))
        return nn.Flatten()

    for parameters in ({}, {"num_classes": 7}):
        model.build(make, parameters, given(make, TORCHVISION), (4,), 3)
    assert built == [(None, False, {"num_classes": classes}) for classes in (3, 7)]


def test_what_a_run_knows_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trained weights, those without a gradient, the buffers that change, and batches that it takes."""
    source = Source(code="", folder="", module="mine.py", attribute="Frozen")
    monkeypatch.setattr(Source, "load", lambda self: Frozen)
    found = model_facts(Frozen, source)
    assert found.weights == 8 + 8 + 8 * 3 + 3 + 2 * 2 + 2
    assert found.unused == ["model.3.weight", "model.3.bias"]
    assert found.statistics == [
        f"model.1.{each}" for each in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert (found.fewest_samples, found.types) == (2, {"float32": "model.1.weight"})


# Losses


def function(of: Make, **others: Any) -> loss.FunctionLoss:
    return loss.FunctionLoss(**{"function": of, "accuracy": None, **others})


def test_losses_that_cannot_be_computed_are_refused() -> None:
    assert "does not define the method of" in refused(lambda: loss.build(given(Loss), {}))
    assert "output, target" in refused(lambda: loss.build(given(lambda output: output), {}))
    assert "accuracy is 3" in refused(lambda: loss.build(given(nll_loss), {"accuracy": 3}))


def test_what_is_wrong_with_weights_of_samples() -> None:
    for weight, error in (
        (None, "None"), (torch.clone, "None"), (torch.neg, "-2 to -0; expected: weights from 0"),
        (torch.zeros_like, "0 to 0"), (torch.log, "-inf to"), (sum, "weights of type Tensor and shape ()"),
    ):  # fmt: skip
        found = loss.weights_error(function(mse_loss, weight=weight), torch.tensor([0.0, 1, 2]))
        assert error in str(found)


def test_the_accuracy_that_a_sweep_names_comes_before_that_of_a_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss, "_named", lambda *_: "named")
    own = declaring(nn.Flatten, right="own", weights="own")
    for parameters, comes in (({}, "own"), ({"accuracy": "a", "weight": "w"}, "named")):
        monkeypatch.setattr(loss, "FunctionLoss", lambda **found: found)
        built: Any = loss.build(given(own), parameters)
        assert (built["accuracy"], built["weight"]) == (comes, comes)


def test_a_loss_that_rounds_floating_point_targets_takes_them_as_classes() -> None:
    classes, shares = torch.tensor([0.0, 1, 2, 1]), torch.tensor([0.0, 1, 1, 0])
    output = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for of, scores, target, rounds in (
        (lambda x, y: cross_entropy(x, y.long()), output, classes, True),
        (cross_entropy, output, classes, True),  # it takes whole numbers alone
        (mse_loss, output[:, 0], classes, False),
        (l1_loss, output[:, 0], classes, False),
        (poisson_nll_loss, output[:, 0], classes, False),
        (nn.BCELoss(), output[:, 0].sigmoid(), shares, False),  # targets of 0 to 1
    ):
        assert bool(loss.rounded_error(function(of), scores, target)) is rounds


# Optimizers, strategies, partitioners and augmentations


class Langevin(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            weight.data += torch.randn_like(weight)


def half_a_rate(weights: Any, lr: float) -> Any:
    first, *others = weights
    made = torch.optim.SGD([{"params": [first]}, {"params": others}], lr=lr)
    del made.param_groups[1]["lr"]
    return made


def test_optimizers_that_cannot_step_are_refused() -> None:
    cases = {
        "lr": lambda weights: torch.optim.SGD(weights, 0.1),
        "groups of parameters have no lr": half_a_rate,
        "method step": type("Unstepped", (torch.optim.Optimizer,), {}),
        "closure": lambda weights, lr: torch.optim.LBFGS(weights, lr),
        "global random state | torch.Generator": lambda weights, lr: Langevin(weights, lr),
        "float | torch.optim.Optimizer": lambda weights, lr: lr,
        "does not define the method build": Optimizer,
    }
    assert failing(cases, lambda called: optimizer.facts(given(called), {})) == {}


class InRounds(LocalSGD):
    parts_of_work = property(lambda self: 7)  # type: ignore[assignment]
    micro_batch_count = property(lambda self: 3)  # type: ignore[assignment]


def test_what_a_run_knows_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        "does not define the method train": declaring(Strategy, transports=("gloo",)),
        "declares no transports": declaring(Strategy, train=lambda self, session: None),
        "no subclass of trainer.core.strategy.Strategy": good,
    }
    assert failing(cases, lambda called: strategy.facts(given(called), {}, 2, None, 8)) == {}
    mean = refused(lambda: strategy.facts(given(InRounds), {"aggregation": "median"}, 2, None, 8))
    assert "aggregation: mean" in mean

    monkeypatch.setattr(Source, "load", lambda self: InRounds)
    source = Source(code="", folder="", module="mine.py", attribute="InRounds")
    parameters = {"local_steps": 3, "participation": {"fraction": 0.5}}
    found = strategy.facts(source, parameters, 2, None, 8)
    assert (found.parts_of_work, found.micro_batch_count, found.replica_of) == (7, 3, [0, 1])
    imported = strategy.ImportedStrategy.model_validate({"name": "it", "imported": found})
    assert (imported.parts_of_work, imported.micro_batch_count, imported.replicas(2)) == (7, 3, 2)
    assert (imported.rounds.steps, imported.rounds.participation.fraction) == (3, 0.5)  # type: ignore[union-attr]
    assert "tried for 2 ranks, and the run has 3" in (imported.validation_error(None, 3, 8) or "")
    assert strategy.facts(source, {}, 2, None, 8).rounds is None


def test_a_flag_of_an_imported_component_is_the_one_that_is_known_of_it() -> None:
    place = {"code": "", "folder": "", "module": "mine.py", "attribute": "it"}
    for kind, needed in (
        (partitioner.ImportedPartitioner, {}),
        (optimizer.ImportedOptimizer, {}),
        (loss.ImportedLoss, {"accuracy_is": None}),
        (model.ImportedModel, {"blocks": ["model"]}),
    ):
        fields = kind.model_fields["imported"].annotation.model_fields  # type: ignore[attr-defined]
        flags = [name for name, field in fields.items() if field.annotation is bool and hasattr(kind, name)]
        for true in flags:
            known = {name: name == true for name in flags}
            own = kind.model_validate({"name": "it", "imported": {**place, **needed, **known}})
            assert {name: getattr(own, name) for name in flags} == known


def test_imported_components_name_errors_and_other_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(code="", folder="", module="mine.py", attribute="it")
    monkeypatch.setattr(Source, "load", lambda self: good)
    known, before = dataset.facts(source, {}, Path())
    own = dataset.ImportedDataset(name="it", imported=known)
    np.testing.assert_array_equal(own.load(Path()).train.inputs, before.train.inputs)
    declared = partitioner.PartitionerFacts(**dict(source), **dict.fromkeys(partitioner.FLAGS, True))
    splits = partitioner.ImportedPartitioner(name="it", imported=declared)
    for called, work, error in (
        (lambda: good(59), lambda: own.load(Path()), "it: gives other samples"),
        (lambda: 1 / 0, lambda: own.load(Path()), "it: .*ZeroDivisionError"),
        (lambda labels, parts: 1 / 0, lambda: splits.partition(None, 2, None), "it: .*ZeroDivisionError"),
    ):
        monkeypatch.setattr(Source, "load", lambda self, called=called: called)
        with pytest.raises(DataError, match=error):
            work()


def test_partitioners_and_augmentations_are_tried() -> None:
    labels, inputs = np.zeros(8, np.int64), torch.ones(17, 4)
    cases = {
        "global random state | rng": lambda labels, parts, rng: [*np.random.permutation(8).reshape(2, 4)],
        "1 parts; expected: 2 parts": lambda labels, parts, rng: [np.arange(len(labels))],
        "does not define the method partition": Partitioner,
    }
    assert failing(cases, lambda called: partitioner.facts(given(called), {}, labels, 2)) == {}
    cases = {
        "other inputs when global random state differs | rng": lambda inputs, rng: inputs + torch.rand(1),
        "new inputs": lambda inputs, rng: inputs.add_(1),
        "(17, 2) | (17, 4)": lambda inputs, rng: inputs[:, :2],
    }
    assert failing(cases, lambda called: augmentation.facts(given(called), {}, inputs, None)) == {}
    for takes, called in (
        (True, lambda labels, parts, generator: 0),
        (False, lambda labels, parts, first=0: 0),
        (True, lambda labels, parts, rng=None: 0),
        (False, lambda labels, parts: 0),
    ):
        assert partitioner.takes_generator(called) is takes


def test_parameters_that_equal_the_defaults_are_left_out() -> None:
    def own(labels: Any, sizes: tuple[int, ...] = (8, 9), share: float = 0.1) -> None:
        pass

    assert defaults_left_out(own, {"sizes": [8, 9], "share": 0.1, "other": 1}) == {"other": 1}
    assert defaults_left_out(own, {"sizes": [8], "share": 0.2}) == {"sizes": [8], "share": 0.2}
    assert defaults_left_out(LocalSGD, {"local_steps": 10, "weighting": "equal"}) == {"weighting": "equal"}
    assert bound(own, {"share": 0.2}, ("labels",)).keywords == {"share": 0.2}  # type: ignore[attr-defined]

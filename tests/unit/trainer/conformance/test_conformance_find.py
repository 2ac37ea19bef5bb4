"""Which components `check` finds: classes that lack a method among them, and kinds that can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.conformance.check import data_label, laws_of, left_out, on_data
from trainer.conformance.find import components, kind_of, stated_kind
from trainer.conformance.law import examine_all
from trainer.conformance.report import CheckRequest
from trainer.user_components.source import CODE, TORCHVISION, ImportFailure, Source

IMPORTS = (
    "from abc import abstractmethod\n"
    "from torch import nn\n"
    "from trainer.core.strategy import Strategy\n"
    "from trainer.data.base import Partitioner\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with a name of its own, so that each test imports its own mine.py."""
    monkeypatch.setenv(CODE, str(tmp_path))
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(IMPORTS + text)


def test_a_class_that_lacks_a_method_is_a_component_that_fails(folder: Path) -> None:
    write(
        folder,
        "class Typo(Partitioner):\n    def partiton(self, labels, parts, rng): pass\n"
        "class NoTrain(Strategy):\n    transports = ('memory',)\n",
    )
    found = [*components(folder, "mine.py")]
    assert found == [("partitioner", "Typo"), ("strategy", "NoTrain")]
    for (kind, name), method in zip(found, ("partition", "train"), strict=True):
        request = CheckRequest(kind=kind, directory=str(folder), module="mine.py", attribute=name)
        with pytest.raises(ImportFailure, match=rf"does not define the method {method}$"):
            [*laws_of(request)]


def test_a_class_that_is_abstract_on_purpose_is_left_out(folder: Path) -> None:
    write(
        folder,
        "class Base(Partitioner): pass\n"
        "class Own(Base):\n    def partition(self, labels, parts, rng): pass\n"
        "class _Hidden(Partitioner): pass\n"
        "class Template(Partitioner):\n"
        "    @abstractmethod\n    def order(self, labels): pass\n",
    )
    assert [*components(folder, "mine.py")] == [("partitioner", "Own")]


def test_a_module_of_output_and_target_is_a_loss(folder: Path) -> None:
    write(
        folder,
        "class Focal(nn.Module):\n    def forward(self, output, target): pass\n"
        "class Net(nn.Module):\n    def forward(self, x): pass\n"
        "class Untold(nn.Module): pass\n",
    )
    assert [*components(folder, "mine.py")] == [("loss", "Focal"), ("model", "Net"), ("model", "Untold")]


def test_torchvision_has_models(folder: Path) -> None:
    source = Source(code="", folder=str(folder), module=TORCHVISION, attribute="resnet18")
    assert kind_of(source.load()) is None
    assert stated_kind(source, "") == "model"


def request_for(folder: Path, kind: str, name: str, module: str = "mine.py") -> CheckRequest:
    return CheckRequest(kind=kind, directory=str(folder), module=module, attribute=name)


BESIDE = (
    "import torch\n"
    "class Words(torch.utils.data.Dataset):\n"
    "    def __init__(self, train: bool): self.size = 40 if train else 10\n"
    "    def __len__(self): return self.size\n"
    "    def __getitem__(self, at): return torch.tensor([at % 7] * 5), at % 2\n"
    "class Broken(torch.utils.data.Dataset):\n"
    "    def __init__(self, train: bool): raise ValueError('no files')\n"
)


@pytest.mark.parametrize(
    ("takes", "layer", "data"),
    [
        ("", "nn.Flatten()", "digits"),
        (", shape", "nn.Linear(*shape, 3)", "vectors"),
        ("", "nn.Conv2d(3, 4, 3)", "synthetic channels=3 height=32 width=32"),
    ],
)
def test_a_model_is_tried_on_what_it_takes(folder: Path, takes: str, layer: str, data: str) -> None:
    write(folder, f"class It(nn.Sequential):\n    def __init__(self{takes}): super().__init__({layer})\n")
    chosen = on_data(request_for(folder, "model", "It"))
    assert data_label(chosen.dataset or {}) == data
    assert next(examine_all(laws_of(chosen), folder)).status == "ok"


def test_components_are_tried_on_the_datasets_of_their_file(folder: Path) -> None:
    write(
        folder,
        f"{BESIDE}"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(15, classes))\n"
        "class Image(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Conv2d(1, 4, 3))\n"
        "def swapped(inputs, rng): return inputs[:, rng.permutation(inputs.shape[1])]\n"
        "def flipped(inputs, rng): return inputs.flip(3) if rng.random() < 0.5 else inputs.clone()\n",
    )
    chosen = {
        name: on_data(request_for(folder, kind, name)).dataset
        for kind, name in (
            ("model", "Net"),
            ("model", "Image"),
            ("augmentation", "swapped"),
            ("augmentation", "flipped"),
        )
    }
    assert {name: form and data_label(form) for name, form in chosen.items()} == {
        "Net": "Words",
        "Image": "digits",
        "swapped": "Words",
        "flipped": None,  # it takes images, as does noise
    }
    (runs, *_) = examine_all(laws_of(on_data(request_for(folder, "augmentation", "swapped"))), folder)
    assert runs.status == "ok"
    assert runs.inputs == 2


@pytest.mark.slow
def test_a_model_of_torchvision_needs_no_option(folder: Path) -> None:
    chosen = on_data(request_for(folder, "model", "resnet18", TORCHVISION))
    assert data_label(chosen.dataset or {}).startswith("synthetic channels=3")


def test_a_model_that_takes_none_of_the_data_is_shown_all_and_the_option(folder: Path) -> None:
    write(
        folder,
        f"{BESIDE}class Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Conv2d(5, 4, 3))\n",
    )
    with pytest.raises(ImportFailure) as failure:
        [*laws_of(on_data(request_for(folder, "model", "Net")))]
    for data in ("on Words: ", "on Broken: mine.py", "ValueError: no files", "on digits", "on vectors"):
        assert data in str(failure.value)
    assert "5 channels" in str(failure.value)
    assert str(failure.value).endswith("--dataset takes another dataset")


def test_the_same_failure_on_all_data_is_shown_once(folder: Path) -> None:
    write(folder, "class Net(nn.Module):\n    def forward(self, x): return x.nothing\n")
    with pytest.raises(ImportFailure) as failure:
        [*laws_of(on_data(request_for(folder, "model", "Net")))]
    assert str(failure.value).count("AttributeError") == 1
    assert "on digits, vectors, synthetic" in str(failure.value)


@pytest.mark.parametrize(
    ("returned", "checked"),
    [
        ("(output - target).abs() <= 0.3", False),  # measures each answer
        ("output.argmax(1) == target", False),
        ("((output - target) ** 2).mean()", True),
        ("(output - target) ** 2", True),  # it lacks the mean, and fails `runs`
    ],
)
def test_functions_that_measure_accuracy_are_no_losses(folder: Path, returned: str, checked: bool) -> None:
    write(folder, f"def it(output, target): return {returned}\n")
    reason = left_out(request_for(folder, "loss", "it"))
    assert (reason is None) == checked

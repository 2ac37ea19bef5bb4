"""Which components `check` finds: classes that lack a method among them, and kinds that can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.conformance.check import laws_of
from trainer.conformance.find import components, kind_of, stated_kind
from trainer.conformance.report import Request
from trainer.imported.source import CODE, TORCHVISION, ImportFailure, Source

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
        request = Request(kind=kind, directory=str(folder), module="mine.py", attribute=name)
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


@pytest.mark.parametrize("named", [{"module": TORCHVISION, "attribute": "resnet18"}, {"attribute": "Net"}])
def test_a_model_that_takes_no_digits_is_shown_the_option(folder: Path, named: dict[str, str]) -> None:
    write(
        folder, "class Net(nn.Sequential):\n    def __init__(self): super().__init__(nn.Conv2d(3, 4, 3))\n"
    )
    request = Request(**{"kind": "model", "directory": str(folder), "module": "mine.py", **named})
    with pytest.raises(ImportFailure, match=r"3 channels.*tried on digits: --dataset takes another"):
        [*laws_of(request)]

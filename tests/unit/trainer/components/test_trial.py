"""Mistakes in which components `check` finds and on which data it tries them, and in what it lets in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainer.components.facts import Source
from trainer.components.find import components, kind_of, stated_kind
from trainer.components.kind import Kind
from trainer.components.messages import MAX_DEPTH, Answer, Place, Request
from trainer.components.parameters import defaults_left_out
from trainer.components.trial import Trial
from trainer.core.user_code import CODE, TORCHVISION
from trainer.strategies.local_sgd import LocalSGD

IMPORTS = """
from abc import abstractmethod
import torch
from torch import nn
from trainer.core.strategy import Strategy
from trainer.data.base import Partitioner
from trainer.data.partitioners.shards import Shards

def _built(*layers): return lambda self: nn.Sequential.__init__(self, *layers)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with a name of its own, so that each test imports its own mine.py."""
    monkeypatch.setenv(CODE, str(tmp_path))
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(IMPORTS + text)


def opened(folder: Path, kind: str, name: str, **fields: Any) -> tuple[Answer, Kind[Any] | None]:
    """The answer about a component of mine.py that is opened, and the component."""
    place = Place(directory=str(folder), module="mine.py", attribute=name)
    request = Request(do="open", kind=kind, label="mine", place=place, limit_s=60.0, **fields)
    trial = Trial()
    answer = Answer.model_validate_json(trial.answer(request.model_dump_json().encode()))
    return answer, trial._opened


def test_components_of_a_file_are_those_that_it_defines(folder: Path) -> None:
    write(
        folder,
        "class Base(Partitioner): pass\n"  # abstract, and inherited
        "class Blocks(Base):\n    def partition(self, labels, parts, rng): ...\n"
        "class Template(Partitioner):\n    @abstractmethod\n    def order(self, labels): pass\n"
        "class Init(Blocks):\n    def __init__(self, share: float = 0.5): ...\n"
        "class Typo(Partitioner):\n    def partiton(self, labels, parts, rng): pass\n"
        "class NoTrain(Strategy):\n    transports = ('memory',)\n"
        "class Net(nn.Module):\n    def forward(self, x): pass\n"
        "class Untold(nn.Module): pass\n"
        "class _Part(nn.Module): pass\n"
        "class Focal(nn.Module):\n    def forward(self, output, target): pass\n"
        "class Own(nn.CrossEntropyLoss): pass\n"
        "class Steps(torch.optim.SGD): equals = 'sgd'\n"
        "class Other: pass\n"
        "def blocks(labels, parts): ...\n"
        "def noise(inputs, rng): ...\n"
        "def close(output, target): return output.argmax(1) == target\n"
        "def share(output, target): return close(output, target).float().mean()\n"
        "def each(output, target): return nn.functional.cross_entropy(output, target, reduction='none')\n"
        "def fit(model, lr): ...\n"
        "def _hidden(labels, parts): ...\n",
    )
    found: dict[str, list[str]] = {}
    for kind, name in components(folder, "mine.py"):
        found.setdefault(kind, []).append(name)
    assert found == {
        "partitioner": ["Blocks", "Init", "Typo", "blocks"],
        "strategy": ["NoTrain"],
        "model": ["Net", "Untold"],
        "loss": ["Focal", "Own", "close", "share", "each"],
        "optimizer": ["Steps"],
        "augmentation": ["noise"],
        "": ["Other", "fit"],  # a function with lr may train
    }
    for name, text in (("Typo", "not define the method partition$"), ("Init", "annotated .*`share: int")):
        assert re.search(text, opened(folder, "partitioner", name)[0].error)
    # A function that measures answers is no loss after all.
    left_out = [opened(folder, "loss", name)[0].left_out for name in found["loss"]]
    assert ["check it as mine" in each for each in left_out] == [False, False, True, False, False]


def test_torchvision_has_models(folder: Path) -> None:
    source = Source(code="", folder=str(folder), module=TORCHVISION, attribute="squeezenet1_1")
    assert (kind_of(source.load()), stated_kind(source, "")) == (None, "model")


BESIDE = (
    "class Words(torch.utils.data.Dataset):\n"
    "    def __init__(self, train: bool): self.size = 40 if train else 10\n"
    "    def __len__(self): return self.size\n"
    "    def __getitem__(self, at): return torch.tensor([at // 6] * 5), at // 20\n"
    "class Broken(torch.utils.data.Dataset):\n"
    "    def __init__(self, train: bool): raise ValueError('no files')\n"
)


def test_components_are_tried_on_the_datasets_of_their_file_and_on_registered_ones(folder: Path) -> None:
    write(
        folder,
        f"{BESIDE}"
        "class Net(nn.Sequential): __init__ = _built(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(15, 2))\n"
        "class Any(nn.Flatten): pass\n"
        "class Image(nn.Sequential): __init__ = _built(nn.Conv2d(1, 4, 3))\n"
        "class Colour(nn.Sequential): __init__ = _built(nn.Conv2d(3, 4, 3))\n"
        "def swapped(inputs, rng): return inputs[:, rng.permutation(inputs.shape[1])]\n"
        "def flipped(inputs, rng): return inputs.flip(3) if rng.random() < 0.5 else inputs.clone()\n",
    )
    for kind, name, data in (
        ("model", "Net", "Words"),
        ("model", "Any", "Words"),
        ("model", "Image", "digits"),
        ("model", "Colour", "synthetic channels=3 height=32 width=32"),
        ("augmentation", "swapped", "Words"),
        ("augmentation", "flipped", "noise (--dataset takes a dataset)"),  # it takes images
    ):
        assert opened(folder, kind, name)[0].data == data, name
    # Those of every class, in whatever order the dataset has them.
    _, net = opened(folder, "model", "Net")
    assert net is not None
    assert net.on.few is not None
    assert {*net.on.few.inputs[:, 0].tolist()} == {*range(7)}
    answer, _ = opened(folder, "augmentation", "swapped")
    assert answer.first["runs"] == [{"shape": [5], "samples": 1}, {"shape": [5], "samples": 5}]


def test_a_model_that_takes_none_of_the_data_is_shown_all_and_the_option(folder: Path) -> None:
    """The same failure on several data is shown once."""
    write(
        folder,
        f"{BESIDE}class Net(nn.Sequential): __init__ = _built(nn.Conv2d(5, 4, 3))\n"
        "class Wrong(nn.Module):\n    def forward(self, x): return x.nothing\n",
    )
    broken = ["on Broken: mine.py", "ValueError: no files", "--dataset takes another dataset"]
    for name, parts in {
        "Net": ["on Words: ", "on digits", "on vectors", "5 channels", *broken],
        "Wrong": ["digits, vectors, synthetic", *broken],
    }.items():
        answer, _ = opened(folder, "model", name)
        assert [part for part in parts if part not in answer.error] == []
        assert answer.error.count("AttributeError") == (name == "Wrong")


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def test_facts_and_names_of_files_that_may_do_harm_are_refused() -> None:
    escape = "\x1b[2J"
    facts = [{"a": escape}, {escape: 1}, {"a": {escape: 1}}, {"a": ["two\nlines"]}, nested(MAX_DEPTH + 1)]
    files = ["/a.py", "../a.py", "a/../../b.py", "a//b.py", "", "a\n.py"]
    for harmful in (*({"facts": each} for each in facts), *({"files": [name]} for name in files)):
        with pytest.raises(ValidationError):
            Answer.model_validate(harmful)
    assert Answer(facts=nested(MAX_DEPTH), files=["a/b.py"]).files == ["a/b.py"]


def test_parameters_that_equal_the_defaults_are_left_out() -> None:
    def own(labels: Any, sizes: tuple[int, ...] = (8, 9), share: float = 0.1) -> None:
        pass

    assert defaults_left_out(own, {"sizes": [8, 9], "share": 0.1, "other": 1}) == {"other": 1}
    assert defaults_left_out(own, {"sizes": [8], "share": 0.2}) == {"sizes": [8], "share": 0.2}
    assert defaults_left_out(LocalSGD, {"local_steps": 10, "weighting": "equal"}) == {"weighting": "equal"}

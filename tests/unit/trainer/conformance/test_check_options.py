"""The command line of `check`: what it asks for, and what it refuses before anything starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.check import lines, request_of
from orchestrator.errors import InputError
from tests.unit.conftest import PROJECT
from trainer.conformance.check import laws_of, on_data
from trainer.conformance.report import KINDS, CheckRequest, Finding, Report
from trainer.spec.registries import REGISTRIES


def request(target: str, **changed: Any) -> CheckRequest:
    options: dict[str, Any] = {"sets": [], "dataset": None, "kind": None, "equals": None, "limit_s": 60.0}
    return request_of(target, data_dir=Path("data"), **{**options, **changed})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text("")
    (tmp_path / "notes").touch()
    return path


@pytest.mark.parametrize("target", ["dirichlet", "partitioner:dirichlet"])
def test_registered_components_have_a_name_or_kind_and_name(target: str) -> None:
    found = request(target, sets=["alpha=0.1"])
    assert (found.kind, found.registered, found.parameters) == ("partitioner", "dirichlet", {"alpha": 0.1})


def test_names_of_registered_components_are_of_one_kind() -> None:
    for kind in KINDS:
        for name in REGISTRIES[kind].entries:
            assert request(name).kind == kind


def test_import_paths(file: Path) -> None:
    whole, one, installed = request("./mine.py"), request("./mine.py:Net"), request("package.module:Net")
    assert (whole.module, whole.attribute, whole.directory) == ("mine.py", "", str(file.parent))
    assert (one.module, one.attribute, one.directory) == ("mine.py", "Net", str(file.parent))
    assert (installed.module, installed.attribute) == ("package.module", "Net")
    assert request("./mine.py:Net", dataset="{name: mine.py:Own, size: 3}").dataset == {
        "directory": str(file.parent),
        "module": "mine.py",
        "attribute": "Own",
        "parameters": {"size": 3},
    }


@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("dirichle", {}, "dirichlet"),
        ("partitioner:mlp", {}, "partitioner"),
        ("./other.py", {}, "other.py"),
        ("./other.py:Net", {}, "other.py"),
        (".", {}, "is a directory; allowed: FILE.py"),
        ("./notes", {}, "is no file of Python"),
        ("./mine.py:3", {}, "import path"),
        ("./mine.py", {"sets": ["alpha=1"]}, "--set"),
        ("dirichlet", {"sets": ["alpha"]}, "KEY=VALUE"),
        ("dirichlet", {"kind": "sampler"}, "--kind"),
        ("dirichlet", {"equals": "ddp"}, "--equals"),
        ("dirichlet", {"equals": "adam"}, "--equals adam: no reference of kind partitioner"),
        ("sgd", {"equals": "serial"}, "--equals serial: no reference of kind optimizer; allowed: sgd"),
        ("./mine.py", {"equals": "adam"}, "--equals needs one component"),
        ("dirichlet", {"dataset": "digits"}, "--dataset has no effect on kind partitioner"),
        ("dirichlet", {"limit_s": 0.0}, "--timeout"),
        ("mlp", {"dataset": "mnits"}, "mnist"),
        ("mlp", {"dataset": "[3]"}, "--dataset"),
    ],
)
def test_bad_options_are_refused(file: Path, target: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=re.escape(named)):
        request(target, **options)


def test_lines_fit_into_the_terminal() -> None:
    long = "a word and " * 30
    found = [
        Finding(law="one", statement="it holds", status="ok", inputs=3),
        Finding(law="two", statement="it holds", status="failed", input=long, expected=long, got=long),
        *(Finding(law=f"law{n}", statement="it holds", status="skipped", reason=long) for n in range(30)),
        Finding(law="last", statement="it holds", status="skipped", reason="another"),
    ]
    for width in (80, 50):
        shown = [
            line.plain for line in lines(Report(component="mine", kind="model", findings=found), width)
        ]
        assert max(map(len, shown)) <= width
        assert all(any(each.law in line for line in shown) for each in found)
    assert shown[-1].startswith("1 laws hold, 1 fail, 31 ")


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Partitioners", "partitioner:shards"),
        ("Strategies", "strategy:all_reduce"),
        ("Models", "model:mlp"),
        ("Optimizers", "optimizer:sgd"),
        ("Losses", "loss:nll"),
        ("Datasets", "dataset:iris"),
        ("Augmentations", "augmentation:standard"),
    ],
)
def test_the_page_lists_the_laws(heading: str, name: str) -> None:
    page = (PROJECT / "docs" / "check.md").read_text()
    section = page.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    assert re.findall(r"(?m)^\| `(\w+)` \| (.+) \|$", section) == [
        (law.name, law.statement) for law in laws_of(on_data(request(name)))
    ]


def test_a_model_meets_every_class_of_a_sorted_dataset(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a sample is its class; the model refuses six samples that lack one of three classes."""
    monkeypatch.setenv("SHARDYARD_CODE", "")
    file.write_text(
        "import numpy as np\n"
        "from torch import nn\n\n"
        "def samples():\n"
        "    classes = np.repeat(np.arange(3), 100)\n"
        "    return np.repeat(classes[:, None], 4, 1).astype(np.float32), classes\n\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(*shape, classes)\n"
        "    def forward(self, x):\n"
        "        assert len(x) < 6 or len(x.unique()) == 3\n"
        "        return super().forward(x)\n"
    )
    asked = request("./mine.py:Net", kind="model", dataset="./mine.py:samples")
    laws = {law.name: law for law in laws_of(asked)}
    assert [laws["runs"].test(batch) for batch in laws["runs"].inputs] == [None, None]

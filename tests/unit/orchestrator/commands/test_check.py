"""Mistakes in the command line of `check`: what it asks for, refuses before anything starts, and shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.commands.check import Report, checking, lines, request_of
from orchestrator.errors import InputError
from orchestrator.sandbox.base import SandboxError
from trainer.components.examine import Finding
from trainer.components.messages import Place, Request
from trainer.spec.registries import REGISTRIES


def request(target: str, **changed: Any) -> Request:
    options: dict[str, Any] = {"sets": [], "dataset": None, "kind": None, "equals": None, "limit_s": 60.0}
    return request_of(target, data_dir=Path("data"), **{**options, **changed})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text("")
    (tmp_path / "notes").touch()
    return path


def test_registered_components_have_a_name_or_kind_and_name() -> None:
    for target in ("dirichlet", "partitioner:dirichlet"):
        found = request(target, sets=["alpha=0.1"])
        assert (found.kind, found.place.registered) == ("partitioner", "dirichlet")
        assert found.place.parameters == {"alpha": 0.1}
    for kind in REGISTRIES:
        assert {request(name).kind for name in REGISTRIES[kind].entries} == {kind}


def test_import_paths(file: Path) -> None:
    for target, place in {
        "./mine.py": ("mine.py", "", str(file.parent)),
        "./mine.py:Net": ("mine.py", "Net", str(file.parent)),
        "package.module:Net": ("package.module", "Net", str(file.parent)),
    }.items():
        found = request(target).place
        assert (found.module, found.attribute, found.directory) == place
    place = {
        "directory": str(file.parent),
        "module": "mine.py",
        "attribute": "Own",
        "parameters": {"size": 3},
    }
    found = request("./mine.py:Net", dataset="{name: mine.py:Own, size: 3}").dataset
    assert found == Place(**place)  # type: ignore[arg-type]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dirichle", {}, "dirichlet"),
    ("partitioner:mlp", {}, "partitioner"),
    ("./other.py:Net", {}, "other.py"),
    (".", {}, "is a directory; allowed: FILE.py"),
    ("./notes", {}, "is no file of Python"),
    ("./mine.py:3", {}, "import path"),
    ("./mine.py", {"sets": ["alpha=1"]}, "--set"),
    ("dirichlet", {"sets": ["alpha"]}, "KEY=VALUE"),
    ("dirichlet", {"kind": "sampler"}, "--kind"),
    ("dirichlet", {"equals": "adam"}, "--equals adam: no reference of kind partitioner"),
    ("sgd", {"equals": "serial"}, "--equals serial: no reference of kind optimizer; allowed: sgd"),
    ("./mine.py", {"equals": "adam"}, "--equals needs one component"),
    ("dirichlet", {"dataset": "digits"}, "--dataset has no effect on kind partitioner"),
    ("dirichlet", {"limit_s": 0.0}, "--timeout"),
    ("mlp", {"dataset": "mnits"}, "mnist"),
]


def test_bad_options_are_refused(file: Path) -> None:
    for target, options, named in REFUSED:
        with pytest.raises(InputError, match=re.escape(named)):
            request(target, **options)


def test_the_other_process_has_other_hashes_and_its_failure_is_told(file: Path) -> None:
    sandbox, asked = Mock(side_effect=SandboxError("no room")), request("./mine.py:split")
    with checking(asked, sandbox) as found:
        elsewhere = found._digest(asked)
        with pytest.raises(InputError, match="no room"):
            next(found.reports(asked))
    seeds = [call.args[0].environment["PYTHONHASHSEED"] for call in sandbox.call_args_list]
    assert seeds == ["1", "0"]
    assert "another process fails: no room" in str(elsewhere.difference("other", "parts"))


def test_lines_fit_into_the_terminal() -> None:
    long, common = "a word and " * 30, {"statement": "it holds"}
    found = [
        Finding(law="one", status="ok", inputs=3, **common),
        Finding(law="two", status="failed", input=long, expected=long, got=long, **common),
        *(Finding(law=f"law{n}", status="skipped", reason=long, **common) for n in range(30)),
        Finding(law="last", status="skipped", reason="another", **common),
    ]
    for width in (80, 50):
        report = Report(component="mine", kind="model", findings=found)
        shown = [line.plain for line in lines(report, width)]
        assert max(map(len, shown)) <= width
        assert all(any(each.law in line for line in shown) for each in found)
    assert shown[-1].startswith("1 laws hold, 1 fail, 31 ")

"""Mistakes of `import shardyard`: the examples of docs/python.md and the notebook, and what they return."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shardyard
from orchestrator.shipped import IMPORT_ROOT
from shardyard import Results
from tests.support.pages import blocks

DOCS = IMPORT_ROOT / "docs"
SMALL: dict[str, Any] = {
    "name": "small",
    "base": {
        "dataset": {"name": "synthetic", "samples": 64, "test_samples": 16},
        "model": {"name": "mlp", "hidden": [8]},
        "epochs": 1,
    },
    "blocks": [{"base": {"strategy": "serial"}}, {"base": {"strategy": "ddp", "nodes": 2}}],
}


def executed(code: str, names: dict[str, Any]) -> Any:
    """The value of the last expression, as in a notebook. One seed takes a third of the time of three."""
    code = re.sub(r"""(repeat"?[=:] ?)3""", r"\g<1>1", code)
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "example", "exec"), names)
    return eval(compile(ast.Expression(last.value), "example", "eval"), names) if last else None  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory of the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path := tmp_path_factory.mktemp("python"))
        patch.setenv("SHARDYARD_RUNTIME", "local")
        yield path


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return shardyard.sweep(SMALL, runtime="local", progress=False)


@pytest.mark.nightly
def test_the_examples_of_the_page_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("docs/python.md", "python"):
        executed(block, names)
    assert {line["status"] for line in names["results"].runs} == {"ok"}
    assert names["svg"].startswith("<svg")
    assert names["fastest"]["strategy"] in capsys.readouterr().out


@pytest.mark.nightly
def test_the_notebook_runs_and_displays(folder: Path) -> None:
    cells = json.loads((DOCS / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    shown = [executed("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert "<table>" in shown[0]._repr_html_()
    assert shown[1]
    assert shown[2]._repr_svg_().startswith("<svg")
    assert len(shown[3]) == 4


def test_both_documents_make_a_data_frame_in_one_way(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [(DOCS / name).read_text() for name in ("python.md", "notebook.ipynb")]
    (form,) = {form for text in documents for form in re.findall(r"results[.\w]*\.to_pandas\(\)", text)}
    assert all(form in text for text in documents)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="pip install pandas") as caught:
            eval(form, {"results": results})
    assert caught.value.__suppress_context__
    frame = SimpleNamespace(DataFrame=lambda lines, columns: (lines, columns))
    monkeypatch.setitem(sys.modules, "pandas", frame)
    assert eval(form, {"results": results}) == ([*results.runs], [*results.runs.columns])


def test_cells_of_the_notebook_have_the_ids_that_its_version_of_the_format_requires() -> None:
    notebook = json.loads((DOCS / "notebook.ipynb").read_text())
    ids = [cell.get("id", "") for cell in notebook["cells"]]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) >= (4, 5)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    assert len({*ids}) == len(ids)


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.usefixtures("results")
def test_a_notebook_displays_progress_as_wanted(progress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: displayed.append(text))
    shardyard.sweep(SMALL, runtime="local", progress=progress)
    assert bool(displayed) == progress

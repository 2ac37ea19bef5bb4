"""Mistakes of `import shardyard`: the examples of docs/python.md and the notebook, and what they return."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardyard
from orchestrator.shipped import IMPORT_ROOT
from shardyard import InputError, Results
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
def test_progress_and_warnings_are_displayed_as_wanted(
    progress: bool,
    results: Results,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("orchestrator.commands.sweep.memory_free", lambda: 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shardyard.sweep(SMALL, runtime="local", progress=progress)
    assert [each.filename for each in caught] == ([] if progress else [__file__])
    assert ("warning: memory" in capsys.readouterr().out) == progress
    displayed: list[str] = []  # in a notebook
    monkeypatch.undo()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: displayed.append(text))
    shardyard.sweep(SMALL, runtime="local", progress=progress)
    assert bool(displayed) == progress


def test_results_are_those_of_the_files(results: Results) -> None:
    assert [line["strategy"] for line in results.runs] == ["serial", "ddp"]
    assert results.runs[0]["accuracy"] == pytest.approx(results.configurations[0]["accuracy"])
    assert results.report.is_file()
    assert len(results.epochs) == 2
    assert results.findings == tuple(json.loads((results.directory / "findings.json").read_text()))
    assert {f"{name}.svg" for name in results.figures} == {
        file.name for file in (results.directory / "plots").glob("*.svg")
    }


def test_hostile_text_is_escaped_in_a_notebook(results: Results, folder: Path) -> None:
    directory = folder / "hostile"
    shutil.copytree(results.directory, directory)
    (path,) = directory.glob("ddp*/result.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "status": "failed", "cause": "<script>alert(1)</script>"}))
    shown = shardyard.load(directory).runs._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: shardyard.load("no-such-directory"), "no-such-directory"),
        (lambda: shardyard.sweep("no-such-sweep", runtime="local"), "no-such-sweep"),
        (lambda: shardyard.sweep({"name": "x", "blocks": []}, runtime="local"), "blocks"),
        (lambda: shardyard.sweep({"name": object()}, runtime="local"), "^source: .*object"),
        (lambda: shardyard.run("dpp", runtime="local"), "^strategy: 'dpp'"),
        (lambda: shardyard.run({"name": object()}, runtime="local"), "^strategy: .*object"),
        (lambda: shardyard.run("ddp", nodes=np.int64(0), runtime="local"), "^nodes: 0 is not allowed"),
        (lambda: shardyard.run("ddp", nodes=10**5000, runtime="local"), "^nodes: cannot be written"),
        (lambda: shardyard.run("ddp", repeat=10**5000, runtime="local"), "^repeat: cannot be written"),
        (lambda: shardyard.run("ddp", runtime="local", epochs=10**5000), "^epochs: cannot be written"),
        (lambda: shardyard.sweep("quickstart", nodes=[10**5000], runtime="local"), "^nodes: cannot be"),
        (lambda: shardyard.run("ddp", runtime="nowhere"), "nowhere"),
        (lambda: shardyard.run("ddp", runtime="local", epoch=3), "epochs"),
        (lambda: shardyard.run("ddp", runtime="local", lr=np.float32(-1)), "-1.0 is not allowed"),
        (lambda: shardyard.run("ddp", runtime="local", lr=np.ones(1)), r"\[1.0\] is not allowed"),
        (lambda: shardyard.run("ddp", runtime="local", model=object()), "^model: <object"),
        (lambda: shardyard.run("ddp", runtime="local", model=Path), "^model: .*Path.* import path"),
    ],
)
def test_bad_input_is_an_input_error(folder: Path, call: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()

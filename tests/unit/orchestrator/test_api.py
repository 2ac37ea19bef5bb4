"""Mistakes of `import shardyard` before nodes start: arguments lost or swapped, tables in notebooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from orchestrator import api
from orchestrator.commands.sweep import INTERRUPTED, HowToRun
from orchestrator.errors import InputError
from orchestrator.report import write_report
from orchestrator.results.csv_text import csv_text
from orchestrator.results.store import is_claimed
from tests.unit.report_support import around, repeated, unrendered_figures, write_page


def test_a_notebook_shows_the_first_lines_of_a_table_escaped_and_without_empty_columns() -> None:
    lines = tuple({"<a>": 1 / 3, "b": None, "c": f"&{at}" if at else None} for at in range(22))
    table = api.Table(("<a>", "b", "c"), lines)
    assert (len(table), table[1], [*table[20:]]) == (22, lines[1], [*lines[20:]])
    rows = "".join(f"<tr><td>0.3333</td><td>{f'&amp;{at}' if at else ''}</td></tr>" for at in range(20))
    whole = f"<table><thead><tr><th>&lt;a&gt;</th><th>c</th></tr></thead><tbody>{rows}</tbody></table>"
    assert table._repr_html_() == f"{whole}<p>2 more lines</p>"
    assert api.Table(table.columns, lines[:20])._repr_html_() == whole


def test_results_are_those_of_the_report(tmp_path: Path) -> None:
    faster = repeated("all_reduce", around(4.0, 0.05), nodes=2)
    paths, found = write_page(tmp_path, *repeated("serial", around(8.0, 0.05)), *faster), api.load(tmp_path)
    files = {"results": found.runs, "summary": found.configurations, "epochs": found.epochs}
    for name, table in files.items():
        assert csv_text(table.columns, table.lines) == (tmp_path / f"{name}.csv").read_text()
    assert [*found.findings] == json.loads((tmp_path / "findings.json").read_text())
    with unrendered_figures():
        assert [*found.verdict] == [each.replace("\xa0", " ") for each in write_report(paths).verdicts]
    assert found._repr_html_() == f"<p>{found.verdict[0]}</p>{found.configurations._repr_html_()}"
    assert found.report == paths.html


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mock:
    """Stands in for the run of a sweep, whose directory is claimed meanwhile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDYARD_RUNTIME", "local")
    monkeypatch.delenv("SHARDYARD_DATA", raising=False)
    ran = Mock(side_effect=lambda loaded, paths, *_: 0 if is_claimed(paths) else pytest.fail("is free"))
    monkeypatch.setattr(api, "run_sweep", ran)
    return ran


def test_arguments_are_those_of_the_runs(ran: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"lr": np.float32(0.5), "model.hidden": np.array([7])}
    given: dict[str, Any] = {"runtime": "virtual", "repeat": np.int64(2), "progress": False}
    monkeypatch.setattr("orchestrator.commands.sweep.memory_free", lambda: 0)
    block = {"base": {"strategy": "ddp"}, "axes": {"nodes": [4]}}
    sweep = {"name": "s", "base": {"model": "mlp"}, "blocks": [block]}
    swept = api.sweep(sweep, nodes=np.array([3, 2]), fields=fields, data_dir="d", **given)  # type: ignore[arg-type]
    one = {"name": "local_sgd", "local_steps": 3}
    del given["runtime"]
    with pytest.warns(UserWarning, match="memory") as warned:
        alone = api.run(one, nodes=np.int64(3), out="o", data_dir=Path("e"), lr=0.25, **given)  # type: ignore[arg-type]
    compared = api.run("ddp", compare=True)
    assert [each.filename for each in warned] == [__file__]
    called = [call.args for call in ran.call_args_list]
    assert [[(run.nodes, run.seed, run.lr) for run in loaded.runs] for loaded, *_ in called] == [
        [(nodes, seed, 0.5) for nodes in (3, 2) for seed in (0, 1)],
        [(3, seed, 0.25) for seed in (0, 1)],
        [(1, 0, 0.05), (2, 0, 0.05)],
    ]
    assert called[0][0].runs[0].model.hidden == [7]  # type: ignore[attr-defined]
    assert called[1][0].runs[0].strategy.local_steps == 3  # type: ignore[attr-defined]
    directories = [swept.directory, alone.directory, compared.directory]
    assert [paths.directory for _, paths, *_ in called] == directories
    assert directories[:2] == [Path("results/s"), Path("o")]
    assert [(chosen.name, data, how) for _, _, chosen, data, _, how in called] == [
        ("virtual", Path("d"), HowToRun()),
        ("local", Path("e"), HowToRun(warm_up_run=False)),
        ("local", Path("data"), HowToRun()),
    ]
    assert [console.file.name == "/dev/null" for *_, console, _ in called] == [True, True, False]


def test_what_is_not_given_is_that_of_the_environment(ran: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_RUNTIME", "virtual")
    monkeypatch.setenv("SHARDYARD_DATA", "there")
    api.run("serial", out="o")
    assert (ran.call_args.args[2].name, ran.call_args.args[3]) == ("virtual", Path("there"))
    ran.side_effect = lambda *_: INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        api.run("serial", out="o")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: api.load("no-such-directory"), "no-such-directory"),
        (lambda: api.sweep({"name": "x", "blocks": []}), "blocks"),
        (lambda: api.sweep({"name": object()}), "^source: .*object"),
        (lambda: api.run("dpp"), "^strategy: 'dpp'"),
        (lambda: api.run("ddp", nodes=0), "^nodes: 0 is not allowed"),
        (lambda: api.run("ddp", nodes=10**5000), "^nodes: cannot be written"),
        (lambda: api.run("ddp", runtime="nowhere"), "nowhere"),
        (lambda: api.run("ddp", epoch=3), "epochs"),
        (lambda: api.run("ddp", lr=np.float32(-1)), "-1.0 is not allowed"),
        (lambda: api.run("ddp", lr=np.ones(1)), r"\[1.0\] is not allowed"),
        (lambda: api.run("ddp", model=object()), "^model: <object"),
        (lambda: api.run("ddp", model=Path), "^model: .*Path.* import path"),
    ],
)
def test_bad_input_is_an_input_error(ran: Mock, call: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()
    ran.assert_not_called()

"""Exports: their numbers are those of the report; formats without a library of their own; bad input."""

from __future__ import annotations

import csv
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.commands.export import export
from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.export.contents import ExportedRun, ExportedSweep, parameters_of, read_contents
from orchestrator.export.latex import escaped
from orchestrator.report import write_report
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from tests.unit.conftest import PROJECT
from tests.unit.report_support import FAST, SERIAL, a_run, around, repeated, unrendered_figures, write_page
from trainer.spec.run_spec import RunSpec

CAUSE = r"node 1: 100% of $HOME & #1_a, x^2 ~ \n {y} -- [z] <b>é"
FAILED = a_run("ddp", nodes=2, status="failed", cause=CAUSE)
BROKEN = a_run("gossip", nodes=2)
WITH_LIBRARY = [name for name in EXPORTERS.entries if EXPORTERS.load(name).modules]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs that are ok, one that failed, one whose result is damaged, and one that is pending."""
    paths = write_page(tmp_path / "results", SERIAL, FAST, FAILED, BROKEN, pending=["later"])
    paths.run(BROKEN.key).result.write_text("{")
    with unrendered_figures():
        write_report(paths)
    return paths.directory


def contents(directory: Path) -> ExportedSweep:
    return read_contents(SweepPaths(directory))


def run_of(directory: Path, key: str) -> ExportedRun:
    return next(run for run in contents(directory).runs if run.key == key)


def lines(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return [*csv.DictReader(opened)]


def changes(*arguments: object) -> list[str]:
    """What an export did to each run or file."""
    done = [line.partition(": ") for line in export(*arguments)]  # type: ignore[arg-type]
    return [change for change, found, _ in done if found and change in ("added", "replaced", "unchanged")]


# Contents


@pytest.mark.slow
def test_every_value_of_the_report_is_exported_unchanged(results: Path) -> None:
    rows = {line["key"]: line for line in lines(results / "results.csv")}
    exported = contents(results)
    assert [run.key for run in exported.runs] == [key for key in rows if key != "later"]
    assert exported.pending == 1
    for run in exported.runs:
        cells = {name: text for name, text in rows[run.key].items() if text}
        values = {**run.metrics, **run.tags}
        for name in cells.keys() - RunSpec.model_fields.keys():
            assert str(values.pop(name)) == cells[name], name
        assert values.keys() <= {"sweep", "seed"}


@pytest.mark.slow
def test_every_epoch_of_the_report_is_exported_unchanged(results: Path) -> None:
    exported = [(run.key, epoch) for run in contents(results).runs for epoch in run.epochs]
    rows = lines(results / "epochs.csv")
    assert [(key, epoch.number) for key, epoch in exported] == [
        (row["key"], int(row["epoch"])) for row in rows
    ]
    for (_, epoch), row in zip(exported, rows, strict=True):
        assert {"loss", "accuracy", "train_s"} <= epoch.values.keys()
        assert {name: str(value) for name, value in epoch.values.items()}.items() <= row.items()
    times = [epoch.time_s for key, epoch in exported if key == SERIAL.key]
    assert times == sorted(times)
    assert times[0] > SERIAL.started_at


@pytest.mark.slow
def test_a_failed_run_has_status_cause_and_parameters(results: Path) -> None:
    failed = run_of(results, FAILED.key)
    assert (failed.tags["status"], failed.tags["cause"]) == ("failed", CAUSE)
    assert failed.parameters["strategy"] == "ddp"
    assert "accuracy" not in failed.metrics
    broken = run_of(results, BROKEN.key)
    assert broken.tags["status"] == "unusable"
    assert "result.json" in broken.tags["cause"]
    assert broken.parameters == {}


def test_parameters_are_named_as_with_set() -> None:
    spec = RunSpec.model_validate(
        {
            "strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.25}},
            "nodes": 2,
            "transport": "gloo",
            "faults": [{"kill": {"node": 1}, "at": {"epoch": 1}}],
            "link": {"bandwidth_mbit": 100.0},
        }
    )
    found = dict(parameters_of(spec))
    expected = {
        "strategy": "all_reduce",
        "strategy.compression": "top_k",
        "strategy.compression.ratio": 0.25,
        "faults.0.kill.node": 1,
        "link.default.bandwidth_mbit": 100.0,
        "lr": spec.lr,
        "vary": "[init, split, order]",
    }
    assert expected.items() <= found.items()
    assert "target_accuracy" not in found
    assert all(isinstance(value, str | int | float) for value in found.values())


def test_a_serial_run_has_no_partitioner() -> None:
    assert "partitioner" not in dict(parameters_of(RunSpec.model_validate({"strategy": "serial"})))


# Formats


@pytest.mark.slow
def test_csv(results: Path) -> None:
    [*export(results, "csv", None)]
    out = results / "export" / "csv"
    report = {line["key"]: line for line in lines(results / "results.csv")}
    runs = lines(out / "runs.csv")
    assert [run["tags.key"] for run in runs] == [key for key in report if key != "later"]
    for run in runs:
        row = report[run["tags.key"]]
        assert (run["tags.cause"], run["metrics.accuracy"]) == (row["cause"], row["accuracy"])
    assert runs[1]["params.strategy"] == "all_reduce"
    assert (out / "configurations.csv").read_text() == (results / "summary.csv").read_text()
    curves = [(line["key"], line["epoch"], line["loss"]) for line in lines(out / "epochs.csv")]
    assert curves == [(line["key"], line["epoch"], line["loss"]) for line in lines(results / "epochs.csv")]


def test_latex_table_has_means_and_intervals(tmp_path: Path) -> None:
    runs = [*repeated("serial", around(8.0, 0.05)), *repeated("all_reduce", around(4.0, 0.05), nodes=2)]
    paths = write_page(tmp_path / "results", *runs)
    [*export(paths.directory, "latex", tmp_path)]
    text = (tmp_path / "configurations.tex").read_text()
    (table,) = tables(text)
    body = table.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    rows = [[plain(cell) for cell in row.split("&")] for row in body.split(r"\\")[:-1]]
    summary = lines(paths.summary)
    assert [row[0] for row in rows] == [line["strategy"] for line in summary]
    for row, line in zip(rows, summary, strict=True):
        mean, low, high = (float(line[name]) for name in ("time_s", "time_s_low", "time_s_high"))
        assert row[2] == f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    assert rows[0][3] == "1.00"
    (fastest,) = [each for each in json.loads(paths.findings.read_text()) if each["kind"] == "fastest"]
    low, high = fastest["data"]["speedup_interval"]
    assert rows[1][3] == f"{fastest['data']['speedup']:.2f} [{low:.2f}, {high:.2f}]"


@pytest.mark.slow
def test_latex_lists_runs_that_are_not_ok(results: Path, tmp_path: Path) -> None:
    [*export(results, "latex", tmp_path)]
    text = (tmp_path / "configurations.tex").read_text()
    assert len(tables(text)) == 1
    assert f"{FAILED.key} (failed): {CAUSE.replace('é', 'U+00E9')}" in plain(text)
    assert f"{BROKEN.key} (unusable)" in plain(text)


def plain(latex: str) -> str:
    """The text as a reader sees it."""
    text = pytest.importorskip("pylatexenc.latex2text").LatexNodes2Text().latex_to_text(latex)
    return str(text).replace("ˆ", "^").strip()


def parsed(latex: str) -> list[Any]:
    """Its nodes. The parser raises an error for what is not balanced."""
    walker = pytest.importorskip("pylatexenc.latexwalker").LatexWalker(latex, tolerant_parsing=False)
    return list(walker.get_latex_nodes()[0])


def tables(latex: str) -> list[str]:
    """The tabulars of a text."""
    outer = [node for node in parsed(latex) if getattr(node, "environmentname", "") == "table"]
    inner = [each for node in outer for each in node.nodelist]
    return [each.latex_verbatim() for each in inner if getattr(each, "environmentname", "") == "tabular"]


@pytest.mark.parametrize(
    "text",
    ["100% & _#$", r"\input{x}", "a~b^c", "-- ---", "[1] <x|y>", CAUSE[:-1]],
    ids=["specials", "command", "accents", "dashes", "brackets", "cause"],
)
def test_latex_is_escaped(text: str) -> None:
    written = escaped(text)
    assert parsed(written)
    assert plain(written) == text
    assert r"\input" not in written


@pytest.mark.slow
@pytest.mark.parametrize("to", ["csv", "latex"])
def test_exporting_again_changes_only_what_has_changed(results: Path, to: str) -> None:
    assert {*changes(results, to, None)} == {"added"}
    assert {*changes(results, to, None)} == {"unchanged"}
    path = results / FAILED.key / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cause": "another one"}))
    assert "replaced" in changes(results, to, None)


@pytest.mark.slow
def test_a_changed_run_has_another_digest(results: Path) -> None:
    before = {run.key: run.digest for run in contents(results).runs}
    assert len({*before.values()}) == len(before)
    path = results / FAST.key / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "wall_s": 99.0}))
    after = {run.key: run.digest for run in contents(results).runs}
    assert {key for key in before if before[key] != after[key]} == {FAST.key}


@pytest.mark.slow
def test_pending_runs_are_counted(results: Path) -> None:
    assert any("pending" in line and "1 run" in line for line in export(results, "csv", None))


# The registry


def test_formats_know_their_names_and_extras() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: EXPORTERS.load(name).name for name in EXPORTERS.entries} == {
        name: name for name in EXPORTERS.entries
    }
    assert {*extras} - {*RUNTIMES.entries} == {*WITH_LIBRARY}
    assert {EXPORTERS.load(name).takes for name in EXPORTERS.entries} <= {"results directory", "sweep file"}


# Bad input


@pytest.mark.slow
def test_unknown_format_lists_the_known_ones(results: Path) -> None:
    with pytest.raises(InputError, match=r"--to tensorbord: .*'tensorboard'.*known: csv, .*latex"):
        [*export(results, "tensorbord", None)]


def test_a_directory_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no sweep\.json"):
        [*export(tmp_path, "csv", None)]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_is_refused(results: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        [*export(results, "csv", tmp_path / place)]


@pytest.fixture
def process() -> Iterator[None]:
    """Exports change the environment variables of their process, and import libraries."""
    with patch.dict(os.environ), patch.dict(sys.modules):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("to", WITH_LIBRARY)
def test_a_missing_library_is_named_with_its_extra(
    results: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setitem(sys.modules, EXPORTERS.load(to).modules[0], None)
    with pytest.raises(InputError, match=rf"pip install 'shardyard\[{to}\]'"):
        [*export(results, to, None)]
    assert not (results / "export").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_folder_named_like_a_library_is_none(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    sys.modules.pop("wandb", None)
    with pytest.raises(InputError, match="the package wandb is missing"):
        [*export(results, "wandb", None)]

"""Mistakes in exports and recipes: what the programs' own readers find, and what docs/export.md shows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.store import SweepPaths
from tests.support.command_line import PROJECT, Done, orchestrator, run
from tests.support.pages import blocks, write_files
from tests.support.runs import lines_in
from tests.unit.report_support import a_run, around, repeated, write_page

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),  # of the libraries, when they are imported
]

CAUSE = "node 1: 50 % of #1 & $x_y"
LINK = {"default": {"bandwidth_mbit": 100.0}, "pairs": {"0>1": {"latency_ms": 1.0}}}
RUNS = (
    a_run("serial", epochs=2),
    a_run("all_reduce", nodes=2, transport="gloo", link=LINK),
    a_run("ddp", nodes=2, status="failed", cause=CAUSE),
)
NUMBERS = ("accuracy", "train_s", "run_wall_s")
OUTSIDE = ["env", "-u", "CI", "-u", "PYTEST_CURRENT_TEST"]  # where MLflow would send telemetry
Lines = dict[str, dict[str, str]]


def needs(module: str) -> Any:
    """A test that is skipped if a program is missing."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"requirements-dev.txt has {module}")


def command(folder: Path, *arguments: str) -> Done:
    """Run the command line in a directory."""
    return run(orchestrator(*arguments), folder)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A serial run, one over links, and one that failed; and the files of the page."""
    write_files(PROJECT / "docs" / "export.md", tmp_path)
    return write_page(tmp_path / "results" / "mine", *RUNS).directory


def recipe(folder: Path, name: str) -> str:
    """Run a file of the page, and check that it connects to nothing. Returns what it prints."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        variables = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), address)
        variables |= {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
        done = run([*OUTSIDE, sys.executable, name], folder, **variables)
        assert done.returncode == 0, done.stderr
        with pytest.raises(BlockingIOError):
            proxy.accept()
    return done.stdout


def report(results: Path) -> Lines:
    """The lines of results.csv by key."""
    return {line["key"]: line for line in lines_in(results)}


def curves(results: Path, column: str) -> dict[str, dict[int, float]]:
    """A column of epochs.csv by key and epoch."""
    found: dict[str, dict[int, float]] = {run.key: {} for run in RUNS}
    for line in lines_in(results, SweepPaths(results).epochs_csv.name):
        found[line["key"]][int(line["epoch"])] = float(line[column])
    return found


@needs("tensorboard")
def test_tensorboard(results: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_ndarray

    done = command(tmp_path, "export", str(results), "--to", "tensorboard", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert f"added: {RUNS[2].key} (failed)" in done.stdout
    trial = tmp_path / "out" / "trial"
    assert {path.name for path in trial.iterdir()} == {*report(results)}
    for key, line in report(results).items():
        events = EventAccumulator(str(trial / key))
        events.Reload()
        losses = events.Scalars("epoch/loss") if line["accuracy"] else []
        assert {event.step: event.value for event in losses} == {
            epoch: np.float32(loss) for epoch, loss in curves(results, "loss")[key].items()
        }
        texts = {
            tag.removesuffix("/text_summary"): make_ndarray(events.Tensors(tag)[0].tensor_proto)
            .item()
            .decode()
            for tag in events.Tags()["tensors"]
        }
        assert (texts["status"], texts.get("cause", "")) == (line["status"], line["cause"])
        for name in NUMBERS:
            if line[name]:
                (event,) = events.Scalars(f"result/{name}")
                assert event.value == np.float32(line[name])
        content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        parameters = HParamsPluginData.FromString(content).session_start_info.hparams
        assert parameters["lr"].number_value == float(line["lr"])
        for name in ("strategy", "status"):
            assert parameters[name].string_value == line[name]


@needs("tensorboard")
def test_exporting_again_duplicates_nothing(results: Path) -> None:
    def changes() -> list[str]:
        done = command(results, "export", ".", "--to", "tensorboard")
        assert done.returncode == 0, done.stderr
        return re.findall(r"(?m)^(added|replaced|unchanged): \S", done.stdout)

    assert changes() == ["added"] * 3
    path = results / RUNS[2].key / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cause": "another one"}))
    assert changes() == ["unchanged", "unchanged", "replaced"]
    assert changes() == ["unchanged"] * 3


@needs("tensorboard")
def test_a_damaged_export_is_no_traceback(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "trial").write_text("This is no export.")
    done = command(tmp_path, "export", str(results), "--to", "tensorboard", "--out", str(out))
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")
    assert str(out) in done.stderr


@needs("mlflow")
def test_recipe_for_mlflow(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(tmp_path, "to_mlflow.py")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'mine'")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == report(results).keys()
    for key, line in report(results).items():
        run = runs[key]
        assert run.info.status == ("FINISHED" if line["status"] == "ok" else "FAILED")
        assert {name: line[name] for name in run.data.params} == run.data.params
        numbers = {name: value for name, value in run.data.metrics.items() if "/" not in name}
        assert numbers == {name: float(line[name]) for name in numbers}
        assert ("accuracy" in numbers) == bool(line["accuracy"])
        history = client.get_metric_history(run.info.run_id, "epoch/accuracy")
        assert {point.step: point.value for point in history} == curves(results, "accuracy")[key]


@needs("wandb")
def test_recipe_for_wandb(results: Path, tmp_path: Path) -> None:
    recipe(tmp_path, "to_wandb.py")
    files = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert len(files) == len(RUNS)
    for key, line in report(results).items():
        (written,) = [each for each in files if key.encode() in each]
        numbers = (line["lr"], line["accuracy"], *map(str, curves(results, "accuracy")[key].values()))
        for value in (f'"{line["status"]}"', *numbers):
            assert value.encode() in written
        assert (b"epoch/loss" in written) == bool(line["accuracy"])


def test_recipe_for_latex(tmp_path: Path) -> None:
    write_files(PROJECT / "docs" / "export.md", tmp_path)
    runs = [*repeated("serial", around(8.0, 0.05)), *repeated("local_sgd", around(4.0, 0.05), nodes=2)]
    results = write_page(tmp_path / "results" / "mine", *runs, RUNS[2]).directory
    table = recipe(tmp_path, "to_latex.py")
    rows = [line.removesuffix(r" \\").split(" & ") for line in table.splitlines()[2:-1]]
    for row, line in zip(rows, lines_in(results, "summary.csv"), strict=True):
        assert (row[0].replace("\\", ""), row[1]) == (line["strategy"], line["nodes"])
        assert re.sub(r"\\[_%&#${}]", "", row[0]).isalnum()  # what LaTeX reads as a command is escaped
        for cell, name, factor in zip(row[2:], ("time_s", "speedup", "accuracy"), (1, 1, 100), strict=True):
            values = [line[each] for each in (name, f"{name}_low", f"{name}_high") if line[each]]
            written = [float(each) for each in re.findall(r"[\d.]+", cell)]
            assert written == pytest.approx([factor * float(each) for each in values], rel=0.01)
    if shutil.which("pdflatex"):
        page = rf"\documentclass{{article}}\begin{{document}}{table}\end{{document}}"
        (tmp_path / "paper.tex").write_text(page)
        done = run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], tmp_path)
        assert done.returncode == 0, done.stdout


def test_the_commands_and_the_recipes_of_the_page_run(tmp_path: Path) -> None:
    shown = [line for block in blocks("docs/export.md", "") for line in block.splitlines()]
    assert all(line.startswith("shardyard ") for line in shown)
    lines = [shlex.split(line)[1:] for line in shown]
    assert [line[0] for line in lines] == ["run", "export", "export"]
    for line in lines:
        if "tensorboard" not in line or find_spec("tensorboard"):
            done = command(tmp_path, *line)
            assert done.returncode == 0, done.stderr
            assert "export" not in line or [*(tmp_path / "results/mine/export" / line[-1]).iterdir()]
    write_files(PROJECT / "docs" / "export.md", tmp_path)
    assert r"local\_sgd" in recipe(tmp_path, "to_latex.py")

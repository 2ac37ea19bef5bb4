"""Mistakes in exports: what the programs' own readers find, and what docs/export.md shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.export import EXPORTERS
from orchestrator.results.store import SweepPaths
from tests.support.command_line import Done, orchestrator, run
from tests.support.pages import blocks
from tests.support.runs import lines_in
from tests.unit.report_support import a_run, write_page

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
HEADER, BLOCK = struct.Struct("<IHB"), 2**15  # of a file of wandb
Lines = dict[str, dict[str, str]]


def missing(name: str) -> list[str]:
    """A format's libraries that are not installed."""
    return [each for each in EXPORTERS.load(name).modules if find_spec(each.partition(".")[0]) is None]


def needs(name: str) -> Any:
    """The parameter; its test is skipped if libraries are missing."""
    reason = f"--to {name} needs {', '.join(missing(name))}: requirements-dev.txt has it"
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=reason))


LIBRARIES = [*map(needs, ("tensorboard", "mlflow", "wandb"))]


def command(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run the command line in a directory, as outside of CI, where MLflow would send telemetry."""
    outside = ["env", "-u", "CI", "-u", "PYTEST_CURRENT_TEST"]
    return run([*outside, *orchestrator(*arguments)], folder, **variables)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A serial run, one over links, and one that failed."""
    return write_page(tmp_path_factory.mktemp("results") / "trial", *RUNS).directory


@pytest.fixture(scope="module")
def report(results: Path) -> Lines:
    """The lines of results.csv by key."""
    return {line["key"]: line for line in lines_in(results)}


@pytest.fixture(scope="module")
def curves(results: Path) -> dict[str, Lines]:
    """The lines of epochs.csv by key and epoch."""
    found: dict[str, Any] = {run.key: {} for run in RUNS}
    for line in lines_in(results, SweepPaths(results).epochs_csv.name):
        found[line["key"]][int(line["epoch"])] = line
    return found


@pytest.fixture
def exported(request: pytest.FixtureRequest, results: Path, tmp_path: Path) -> Path:
    """The results in the format of the test's parameter."""
    out = tmp_path / "out"
    done = command(tmp_path, "export", str(results), "--to", request.param, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"added: {RUNS[2].key} (failed)" in done.stdout
    return out


def reads(name: str) -> Any:
    """A test of what the format has written."""
    return pytest.mark.parametrize("exported", [needs(name)], indirect=True)


@reads("tensorboard")
def test_tensorboard(exported: Path, report: Lines, curves: dict[str, Lines]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_ndarray

    assert {path.name for path in (exported / "trial").iterdir()} == {*report}
    for key, line in report.items():
        events = EventAccumulator(str(exported / "trial" / key))
        events.Reload()
        losses = events.Scalars("epoch/loss") if line["accuracy"] else []
        assert {event.step: event.value for event in losses} == {
            epoch: np.float32(curve["loss"]) for epoch, curve in curves[key].items()
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


@reads("mlflow")
def test_mlflow(exported: Path, report: Lines, curves: dict[str, Lines]) -> None:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    uri = f"sqlite:///{exported / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    found = mlflow.search_runs(experiment_names=["trial"], output_format="list")
    runs = {run.data.tags["key"]: run for run in found}
    assert runs.keys() == report.keys()
    for key, line in report.items():
        run = runs[key]
        assert run.info.status == ("FINISHED" if line["status"] == "ok" else "FAILED")
        assert (run.data.tags["status"], run.data.tags.get("cause", "")) == (line["status"], line["cause"])
        assert (run.data.params["strategy"], run.data.params["lr"]) == (line["strategy"], line["lr"])
        numbers = {name: value for name, value in run.data.metrics.items() if "/" not in name}
        assert numbers == {name: float(line[name]) for name in numbers}
        assert ("accuracy" in numbers) == bool(line["accuracy"])
        history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "epoch/accuracy")
        assert {point.step: point.value for point in history} == accuracies(curves[key])
    assert runs[RUNS[1].key].data.params["link.pairs.0_1.latency_ms"] == "1.0"


def accuracies(curve: Lines) -> dict[str, float]:
    return {epoch: float(line["accuracy"]) for epoch, line in curve.items()}


@reads("wandb")
def test_wandb(exported: Path, report: Lines, curves: dict[str, Lines]) -> None:
    files = [*exported.glob("wandb/offline-run-*/*.wandb")]
    found: dict[str, dict[str, list[Any]]] = {}
    for file in files:
        kinds: dict[str, list[Any]] = {}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            kinds.setdefault(kind, []).append(getattr(record, kind))
        found[kinds["run"][0].display_name] = kinds
    assert len(files) == len(report)
    assert found.keys() == report.keys()
    for key, line in report.items():
        kinds, status = found[key], line["status"]
        (run,), (end,) = kinds["run"], kinds["exit"]
        config = values(run.config.update)
        assert (run.project, [*run.tags], end.exit_code == 0) == ("trial", [status], status == "ok")
        assert (config["strategy"], config["lr"]) == (line["strategy"], float(line["lr"]))
        assert config["run"].get("cause", "") == line["cause"]
        summary = {name: value for each in kinds["summary"] for name, value in values(each.update).items()}
        for name in NUMBERS:
            assert summary.get(name) == (float(line[name]) if line[name] else None)
        history = [values(each.item) for each in kinds.get("history", [])]
        assert {each["epoch"]: each["epoch/accuracy"] for each in history} == accuracies(curves[key])


def records(file: Path) -> Iterator[Any]:
    """The records of a file of wandb, which no longer has a reader in Python: a log in LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:  # the rest of a block is empty
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        record += data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(record)
            record = b""


def values(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@pytest.mark.parametrize("to", LIBRARIES)
def test_exporting_again_duplicates_nothing_and_connects_to_nothing(
    results: Path, tmp_path: Path, to: str
) -> None:
    mine = tmp_path / "results"
    shutil.copytree(results, mine)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        variables = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), address)

        def changes() -> list[str]:
            done = command(mine, "export", ".", "--to", to, WANDB_MODE="online", **variables)
            assert done.returncode == 0, done.stderr
            return re.findall(r"(?m)^(added|replaced|unchanged): \S", done.stdout)

        assert changes() == ["added"] * 3
        path = mine / RUNS[2].key / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "cause": "another one"}))
        assert changes() == ["unchanged", "unchanged", "replaced"]
        assert changes() == ["unchanged"] * 3
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize("to", LIBRARIES)
def test_a_damaged_export_is_no_traceback(results: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("mlflow.db", "trial", "wandb"):
        (out / name).write_text("This is no export.")
    done = command(tmp_path, "export", str(results), "--to", to, "--out", str(out))
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(("error: ", "wandb: "))
    assert str(out) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex is installed")
def test_latex_compiles(results: Path, tmp_path: Path) -> None:
    assert command(tmp_path, "export", str(results), "--to", "latex", "--out", ".").returncode == 0
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{configurations.tex}\end{document}"
    )
    done = run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_commands_and_the_code_of_the_page_run(tmp_path: Path) -> None:
    shown = [line for block in blocks("docs/export.md", "") for line in block.splitlines()]
    assert all(line.startswith("python -m orchestrator ") for line in shown)
    lines = [shlex.split(line)[3:] for line in shown]
    assert [line[0] for line in lines] == ["run", *["export"] * 5]
    results = [name for name in EXPORTERS.entries if EXPORTERS.load(name).takes == "results directory"]
    installed = [name for name in results if not missing(name)]
    for line in lines:
        if line[0] == "run" or line[line.index("--to") + 1] in installed:
            done = command(tmp_path, *line)
            assert done.returncode == 0, done.stderr
    assert (tmp_path / "paper" / "tables" / "configurations.tex").is_file()
    for name in installed:
        if name != "latex":
            assert [*(tmp_path / "results" / "mine" / "export" / name).iterdir()]
    if "mlflow" in installed:
        (code,) = blocks("docs/export.md", "python")
        done = run([sys.executable, "-c", code], tmp_path)
        assert done.stdout.count("FINISHED") == 6, done.stderr

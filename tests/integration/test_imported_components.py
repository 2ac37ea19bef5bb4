"""Mistakes of users' components: the examples of docs/your_own.md, in runs of real nodes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import shardyard
from orchestrator.results.store import SweepPaths
from shardyard import InputError, Results
from tests.support.command_line import PROJECT
from tests.support.nightly import nightly
from tests.support.pages import blocks, write_files
from tests.support.runs import write_sweep
from tests.unit import written_components

PAGE = PROJECT / "docs" / "your_own.md"
BASE: dict[str, Any] = {
    "dataset": {"name": "./topics.py:Sentences", "samples": 64},
    "model": "./topics.py:Classifier",
    "loss": "./topics.py:focal",
    "batch_size": 16,
    "epochs": 1,
    "nodes": 2,
}
STRATEGIES: list[dict[str, Any]] = [
    *({"strategy": name} for name in ("fsdp", "pipeline", "parameter_server")),
    {"strategy": {"name": "all_reduce", "compression": "top_k"}},
    {"strategy": "rpc_split", "transport": "rpc"},
    {"strategy": "hogwild", "transport": "memory"},
]
FAILING = """
from pathlib import Path
from torch import nn


class Net(nn.Sequential):
    def __init__(self, shape, classes, limit: int):
        super().__init__(Counted(limit), nn.Linear(shape[0], classes), nn.LogSoftmax(1))


class Counted(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.left = limit

    def forward(self, x):
        self.left -= self.training
        if self.left < 0:
            raise RuntimeError("no batches left")
        return x.float()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory, in whose path are a space and a colon, with the files of the page."""
    path = tmp_path_factory.mktemp("users") / "my own: models"
    path.mkdir()
    write_files(PAGE, path)
    rng = np.random.default_rng(0)
    np.savez(path / "arrays.npz", x=rng.standard_normal((40, 12)), y=rng.integers(3, size=40))
    (path / "failing.py").write_text(FAILING)
    return path


def snippets() -> list[dict[str, Any]]:
    """The fields of runs that the page shows one by one."""
    shown = blocks("docs/your_own.md", "yaml")
    return [yaml.safe_load(block) for block in shown if not block.startswith("# ")]


def swept(folder: Path, name: str, runs: list[dict[str, Any]]) -> Results:
    path = write_sweep(folder / f"{name}.yml", BASE, *runs)
    return shardyard.sweep(path, out=folder / name, runtime="local", progress=False)


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """Every example of the page, the text classifier in every kind of strategy, and a run that fails."""
    # In a run, and not in the batches with which it is tried.
    fails_late = {"model": {"name": "./failing.py:Net", "limit": 20}, "loss": "nll", "batch_size": 1}
    arrays = {"dataset": {"name": "npz", "path": "arrays.npz"}, "model": "mlp", "loss": "nll"}
    others: list[dict[str, Any]] = [
        {**arrays, "strategy": "ddp"},
        {**fails_late, "strategy": "ddp"},
        {**fails_late, "strategy": "rpc_split", "transport": "rpc"},
    ]
    return swept(
        folder, "all", [*({"strategy": "ddp"} | each for each in snippets()), *STRATEGIES, *others]
    )


def topics(folder: Path) -> Results:
    """The sweep of the page. One seed takes a third of the time of three."""
    out = folder / "topics"
    return shardyard.sweep(folder / "topics.yml", out=out, runtime="local", repeat=1, progress=False)


@pytest.mark.nightly
def test_the_classifier_of_the_page_learns_and_changed_code_never_replaces_its_runs(folder: Path) -> None:
    found = topics(folder)
    assert {line["status"] for line in found.runs} == {"ok"}
    assert {line["strategy"] for line in found.runs} == {"serial", "ddp", "local_sgd", "pipeline"}
    assert all(float(line["accuracy"] or 0) > 0.5 for line in found.runs)
    code = (folder / "topics.py").read_text()
    (folder / "topics.py").write_text(code + "\n# changed\n")
    with pytest.raises(InputError, match=r"code or the data of .*topics.py:Classifier.* has changed"):
        topics(folder)
    (folder / "topics.py").write_text(code)
    assert [line["key"] for line in topics(folder).runs] == [line["key"] for line in found.runs]


def test_every_run_trains_or_fails_as_meant(results: Results) -> None:
    failed = [line for line in results.runs if line["status"] != "ok"]
    assert len(results.runs) == len(snippets()) + len(STRATEGIES) + 3
    assert [line["model"] for line in failed] == ["failing.py:Net limit=20"] * 2
    assert all("failing.py:19" in str(line["cause"]) for line in failed)


def test_runs_of_one_batch_agree_between_strategies(results: Results) -> None:
    same = [line for line in results.runs if str(line["model"]) == "topics.py:Classifier"]
    losses = {line["strategy"]: line["test_loss"] for line in same}
    assert losses["pipeline"] == pytest.approx(losses["rpc_split"], rel=1e-4)


def test_the_report_names_components_and_what_their_accuracy_is(results: Results) -> None:
    found = {
        finding["data"]["name"]: finding["data"]["accuracy"]
        for finding in results.findings
        if finding["kind"] == "accuracy_is"
    }
    assert found["mine.py:robust"].startswith("the share of distances")
    assert "mse" in found
    assert "./" not in " ".join(str(line["model"]) for line in results.runs)


def test_reports_need_no_code(results: Results, tmp_path: Path) -> None:
    copied = shutil.copytree(results.directory, tmp_path / "copied")
    shutil.rmtree(SweepPaths(copied).code)
    again = shardyard.load(copied)
    assert again.findings == results.findings
    assert [*again.runs] == [*results.runs]


@pytest.mark.parametrize(
    "models",
    [("FrozenNorm", "Unused", "Mixed"), *nightly((("FrozenChain", "Double", "Noise", "Complex"),))],
)
def test_strategies_of_torch_and_transports_train_as_written(folder: Path, models: tuple[str, ...]) -> None:
    """Equal to all_reduce over gloo, which loading has compared with plain torch."""
    shutil.copy(written_components.__file__, folder / "written.py")
    common = {
        "dataset": "./written.py:vectors",
        "loss": {"name": "./written.py:weighted", "weight": "weight_of_class"},
        "optimizer": "./written.py:by_dimensions",
        "partitioner": "contiguous",
        "batch_size": 4,
        "lr": 0.02,
        "save_weights": True,
    }
    whole = [("ddp", "gloo"), ("zero1", "gloo"), ("fsdp", "gloo"), ("all_reduce", "mpi")]
    several_types = [("ddp", "gloo"), ("all_reduce", "mpi")]
    cases = {model: several_types if model in ("Mixed", "Complex") else whole for model in models}
    blocks = [
        {**common, "model": f"./written.py:{model}", "strategy": strategy, "transport": transport}
        for model, others in cases.items()
        for strategy, transport in [("all_reduce", "gloo"), *others]
    ]
    found = swept(folder, f"as_written_{len(models)}", blocks)
    assert [line["cause"] for line in found.runs if line["status"] != "ok"] == []
    runs = SweepPaths(found.directory)
    weights = [np.load(runs.run(line["key"]).weights) for line in found.runs]
    of_block = {
        (b["model"], b["strategy"], b["transport"]): w for b, w in zip(blocks, weights, strict=True)
    }
    for (model, strategy, transport), values in of_block.items():
        expected = of_block[model, "all_reduce", "gloo"]
        np.testing.assert_allclose(
            values, expected, rtol=1e-3, atol=1e-5, err_msg=f"{model}, {strategy} over {transport}"
        )

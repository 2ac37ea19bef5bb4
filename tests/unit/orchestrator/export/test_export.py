"""Mistakes in exports of results: numbers that are not the report's, stale files, bad places."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from orchestrator.commands.export import export
from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.export.contents import ExportedSweep, parameters_of, read_contents
from orchestrator.results.store import SweepPaths, write_atomic
from tests.unit.report_support import a_run, around, repeated, write_page
from trainer.spec.run_spec import RunSpec

CAUSE = r"node 1: 100% of $HOME & #1_a, x^2 ~ \n {y} -- [z] <b>é"
FAILED, BROKEN = a_run("ddp", nodes=2, status="failed", cause=CAUSE), a_run("gossip", nodes=2)
OK = [*repeated("serial", around(8.0, 0.05)), *repeated("all_reduce", around(4.0, 0.05), nodes=2)]
WITH_LIBRARY = [name for name in EXPORTERS.entries if EXPORTERS.load(name).modules]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that are ok, one that failed, one whose result is damaged, and one that is pending."""
    paths = SweepPaths(tmp_path_factory.mktemp("export") / "results")
    write_atomic(paths.run(BROKEN.key).result, "{")
    return write_page(paths.directory, *OK, FAILED, pending=[BROKEN.key, "later"]).directory


@pytest.fixture(scope="module")
def contents(results: Path) -> ExportedSweep:
    return read_contents(SweepPaths(results))


def lines(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return [*csv.DictReader(opened)]


# Contents


def test_every_value_of_the_report_is_exported_unchanged(results: Path, contents: ExportedSweep) -> None:
    rows = {line["key"]: line for line in lines(results / "results.csv")}
    assert [run.key for run in contents.runs] == [key for key in rows if key != "later"]
    assert contents.pending == 1
    for run in contents.runs:
        cells = {name: text for name, text in rows[run.key].items() if text}
        values = {**run.metrics, **run.tags}
        for name in cells.keys() - RunSpec.model_fields.keys():
            assert str(values.pop(name)) == cells[name], name
        assert values.keys() <= {"sweep", "seed"}
    failed, broken = contents.runs[-2:]
    assert (failed.tags["cause"], failed.parameters["strategy"]) == (CAUSE, "ddp")
    assert "accuracy" not in failed.metrics
    assert (broken.label, broken.parameters) == (f"{BROKEN.key} (unusable)", {})
    assert "result.json" in broken.tags["cause"]


def test_every_epoch_of_the_report_is_exported_unchanged(results: Path, contents: ExportedSweep) -> None:
    exported = [(run, epoch) for run in contents.runs for epoch in run.epochs]
    for (run, epoch), row in zip(exported, lines(results / "epochs.csv"), strict=True):
        assert (run.key, str(epoch.number)) == (row["key"], row["epoch"])
        assert {"loss", "accuracy", "train_s"} <= epoch.values.keys()
        assert {name: str(value) for name, value in epoch.values.items()}.items() <= row.items()
        assert epoch.time_s == OK[0].started_at + OK[0].startup_s + epoch.values["train_s"]


def test_parameters_are_named_as_with_set() -> None:
    fields = {
        "strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.25}},
        "faults": [{"kill": {"node": 1}, "at": {"epoch": 1}}],
        "link": {"bandwidth_mbit": 100.0},
    }
    spec = RunSpec.model_validate({"nodes": 2, "transport": "gloo", **fields})
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
    assert ("target_accuracy" in found, "partitioner" in found) == (False, True)
    assert "partitioner" not in dict(parameters_of(RunSpec.model_validate({"strategy": "serial"})))


# Formats


def test_csv(results: Path, contents: ExportedSweep, tmp_path: Path) -> None:
    assert "left out, since they are pending: 1 run" in [*export(results, "csv", tmp_path)]
    for run, line in zip(contents.runs, lines(tmp_path / "runs.csv"), strict=True):
        assert (line["tags.key"], line["tags.cause"]) == (run.key, run.tags.get("cause", ""))
        assert line["metrics.accuracy"] == str(run.metrics.get("accuracy", ""))
        assert line["params.strategy"] == run.parameters.get("strategy", "")
    assert (tmp_path / "configurations.csv").read_text() == (results / "summary.csv").read_text()
    for own, row in zip(lines(tmp_path / "epochs.csv"), lines(results / "epochs.csv"), strict=True):
        assert own.items() <= row.items()
        assert {"key", "epoch", "loss"} <= own.keys()


def test_exporting_again_changes_only_what_has_changed(results: Path, tmp_path: Path) -> None:
    def changes() -> set[str]:
        done = (line.partition(": ") for line in export(copy, "csv", None))
        return {change for change, _, name in done if str(copy) in name} & {
            "added",
            "replaced",
            "unchanged",
        }

    copy = tmp_path / "copy"
    shutil.copytree(results, copy)
    assert [changes(), changes()] == [{"added"}, {"unchanged"}]
    before = {run.key: run.digest for run in read_contents(SweepPaths(copy)).runs}
    assert len({*before.values()}) == len(before)
    path = copy / FAILED.key / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cause": "another one"}))
    after = {run.key: run.digest for run in read_contents(SweepPaths(copy)).runs}
    assert {key for key in before if before[key] != after[key]} == {FAILED.key}
    assert "replaced" in changes()


# Bad input


def test_unknown_formats_and_unusable_directories_are_refused(results: Path, tmp_path: Path) -> None:
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for source, to, out, message in (
        (results, "tensorbord", None, r"--to tensorbord: .*'tensorboard'.*known: csv, .*kuberay"),
        (empty, "csv", None, r"no sweep\.json"),
        (results, "csv", file, "--out"),
        (results, "csv", file / "below", "--out"),
    ):
        with pytest.raises(InputError, match=message):
            [*export(source, to, out)]
    assert [*empty.iterdir()] == []


def test_a_missing_library_is_named_with_its_extra(results: Path, tmp_path: Path) -> None:
    for to in WITH_LIBRARY:
        module = EXPORTERS.load(to).modules[0]
        (tmp_path / module).mkdir()  # a folder of this name, as an export creates, is no library
        for missing, path in (({module: None}, sys.path), ({}, [str(tmp_path)])):
            with patch.dict(sys.modules, missing), patch.object(sys, "path", path):
                if not missing:
                    sys.modules.pop(module, None)
                with pytest.raises(InputError, match=rf"package {module} is missing.*'shardyard\[{to}\]'"):
                    [*export(results, to, tmp_path / "out")]
    assert not (tmp_path / "out").exists()

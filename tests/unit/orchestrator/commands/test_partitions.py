"""The command `partitions`: its counts equal the data nodes train on, and its output fits 80 columns."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import cli
from orchestrator.commands.partitions import (
    PartitionPreview,
    heading,
    label_lines,
    preview,
    runs_of,
    summary_lines,
    write_files,
)
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
from tests.unit.conftest import PROJECT
from trainer.data.base import Indices, Labels, Partitioner
from trainer.spec.registries import PARTITIONERS
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.task import Task

NOWHERE = Path("/nonexistent")
NO_IMPORTS = Imports(NOWHERE)
SMALL = "{name: synthetic, samples: 200, classes: 4, height: 3, width: 3}"
TWO = ["random_partition", "random_sampling"]


class Halves(Partitioner):
    """Lower labels on the first half of the nodes, higher ones on the second; needs an even number."""

    margin_of_the_parts_that_is_kept_free: int = 0

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        if parts % 2:
            raise ValueError(
                f"{parts} parts are no two halves, and halves are all that this one is able to make"
            )
        order = np.argsort(labels, kind="stable")
        return np.array_split(order, parts)


@pytest.fixture(autouse=True)
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTITIONERS.entries, "halves", f"{__name__}:Halves")  # type: ignore[arg-type]


def previews_of(
    dataset: str = SMALL, nodes: int = 4, partitioners: Any = (), seed: int = 0
) -> list[PartitionPreview]:
    return list(preview(runs_of(dataset, nodes, partitioners, seed, NO_IMPORTS), NOWHERE, NO_IMPORTS))


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    code = cli.app(["partitions", *arguments], standalone_mode=False)
    return code or 0, capsys.readouterr().out


# Counts


@pytest.mark.parametrize("reshuffle", ["false", "true"])
@pytest.mark.parametrize("name", PARTITIONERS.entries)
def test_counts_equal_the_samples_that_a_run_loads(name: str, reshuffle: str, tmp_path: Path) -> None:
    drawn = previews_of(partitioners=[f"{{name: {name}, reshuffle: {reshuffle}}}"], seed=3)
    write_files(drawn, tmp_path)
    if drawn[0].summary is None:
        assert drawn[0].reason
        return
    counts = np.zeros((4, 4), int)
    with open(tmp_path / "labels.csv", newline="") as file:
        for line in csv.DictReader(file):
            counts[int(line["node"]), int(line["label"])] = int(line["samples"])
    written = {"name": "synthetic", "samples": 200, "classes": 4, "height": 3, "width": 3}
    trained = RunSpec.model_validate(
        {
            "strategy": "ddp",
            "model": "mlp",
            "nodes": 4,
            "seed": 3,
            "dataset": written,
            "partitioner": {"name": name, "reshuffle": reshuffle == "true"},
        }
    )
    task = Task(trained, NOWHERE)
    for rank in range(4):
        loaded = [
            indices for _, indices in BatchLoader(task.data.train, trained, task.rngs, rank, 4).batches(1)
        ]
        labels = task.data.train.labels[np.concatenate(loaded)]
        assert np.bincount(labels, minlength=4).tolist() == counts[rank].tolist()


def test_default_is_all_registered_partitioners() -> None:
    assert [item.label for item in previews_of()] == list(PARTITIONERS.entries)
    named = previews_of(partitioners=["random_sampling", "{name: random_partition, reshuffle: true}"])
    assert [item.label for item in named] == ["random_sampling", "random_partition reshuffle=true"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partitioners": ["telepathy"]}, "--partitioner telepathy: .*known: .*random_partition"),
        (
            {"partitioners": ["{name: halves, x: 1}"]},
            "--partitioner .name: halves, x: 1.: x: unknown key; allowed",
        ),
        ({"partitioners": ["{name: "]}, "--partitioner .name: "),
        ({"dataset": "moon"}, "--dataset moon: .*known: .*digits"),
        ({"nodes": 0}, "--nodes 0: "),
        ({"nodes": 201}, "--nodes 201: .*allowed: 1 to 200"),
        ({"seed": -1}, "--seed -1: "),
    ],
)
def test_input_errors_name_value_and_allowed_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        previews_of(**arguments)


def test_missing_dataset_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # a file in place of the directory prevents the download
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz is not in .*/file and cannot be"):
        list(preview(runs_of("mnist", 2, (), 0, NO_IMPORTS), tmp_path / "file", NO_IMPORTS))


# The tables


def test_summary_of_a_known_partition() -> None:
    (item,) = previews_of(nodes=2, partitioners=["halves"])
    *_, row = summary_lines([item], 80)
    # Per node, labels are distributed as (1/2, 1/2, 0, 0) or the reverse, overall as (1/4, 1/4, 1/4, 1/4):
    # JS divergence 0.311 bits, earth mover's distance 4 |1/2 - 1/4| = 1.
    assert row.split() == [
        "halves",
        "100",
        "100",
        "100",
        "100.0%",
        "0.0%",
        "0.311",
        "0.311",
        "1.00",
        "1.00",
        "2",
    ]
    assert heading([item]).endswith("200 training samples on 2 nodes, seed 0")
    assert label_lines(item, 80) == [
        "halves: samples per node and label",
        "node  0  1  2  3",
        "   0 50 50  ·  ·",
        "   1  ·  · 50 50",
    ]


def test_failed_partitioner_has_a_row_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [option for name in ("halves", *TWO) for option in ("--partitioner", name)]
    arguments = ["--dataset", SMALL, "--nodes", "3", *names, "--out", str(tmp_path)]
    code, shown = show(capsys, *arguments)
    assert code == 1
    rows = [
        line for line in shown.splitlines() if line.startswith(("halves", *TWO)) and ":" not in line[:17]
    ]
    assert rows[0].split()[:6] == ["halves", "not", "possible:", "3", "parts", "are"]
    assert [row.split()[0] for row in rows] == ["halves", *TWO]
    assert "able to make" in shown
    with open(tmp_path / "partitions.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["status"] for line in lines] == ["failed", "ok", "ok"]
    assert lines[0]["cause"].startswith("3 parts are no two halves")
    assert [line["coverage"] for line in lines[:2]] == ["", "1.0"]
    assert show(capsys, *arguments[:4], "--partitioner", "random_sampling")[0] == 0


def test_no_figure_if_every_partitioner_fails(tmp_path: Path) -> None:
    drawn = previews_of(nodes=3, partitioners=["halves"])
    assert [path.name for path in write_files(drawn, tmp_path)] == ["partitions.csv", "labels.csv"]
    assert "not possible: 3 parts" in "\n".join(summary_lines(drawn, 80))


LONG = "{name: halves, margin_of_the_parts_that_is_kept_free: %s}"


@pytest.mark.parametrize("nodes", [1, 2, 8, 100])
@pytest.mark.parametrize(
    "dataset",
    [SMALL, "digits", "{name: synthetic, samples: 1500, classes: 1000, height: 1, width: 1}"],
    ids=["small", "digits", "classes"],
)
@pytest.mark.parametrize("length", [1, 60], ids=["short", "long"])
def test_output_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dataset: str,
    nodes: int,
    length: int,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = ["--partitioner", LONG % ("1" * length)]
    code, shown = show(capsys, "--dataset", dataset, "--nodes", str(nodes), *long, "--partitioner", TWO[0])
    assert code == nodes % 2
    lines = shown.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the first line repeats the dataset argument
    assert "margin_of_the_parts" in shown


def test_large_numbers_fit_80_columns() -> None:
    (item,) = previews_of(nodes=2, partitioners=["random_partition"])
    assert item.summary
    item.summary.labels[:] *= 1_000_000
    assert max(map(len, summary_lines([item], 80))) <= 80
    assert summary_lines([item], 80)[-2:][0] == "random_partition"  # the label has a line of its own


def test_label_table_names_omitted_nodes_and_labels() -> None:
    dataset = "{name: synthetic, samples: 1500, classes: 1000, height: 1, width: 1}"
    (item,) = previews_of(dataset, nodes=20, partitioners=["random_partition"])
    *table, last = label_lines(item, 80)
    shown = int(table[1].split()[-1])
    assert last == f"not shown: nodes 16 to 19 and labels {shown + 1} to 999; --out DIR writes all"
    assert len(table) == 2 + 16
    assert len(table[1]) <= 80 < len(table[1]) + 4  # as many columns as fit
    (item,) = previews_of(nodes=16, partitioners=["random_partition"])
    assert not any("left out" in line for line in label_lines(item, 80))


# Files and imports


def test_write_files(tmp_path: Path) -> None:
    drawn = previews_of(partitioners=TWO)
    paths = write_files(drawn, tmp_path / "new" / "place")
    assert [path.name for path in paths] == ["partitions.csv", "labels.csv", "labels.svg"]
    svg = paths[2].read_text()
    assert svg.startswith("<svg")
    assert "random_sampling, 4" in svg
    assert len(paths[1].read_text().splitlines()) == 1 + 2 * 4 * 4
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"/file: is not a directory; choose another --out"):
        write_files(drawn, tmp_path / "file")


def test_tables_need_neither_torch_nor_altair() -> None:
    command = (
        "import sys; from orchestrator import cli\n"
        f"cli.app(['partitions', '--nodes', '2', '--dataset', '{SMALL}'], standalone_mode=False)\n"
        "print('loaded:', *sorted({'torch', 'mpi4py', 'sklearn', 'altair'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded:\n")

"""The command `partitions`: what it draws is what nodes train on, and it tells it in 80 columns."""

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
from tests.unit.conftest import PROJECT
from trainer.data.base import Indices, Labels, Partitioner
from trainer.spec.registries import PARTITIONERS
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.task import Task

NOWHERE = Path("/nonexistent")
SMALL = "{name: synthetic, samples: 200, classes: 4, height: 3, width: 3}"
TWO = ["random_partition", "random_sampling"]


class Halves(Partitioner):
    """Labels below the middle on the first nodes, the others on the rest; only for even numbers."""

    margin_of_the_parts_that_is_kept_free: int = 0

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
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
    return list(preview(runs_of(dataset, nodes, partitioners, seed), NOWHERE))


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command as typed."""
    code = cli.app(["partitions", *arguments], standalone_mode=False)
    return code or 0, capsys.readouterr().out


# What is drawn


@pytest.mark.parametrize("reshuffle", ["false", "true"])
@pytest.mark.parametrize("name", PARTITIONERS.entries)
def test_the_counts_are_those_of_the_samples_that_a_run_feeds(
    name: str, reshuffle: str, tmp_path: Path
) -> None:
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
        fed = [
            indices for _, indices in BatchLoader(task.data.train, trained, task.rngs, rank, 4).batches(1)
        ]
        labels = task.data.train.labels[np.concatenate(fed)]
        assert np.bincount(labels, minlength=4).tolist() == counts[rank].tolist()


def test_all_registered_partitioners_unless_some_are_named() -> None:
    assert [item.label for item in previews_of()] == list(PARTITIONERS.entries)
    named = previews_of(partitioners=["random_sampling", "{name: random_partition, reshuffle: true}"])
    assert [item.label for item in named] == ["random_sampling", "random_partition reshuffle=true"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partitioners": ["telepathy"]}, "--partitioner telepathy: .*known: .*random_partition"),
        (
            {"partitioners": ["{name: halves, x: 1}"]},
            "--partitioner .name: halves, x: 1.: unknown key; allowed",
        ),
        ({"partitioners": ["{name: "]}, "--partitioner .name: "),
        ({"dataset": "moon"}, "--dataset moon: .*known: .*digits"),
        ({"nodes": 0}, "--nodes 0: "),
        ({"nodes": 201}, "--nodes 201: .*allowed: 1 to 200"),
        ({"seed": -1}, "--seed -1: "),
    ],
)
def test_bad_input_is_named_with_what_is_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        previews_of(**arguments)


def test_a_dataset_that_cannot_be_had_is_named_with_what_mends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # where a directory should be: nothing is downloaded
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz is not in .*/file and cannot be"):
        list(preview(runs_of("mnist", 2, (), 0), tmp_path / "file"))


# The tables


def test_the_summary_by_hand() -> None:
    (item,) = previews_of(nodes=2, partitioners=["halves"])
    *_, row = summary_lines([item], 80)
    # Two of four labels on each node: |1/2 - 1/4| four times, and of two bits one is known.
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


def test_one_that_cannot_split_has_a_row_with_the_reason_and_the_others_go_on(
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


def test_if_none_can_split_there_is_no_figure_but_reasons(tmp_path: Path) -> None:
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
def test_everything_fits_into_80_columns(
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
    assert max(map(len, lines[1:])) <= 80  # the first names the dataset as it was typed
    assert "margin_of_the_parts" in shown


def test_large_numbers_fit_too() -> None:
    (item,) = previews_of(nodes=2, partitioners=["random_partition"])
    assert item.summary
    item.summary.labels[:] *= 1_000_000
    assert max(map(len, summary_lines([item], 80))) <= 80
    assert summary_lines([item], 80)[-2:][0] == "random_partition"  # above its row


def test_what_is_left_out_of_the_table_of_labels_is_said() -> None:
    dataset = "{name: synthetic, samples: 1500, classes: 1000, height: 1, width: 1}"
    (item,) = previews_of(dataset, nodes=20, partitioners=["random_partition"])
    *table, last = label_lines(item, 80)
    shown = int(table[1].split()[-1])
    assert last == f"not shown: nodes 16 to 19 and labels {shown + 1} to 999; --out DIR writes all"
    assert len(table) == 2 + 16
    assert len(table[1]) <= 80 < len(table[1]) + 4  # as many as there is room for
    (item,) = previews_of(nodes=16, partitioners=["random_partition"])
    assert not any("left out" in line for line in label_lines(item, 80))


# The files and the package


def test_files_are_written_or_the_reason_is_named(tmp_path: Path) -> None:
    drawn = previews_of(partitioners=TWO)
    paths = write_files(drawn, tmp_path / "new" / "place")
    assert [path.name for path in paths] == ["partitions.csv", "labels.csv", "labels.svg"]
    svg = paths[2].read_text()
    assert svg.startswith("<svg")
    assert "random_sampling, 4" in svg
    assert len(paths[1].read_text().splitlines()) == 1 + 2 * 4 * 4
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out .*/file: cannot be written"):
        write_files(drawn, tmp_path / "file")


def test_it_needs_no_torch_and_for_tables_no_matplotlib() -> None:
    command = (
        "import sys; from orchestrator import cli\n"
        f"cli.app(['partitions', '--nodes', '2', '--dataset', '{SMALL}'], standalone_mode=False)\n"
        "print('loaded:', *sorted({'torch', 'mpi4py', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded:\n")

"""Mistakes in `partitions`: counts that are not what nodes train on, lost reasons, tables too wide."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import cli
from orchestrator.commands.partitions import PartitionPreview, preview, runs_of, write_files
from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports
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

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        if parts % 2:
            raise ValueError(f"{parts} parts are no two halves, and it is able to make nothing else")
        return np.array_split(np.argsort(labels, kind="stable"), parts)


@pytest.fixture(autouse=True)
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTITIONERS.entries, "halves", f"{__name__}:Halves")  # type: ignore[arg-type]


def previews_of(
    dataset: str = SMALL, nodes: int = 4, partitioners: Any = (), seed: int = 0
) -> list[PartitionPreview]:
    return list(preview(runs_of(dataset, nodes, partitioners, seed, NO_IMPORTS), NOWHERE, NO_IMPORTS))


def lines(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as opened:
        return [*csv.DictReader(opened)]


# Counts


@pytest.mark.parametrize("reshuffle", [False, True])
def test_counts_equal_the_samples_that_a_run_loads(reshuffle: bool, tmp_path: Path) -> None:
    texts = [f"{{name: {name}, reshuffle: {reshuffle}}}" for name in PARTITIONERS.entries]
    drawn = previews_of(partitioners=texts, seed=3)
    write_files(drawn, tmp_path)
    counts: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    for line in lines(tmp_path / "labels.csv"):
        counts[line["partitioner"]][int(line["node"]), int(line["label"])] = int(line["samples"])
    assert {*counts} == {item.label for item in drawn if not item.reason}
    for label, counted in counts.items():
        fields = next(item.run for item in drawn if item.label == label).model_dump(mode="json")
        spec = RunSpec.model_validate({**fields, "strategy": "ddp", "transport": "gloo"})
        task = Task(spec, NOWHERE)
        for rank in range(4):
            batches = BatchLoader(task.data.train, spec, task.rngs, rank, 4).batches(1)
            labels = task.data.train.labels[np.concatenate([indices for _, indices in batches])]
            assert [*np.bincount(labels, minlength=4)] == [counted[rank, each] for each in range(4)]


# The tables


def test_failed_partitioner_has_a_row_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [option for name in ("halves", *TWO) for option in ("--partitioner", name)]
    options = ["--dataset", SMALL, "--nodes", "3", *names, "--out", str(tmp_path)]
    assert cli.app(["partitions", *options], standalone_mode=False) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "halves not possible: 3 parts are no two halves, and it is able to make nothing else" in text
    found = lines(tmp_path / "partitions.csv")
    assert [(line["status"], line["coverage"]) for line in found[:2]] == [("failed", ""), ("ok", "1.0")]
    only = write_files(previews_of(nodes=3, partitioners=["halves"]), tmp_path / "new" / "place")
    assert [path.name for path in only] == ["partitions.csv", "labels.csv"]
    with pytest.raises(InputError, match=r"labels\.csv: is not a directory; choose another --out"):
        write_files(previews_of(nodes=200, partitioners=TWO), tmp_path / "labels.csv")  # a sample each

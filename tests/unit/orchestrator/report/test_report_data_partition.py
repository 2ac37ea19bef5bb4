"""Mistakes in data partitions: which epoch and run counts, ranks and labels of cells, scales of maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from orchestrator.report import formats
from orchestrator.report.figures import maps
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.maps import (
    MAX_MAPPED_LABELS,
    MAX_MAPPED_RANKS,
    LabelMap,
    label_maps,
)
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.quantities.data_partition import partition_summary_of, representatives
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_run,
    csv_lines,
    marks_of,
    records_of,
    value,
)
from trainer.data.certificate import earth_movers_distance
from trainer.training.partition import PartitionSummary

LABELS = [[40, 0, 3], [10, 47, 0]]


def with_labels(run: RunResult, labels: Sequence[Sequence[int]], *, distances: bool = True) -> RunResult:
    """The run with these samples per rank and class in epoch 1 of its certificate."""
    assert run.certificate
    whole = np.sum(labels, axis=0)
    parts = []
    for part, row in zip(run.certificate.parts, labels, strict=True):
        distance = earth_movers_distance(row, whole) if distances else None
        update = {"labels": list(row), "samples": sum(row), "earth_movers_distance": distance}
        parts.append(part.model_copy(update=update))
    certificate = run.certificate.model_copy(update={"parts": parts})
    return run.model_copy(update={"certificate": certificate})


def a_split(ranks: int, classes: int = 10, name: str = "made", per_node: int = 1) -> LabelMap:
    counts = np.arange(ranks * classes).reshape(ranks, classes) + 1000
    summary = PartitionSummary(counts, 0.75, 0.25, (0.1,) * ranks, (0.5,) * ranks)
    return LabelMap(name, ClusterShape(ranks // per_node, per_node), summary)


def panels(chart: Chart) -> list[dict[str, Any]]:
    """The maps of a figure, row by row."""
    return [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]


def mapped(chart: Chart) -> list[int]:
    """The numbers of samples in all cells of maps."""
    return [record["samples"] for record in records_of(chart) if "samples" in record]


# What certificates say


def test_a_partition_summary_has_the_counts_of_the_certificate() -> None:
    run = with_labels(a_run("ddp", nodes=2, coverage=0.8, overlap=0.1), LABELS)
    comparison = a_comparison(run)
    (row,) = comparison.rows
    seen = partition_summary_of(row)
    assert seen
    assert seen.labels.tolist() == LABELS
    assert (seen.coverage, seen.overlap, seen.js_divergence) == (0.8, 0.1, (0.0, 0.01))
    # Of 100 samples, the classes have 50, 47 and 3. Rank 0: |40/43 - 0.50| + 0.47 + |3/43 - 0.03|.
    first, second = 40 / 43 - 0.5 + 0.47 + 3 / 43 - 0.03, 0.5 - 10 / 57 + 47 / 57 - 0.47 + 0.03
    assert value(row, "earth_movers_distance_mean") == pytest.approx((first + second) / 2)
    assert float(csv_lines(comparison)[0]["earth_movers_distance_max"]) == pytest.approx(first)


def test_shares_of_the_training_set_are_those_of_the_first_and_the_last_epoch() -> None:
    run = a_run("ddp", nodes=2)
    assert run.certificate
    splits = [
        split.model_copy(update=dict.fromkeys(("coverage", "coverage_so_far"), at / 10))
        for at, split in enumerate(run.certificate.splits, 1)
    ]
    certificate = run.certificate.model_copy(update={"splits": splits[::-1]})  # as they arrived
    (row,) = a_comparison(run.model_copy(update={"certificate": certificate})).rows
    assert (value(row, "coverage"), value(row, "coverage_whole_run")) == (0.1, 0.2)


def test_the_divergence_of_a_run_is_the_largest_after_its_last_epoch() -> None:
    run = a_run("ddp", nodes=2)
    assert run.certificate
    parts = [
        part.model_copy(update={"epoch": epoch, "js_divergence_so_far": 0.4 / epoch - 0.1 * part.rank})
        for epoch in (2, 1)
        for part in run.certificate.parts
    ]
    certificate = run.certificate.model_copy(update={"parts": parts})
    (row,) = a_comparison(run.model_copy(update={"certificate": certificate})).rows
    assert value(row, "js_divergence_whole_run_max_bits") == 0.2


def test_one_map_for_each_partitioner_and_number_of_ranks_of_the_lowest_seed() -> None:
    fields: list[dict[str, Any]] = [
        {"nodes": 4, "seed": 1},
        {"nodes": 4},
        {"nodes": 4, "transport": "mpi", "strategy": "all_reduce"},
        {"nodes": 2, "partitioner": "random_sampling"},
        {"nodes": 2},
        {"nodes": 1},
        {"nodes": 8, "status": "failed", "cause": "gone"},
    ]
    runs = [a_run(**{"strategy": "ddp", **each}) for each in fields]
    rows = representatives(a_comparison(SERIAL, *runs).groups)
    shown = [(row.shape.ranks, row.partitioner_label, row.strategy, row.seed) for row in rows]
    assert shown == [
        (2, "random_sampling", "ddp", 0),
        (2, "random_partition", "ddp", 0),
        (4, "random_partition", "ddp", 0),
    ]
    (alone,) = representatives(a_comparison(SERIAL, runs[5]).groups)
    assert alone.shape.ranks == 1


# Drawing


def test_a_cell_is_at_its_rank_and_label_and_is_shaded_by_its_count() -> None:
    counts = np.array([[7, 0, 3], [1, 9, 0]])
    summary = PartitionSummary(counts, 1.0, 0.0, (0.1, 0.2), (0.3, 0.4))
    for shape, noun, first in ((ClusterShape(2), "node", 0), (ClusterShape(3), "node", 1)):  # a server
        chart = label_maps([LabelMap("made", shape, summary)])
        written = {(int(cell[noun]) - first, cell["label"]): cell["samples"] for cell in records_of(chart)}
        assert written == {(0, 0): 7, (0, 2): 3, (1, 0): 1, (1, 1): 9}
        drawn, numbers = panels(chart)[0]["layer"]
        assert drawn["encoding"]["opacity"]["scale"]["domain"] == [0, 9]
        assert numbers["encoding"]["text"]["field"] == "samples"
        assert drawn["encoding"]["y"]["scale"]["domain"] == [str(first), str(first + 1)]  # from the top


def test_many_ranks_labels_or_cells_have_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    assert a_split(MAX_MAPPED_RANKS, MAX_MAPPED_LABELS).mapped
    assert not a_split(4, MAX_MAPPED_LABELS + 1).mapped
    many = label_maps([a_split(MAX_MAPPED_RANKS + 1)])
    assert (mapped(many), len(records_of(many))) == ([], 10)
    assert "rect" not in marks_of(many.spec)
    monkeypatch.setattr(maps, "MOST_CELLS", 60)
    assert len(mapped(label_maps([a_split(4), a_split(8)]))) == 40


def test_maps_of_equally_many_ranks_have_one_scale_and_a_title_each() -> None:
    chart = label_maps([a_split(2, per_node=2), a_split(3, name="one"), a_split(3, name="other")])
    ends = [panel["layer"][0]["encoding"]["opacity"]["scale"]["domain"][1] for panel in panels(chart)]
    assert ends == [1019, 1029, 1029]
    titles = [panel["title"]["text"][0].replace(formats.JOIN, " ") for panel in panels(chart)]
    assert titles == ["made, 1 node × 2 ranks", "one, 3 nodes", "other, 3 nodes"]
    axes = [panel["layer"][0]["encoding"]["y"]["axis"]["title"] for panel in panels(chart)]
    assert axes == ["rank", "node", "node"]


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        ([1], [1]),
        ([3, 3], [3, 3]),
        ([2, 2, 2], [2, 2, 2]),
        ([4, 4], [3, 3, 2]),
        ([1, 1], [2]),
        ([1, 1, 2], [2, 2]),
    ],
)
def test_maps_are_side_by_side(made: list[int], rows: list[int]) -> None:
    """made: how many maps there are of each number of ranks."""
    splits = [a_split(ranks, 2, f"p{n}") for ranks, count in enumerate(made, 2) for n in range(count)]
    drawn = [*maps._rows(splits)]
    assert [len(row) for row in drawn] == rows
    assert [each for row in drawn for each in row] == splits

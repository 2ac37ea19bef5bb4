"""Data partitions in the report: counts and distances of the certificate, and label maps."""

from __future__ import annotations

import json
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
    describe,
    label_maps,
)
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.quantities.data_partition import (
    partition_summary_of,
    representatives,
)
from orchestrator.report.render.columns import CERTIFICATES
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_run,
    cells,
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
        parts.append(
            part.model_copy(
                update={"labels": list(row), "samples": sum(row), "earth_movers_distance": distance}
            )
        )
    certificate = run.certificate.model_copy(update={"parts": parts})
    return run.model_copy(update={"certificate": certificate})


def a_split(ranks: int, classes: int = 10, name: str = "made", per_node: int = 1) -> LabelMap:
    counts = np.arange(ranks * classes).reshape(ranks, classes) + 1000
    partition_summary = PartitionSummary(counts, 0.75, 0.25, (0.1,) * ranks, (0.5,) * ranks)
    return LabelMap(name, ClusterShape(ranks // per_node, per_node), partition_summary)


def panels(chart: Chart) -> list[dict[str, Any]]:
    """The maps of a figure, row by row."""
    return [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]


def mapped(chart: Chart) -> list[int]:
    """The numbers of samples in all cells of maps."""
    return [record["samples"] for record in records_of(chart) if "samples" in record]


# Partition summaries


def test_a_partition_summary_has_the_counts_of_the_certificate() -> None:
    run = with_labels(a_run("ddp", nodes=2, coverage=0.8, overlap=0.1), LABELS)
    (row,) = a_comparison(run).rows
    seen = partition_summary_of(row)
    assert seen
    assert seen.labels.tolist() == LABELS
    assert (seen.coverage, seen.overlap, seen.js_divergence) == (0.8, 0.1, (0.0, 0.01))
    # Of 100 samples, the classes have 50, 47 and 3. Rank 0: |40/43 - 0.50| + 0.47 + |3/43 - 0.03|.
    first, second = 40 / 43 - 0.5 + 0.47 + 3 / 43 - 0.03, 0.5 - 10 / 57 + 47 / 57 - 0.47 + 0.03
    assert seen.earth_movers_distance == pytest.approx((first, second))
    assert value(row, "earth_movers_distance_mean") == pytest.approx((first + second) / 2)
    assert value(row, "earth_movers_distance_max") == pytest.approx(first)
    (line,) = csv_lines(a_comparison(run))
    assert float(line["earth_movers_distance_max"]) == pytest.approx(first)
    assert "earth_movers_distance_mean" in cells(CERTIFICATES, a_comparison(run).groups)[0]


def test_a_result_without_the_distance_still_has_its_map() -> None:
    run = with_labels(a_run("ddp", nodes=2), LABELS)
    old = json.loads(run.model_dump_json())
    for part in old["certificate"]["parts"]:
        del part["earth_movers_distance"]
    comparison = a_comparison(RunResult.model_validate(old))
    (row,) = comparison.rows
    seen = partition_summary_of(row)
    assert seen
    assert "EMD" not in describe(seen)
    assert value(row, "earth_movers_distance_mean") is value(row, "earth_movers_distance_max") is None
    assert csv_lines(comparison)[0]["earth_movers_distance_mean"] == ""
    assert not any(key.startswith("earth") for key in cells(CERTIFICATES, comparison.groups)[0])


def test_a_failed_run_has_no_partition_summary() -> None:
    failed = a_run("ddp", nodes=2, status="failed", cause="node 0: gone")
    (row,) = a_comparison(failed).rows
    assert partition_summary_of(row) is None
    assert value(row, "earth_movers_distance_max") is None


def test_a_map_describes_its_partition() -> None:
    skewed = PartitionSummary(np.array([[9, 0], [2_000, 1]]), 0.75, 0.25, (0.1, 0.3), (0.5, 1.5))
    assert describe(skewed).splitlines() == [
        "9–2,001, mean 1,005 samples each",
        "coverage 75.0%, overlap 25.0%",
        "JS 0.200, max 0.300; EMD 1.00, max 1.50",
    ]
    equal = PartitionSummary(np.array([[5, 5], [5, 6]]), 1.0, 0.0, (0.0, 0.0), ())
    assert describe(equal).splitlines()[0] == "10–11 samples each"


# Selection of maps


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


def test_map_shows_every_count_and_leaves_zero_cells_empty() -> None:
    split = a_split(16)
    split.partition_summary.labels[3, 7] = 0
    chart = label_maps([split, a_split(16, name="other")])
    assert len(mapped(chart)) == 2 * 160 - 1
    assert sorted(set(mapped(chart))) == list(range(1000, 1160))
    titles = [panel["title"]["text"][0].replace(formats.JOIN, " ") for panel in panels(chart)]
    assert titles == ["made, 16 nodes", "other, 16 nodes"]


def test_a_cell_is_at_its_rank_and_label_and_is_shaded_by_its_count() -> None:
    counts = np.array([[7, 0, 3], [1, 9, 0]])
    summary = PartitionSummary(counts, 1.0, 0.0, (0.1, 0.2), (0.3, 0.4))
    chart = label_maps([LabelMap("made", ClusterShape(2), summary)])
    written = {(cell["node"], cell["label"]): cell["samples"] for cell in records_of(chart)}
    assert written == {("0", 0): 7, ("0", 2): 3, ("1", 0): 1, ("1", 1): 9}
    cells, numbers = panels(chart)[0]["layer"]
    assert cells["encoding"]["opacity"]["scale"]["domain"] == [0, 9]
    assert numbers["encoding"]["text"]["field"] == "samples"
    assert cells["encoding"]["y"]["scale"]["domain"] == ["0", "1"]  # node 0 at the top, as in the tables


def test_more_ranks_or_labels_than_can_be_mapped_have_a_summary() -> None:
    assert len(mapped(label_maps([a_split(MAX_MAPPED_RANKS)]))) == 10 * MAX_MAPPED_RANKS
    for ranks, labels in ((MAX_MAPPED_RANKS + 1, 10), (4, MAX_MAPPED_LABELS + 1)):
        many = label_maps([a_split(ranks, labels)])
        assert mapped(many) == []
        assert len(records_of(many)) == labels
        assert "rect" not in marks_of(many.spec)


def test_many_cells_become_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST_CELLS", 60)
    chart = label_maps([a_split(4), a_split(8)])
    assert len(mapped(chart)) == 40


def test_cells_without_room_for_numbers_have_a_legend() -> None:
    chart = label_maps([a_split(8, classes=100)])
    assert "text" not in marks_of(chart.spec)
    (cells,) = panels(chart)[0]["layer"]
    assert cells["encoding"]["opacity"]["legend"]["title"] == "samples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "rows"),
    [
        ([(4, 1)], [1]),
        ([(4, 2)], [2]),
        ([(4, 3), (16, 3)], [3, 3]),
        ([(4, 2), (8, 2), (16, 2)], [2, 2, 2]),
        ([(4, 4), (40, 4)], [3, 3, 2]),
        ([(2, 8)], [3, 3, 2]),
        ([(2, 1), (3, 1)], [2]),
        ([(2, 1), (3, 1), (4, 2)], [2, 2]),
    ],
)
def test_maps_are_side_by_side(made: list[tuple[int, int]], rows: list[int]) -> None:
    """made: pairs of a number of ranks and a number of partitioners."""
    chart = label_maps([a_split(ranks, name=f"p{n}") for ranks, count in made for n in range(count)])
    assert [len(row["hconcat"]) for row in chart.spec["vconcat"]] == rows
    assert chart.wide == (max(rows) > 1)
    titles = {tuple(panel["title"]["text"]) for panel in panels(chart)}
    assert len(titles) == sum(count for _, count in made)


def test_maps_of_equally_many_ranks_have_one_scale() -> None:
    chart = label_maps([a_split(2), a_split(3, name="one"), a_split(3, name="other")])
    ends = [panel["layer"][0]["encoding"]["opacity"]["scale"]["domain"][1] for panel in panels(chart)]
    assert ends == [1019, 1029, 1029]


def test_axes_count_ranks_if_nodes_have_several() -> None:
    chart = label_maps([a_split(8, per_node=4)])
    assert "rank" in chart.spec["title"]
    assert panels(chart)[0]["layer"][0]["encoding"]["y"]["axis"]["title"] == "rank"

"""Mistakes in what a report says of partitioned models and data: the fullest and the busiest rank, stages
that are none, traffic in one direction, which epoch, run or split point counts, cells and scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from orchestrator.report.figures import label_maps as maps
from orchestrator.report.figures.label_maps import MOST_LABELS, MOST_RANKS, LabelMap, label_maps
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.model.split_points import two_stage_splits
from orchestrator.report.quantities import model_partition as partition
from orchestrator.report.render.results import result_sections
from orchestrator.report.topics import asked_by
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    a_pipeline,
    a_run,
    finding_of,
    in_parts,
    layers,
    records_of,
    value,
    with_certificate,
    with_ranks,
)
from trainer.data.certificate import earth_movers_distance
from trainer.training.partition import PartitionSummary

approx = pytest.approx
WHOLE = in_parts(a_run(work_cpu_s=8.0), [1000], activations=[7000])
COPIES = in_parts(a_run("all_reduce", nodes=2, train_s=1.8), [1000] * 2, activations=[3000] * 2)
PIPELINE = "pipeline split_points=[flatten] over gloo"


def working(run: RunResult, *work_cpu_s: float) -> RunResult:
    """The run with the CPU time of each rank."""
    return with_ranks(run, *({"work_cpu_s": spent} for spent in work_cpu_s))


def a_hybrid(**mesh: int) -> RunResult:
    """Four ranks in two stages: those of a replica one after the other, or those that share a stage."""
    run = a_run({"name": "hybrid", "mesh": {**mesh, "pipeline": 2}}, nodes=4)
    if "data" in mesh:
        return in_parts(run, [600, 400] * 2, blocks=[["conv1"], ["fc1"]] * 2)
    sent = [[0, 0, 100, 0], [0, 0, 0, 100], [20, 0, 0, 0], [0, 20, 0, 0]]
    return in_parts(run, [600] * 4, blocks=[["conv1"], ["conv1"], ["fc1"], ["fc1"]], bytes_to=sent)


def a_split() -> RunResult:
    """A master, and two stages that are busy for 3 s and 1 s of 5, one after the other."""
    return in_parts(
        a_run("rpc_split", nodes=3, work_cpu_s=2.0),
        [0, 600, 400],
        blocks=[[], ["conv1"], ["flatten"]],
        bytes_to=[[0, 99_000, 0], [0, 0, 9_000], [99_000, 9_000, 0]],
        seconds=[{"wait": 5.0}, {"compute": 3.0, "wait": 2.0}, {"compute": 1.0, "wait": 4.0}],
    )


def stages(strategy: Any, *blocks: list[str], sent: Sequence[list[int]] = ()) -> RunResult:
    run = a_run(strategy, nodes=len(blocks), work_cpu_s=4.0)
    return in_parts(run, [1] * len(blocks), blocks=blocks, bytes_to=sent)


THREE = [[0, 10, 0], [20, 0, 300], [0, 400, 0]]
INTERLEAVED = {"name": "pipeline", "schedule": "interleaved", "micro_batches": 4}
NAMES = ("bubble_share", "bubble_share_formula", "split_point_bytes_per_step_max", "cpu_time_speedup")
METRICS: dict[str, tuple[RunResult, list[str], tuple[float | None, ...]]] = {
    # split points; the bubble without evaluation and by formula, bytes both ways, speedup over 8 s
    "pipeline": (a_pipeline(work_cpu_s=4.0), ["flatten"], (2 / 4, 1 / 5, 27_000 / 90, 8 / (4 * 5 / 4))),
    "three stages": (
        stages("pipeline", ["conv1"], ["conv2"], ["fc1"], sent=THREE),
        ["conv2", "fc1"],
        (0, 1 / 3, 700 / 90, 8 / 6),
    ),
    "uneven replicas": (
        working(a_hybrid(data=2), 6, 2, 3, 3),
        ["fc1"],
        (0, 1 / 5, None, 8 / ((6 + 2 + 3 * 6) / 4)),
    ),
    "shards of a stage": (
        working(a_hybrid(tensor=2), 6, 5, 2, 3),
        ["fc1"],
        (0, 1 / 5, 240 / 90, 8 / ((6 + 3 + 3 * 6) / 4)),
    ),
    "master": (a_split(), ["flatten"], (6 / 10, 1 / 2, 18_000 / 90, 8 / 6)),
    "interleaved": (
        stages(INTERLEAVED, ["conv1", "fc1"], ["conv2", "fc2"], sent=[[0, 80], [80, 0]]),
        ["conv2", "fc1", "fc2"],
        (0, 1 / 9, None, 8 / (4 * 9 / 8)),
    ),
    "waiting is communication": (
        stages("pipeline_torch", ["conv1"], ["fc1"]),
        ["fc1"],
        (None, 1 / 5, None, 8 / 5),
    ),
    "copies": (a_run("all_reduce", nodes=2, work_cpu_s=4.0), [], (None, None, None, 2.0)),
    "older results": (a_run("pipeline", nodes=2, work_cpu_s=4.0), [], (None, 1 / 5, None, 8 / 5)),
}


@pytest.mark.parametrize("name", METRICS)
def test_bubbles_traffic_and_the_critical_path(name: str) -> None:
    run, split_points, expected = METRICS[name]
    row = a_comparison(WHOLE, run).rows[1]
    assert row.split_points == split_points
    known = {each: number for each, number in zip(NAMES, expected, strict=True) if number is not None}
    found = {each: value(row, each) for each in NAMES}
    assert {each: number for each, number in found.items() if number is not None} == approx(known)


def test_memory_and_load_are_those_of_the_fullest_and_busiest_ranks() -> None:
    row = a_comparison(WHOLE, a_pipeline()).rows[1]
    assert (value(row, "load_balance"), value(row, "step_s")) == (approx(2 / 3), approx(0.05))
    for run in (a_pipeline(), a_split()):  # not the master
        assert partition.busy_s(a_comparison(run).rows[0]) == approx([3 / 90, 1 / 90])
    assert len(partition.busy_s(a_comparison(a_run("parameter_server", nodes=3)).rows[0])) == 2
    later = in_parts(a_run("pipeline", nodes=2), [400, 600], activations=[5000, 2000])
    row = a_comparison(later).rows[0]
    kinds = {"weights": 1600, "gradient": 1600, "optimizer": 1600, "activations": 5000}
    assert (partition.memory_by_kind(row), partition.memory_bytes(row)) == (kinds, 9800)
    old = a_comparison(a_run("pipeline", nodes=2)).rows[0]
    assert (partition.memory_by_kind(old), old.state_bytes, old.activation_bytes) == ({}, None, None)


def test_a_model_is_divided_if_ranks_hold_less_of_it_or_of_its_optimizer() -> None:
    for parameters, divided in (([1000, 1000], False), ([960, 1000], False), ([500, 500], True)):
        comparison = a_comparison(WHOLE, in_parts(a_run("all_reduce", nodes=2), parameters))
        sections = result_sections(comparison, asked_by(comparison).decided())
        assert ("model-partitioning" in {section.id for section in sections}) is divided
        assert partition.is_partitioned(comparison.groups) is divided
    for runs, size in (
        ([a_pipeline()], 1000),  # the sum of its stages
        ([a_pipeline(), COPIES], 1000),
        ([a_hybrid(tensor=2)], None),  # shards share layers
    ):
        assert partition.model_size(a_comparison(*runs).groups) == size
    digests = [{"weights_digest": each} for each in ("a", None, "b", None)]
    apart = a_comparison(a_run("pipeline", nodes=2), with_ranks(a_hybrid(data=2), *digests))
    assert [row.replicas_equal for row in apart.rows] == [None, False]  # only replicas can differ


# Split points


def test_split_points_are_in_the_order_of_the_model_and_a_named_one_counts_before_the_default() -> None:
    times = {"fc2": 0.05, "conv2": 0.02, "flatten": 0.03}
    default = a_pipeline("flatten", requested=False, step_s=0.04)
    runs = [*(a_pipeline(name, step_s=step) for name, step in times.items()), default]
    for order in (runs, runs[::-1]):
        comparison = a_comparison(*order)
        found = two_stage_splits(comparison.groups)
        assert found is not None
        assert found.representative.first.key == default.key
        assert [*found.by_block] == ["conv2", "flatten", "fc2"]
        data = finding_of(comparison, "split_point").data
        assert data["step_s"] == approx(times)
        assert (data["best"], data["worst"], data["default"]) == ("conv2", "fc2", "flatten")


@pytest.mark.parametrize(
    ("share", "cores", "shared"), [(0.5, 1, True), (0.1, 1, False), (0.5, 8, False)], ids=str
)
def test_bubbles_are_beside_the_formula_and_explained_if_all_are_above(
    share: float, cores: int, shared: bool
) -> None:
    def waiting(share: float, **fields: Any) -> RunResult:
        seconds = {"compute": 1 - share, "wait": share}
        return in_parts(a_pipeline(cores=cores, **fields), [600, 400], seconds=[seconds] * 2)

    eight = "pipeline micro_batches=8 split_points=[flatten] over gloo"
    runs = [waiting(0.5, more={"micro_batches": 8}), waiting(share)]
    finding = finding_of(a_comparison(WHOLE, *runs), "bubble")
    assert finding.data["bubble"] == {eight: approx(0.5), PIPELINE: approx(share)}
    assert finding.data["formula"] == {eight: approx(1 / 9), PIPELINE: approx(1 / 5)}
    assert finding.data["shared_cores"] is shared
    assert ("The formula assumes" in finding.text) is (share == 0.5)


# Data: what certificates say


def with_labels(run: RunResult, labels: Sequence[Sequence[int]]) -> RunResult:
    """The run with these samples per rank and class in epoch 1 of its certificate."""
    assert run.certificate
    whole, parts = np.sum(labels, axis=0), []
    for part, row in zip(run.certificate.parts, labels, strict=True):
        update = {"labels": list(row), "samples": sum(row)}
        update["earth_movers_distance"] = earth_movers_distance(row, whole)
        parts.append(part.model_copy(update=update))
    return with_certificate(run, parts=parts)


def test_the_first_epoch_and_the_whole_run_are_told_apart_in_whatever_order_they_arrived() -> None:
    run = a_run("ddp", nodes=2)
    assert run.certificate
    splits = [
        split.model_copy(update=dict.fromkeys(("coverage", "coverage_so_far"), split.epoch / 10))
        for split in run.certificate.splits[::-1]
    ]
    parts = [
        part.model_copy(update={"epoch": epoch, "js_divergence_so_far": 0.4 / epoch - 0.1 * part.rank})
        for epoch in (2, 1)
        for part in run.certificate.parts
    ]
    (row,) = a_comparison(with_certificate(run, splits=splits, parts=parts)).rows
    names = ("coverage", "coverage_whole_run", "js_divergence_whole_run_max_bits")
    assert [value(row, name) for name in names] == [0.1, 0.2, 0.2]


# Maps


def a_map(ranks: int, classes: int = 10, name: str = "made", per_node: int = 1) -> LabelMap:
    counts = np.arange(ranks * classes).reshape(ranks, classes) + 1000
    summary = PartitionSummary(counts, 0.75, 0.25, (0.1,) * ranks, (0.5,) * ranks)
    return LabelMap(name, ClusterShape(ranks // per_node, per_node), summary)


def test_a_cell_is_at_its_rank_and_label_and_is_shaded_by_its_count() -> None:
    summary = PartitionSummary(np.array([[7, 0, 3], [1, 9, 0]]), 1.0, 0.0, (0.1, 0.2), (0.3, 0.4))
    for shape, first in ((ClusterShape(2), 0), (ClusterShape(3), 1)):  # a server
        chart = label_maps([LabelMap("made", shape, summary)])
        cells = [
            (int(cell["row"]) - first, int(cell["column"]), cell["amount"]) for cell in records_of(chart)
        ]
        assert sorted(cells) == [(0, 0, 7), (0, 2, 3), (1, 0, 1), (1, 1, 9)]
        _, drawn, numbers = chart.spec["concat"][0]["layer"]
        assert drawn["encoding"]["opacity"]["scale"]["domain"] == [0, 9]
        assert numbers["encoding"]["text"]["field"] == "written"
        assert drawn["encoding"]["y"]["scale"]["domain"] == [str(first), str(first + 1)]  # from the top


def test_maps_of_as_many_ranks_have_one_shade_for_their_largest_number() -> None:
    def of(ranks: int, largest: int) -> LabelMap:
        summary = PartitionSummary(np.array([[1, largest]] * ranks), 1.0, 0.0, (0.1,) * ranks, ())
        return LabelMap("made", ClusterShape(ranks), summary)

    drawn = layers(label_maps([of(2, 7), of(2, 9), of(3, 4), of(3, 2)]).spec)
    scales = [each["encoding"]["opacity"]["scale"] for each in drawn if "opacity" in each["encoding"]]
    assert [each["domain"] for each in scales] == [[0, 9], [0, 9], [0, 4], [0, 4]]


def test_of_many_ranks_or_labels_the_first_are_drawn_and_the_title_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(*shown: LabelMap) -> tuple[int, int, list[str]]:
        """Cells, the ranks of the largest map, and what is said to be left out."""
        chart = label_maps(shown)
        records = records_of(chart)
        notes = [note for each in chart.spec["concat"] for note in each["title"]["subtitle"]]
        cut = [note for note in notes if "first" in note]
        return len(records), len({each["row"] for each in records}), cut

    assert drawn(a_map(MOST_RANKS, MOST_LABELS)) == (MOST_RANKS * MOST_LABELS, MOST_RANKS, [])
    assert drawn(a_map(40, 101)) == (
        3200,
        32,
        ["The first 32 of 40 nodes.", "The first 100 of 101 labels."],
    )
    monkeypatch.setattr(maps, "MOST_CELLS", 60)
    assert drawn(a_map(2), a_map(8)) == (50, 3, ["The first 3 of 8 nodes."])

"""Mistakes in what a report says of partitioned models: the fullest and the busiest rank, stages that are
none, traffic in one direction, shares of the wrong run, and which split point stands for the others."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.figures.maps import LabelMap
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.split_points import one_per_split, two_stage_splits
from orchestrator.report.quantities import model_partition as partition
from orchestrator.report.quantities.data_partition import (
    partition_summary_of,
    replica_ranks,
    representatives,
)
from orchestrator.report.render.chapters import chapters_of
from orchestrator.report.render.columns import MODEL_PARTITION
from orchestrator.report.render.legend import legend
from orchestrator.report.topics import asked_by
from orchestrator.report.topics.memory import memory_per_rank
from orchestrator.report.topics.split_points import split_points_figure
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_pipeline,
    a_run,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    in_parts,
    records_of,
    value,
)

approx = pytest.approx
WHOLE = in_parts(a_run(work_cpu_s=8.0), [1000], activations=[7000])
COPIES = in_parts(a_run("all_reduce", nodes=2, train_s=1.8), [1000] * 2, activations=[3000] * 2)
SPLIT_POINTS = ["relu1", "conv2", "flatten", "fc2"]
PIPELINE = "pipeline split_points=[flatten] over gloo"


def view_of(*results: RunResult) -> WorkloadView:
    comparison = a_comparison(*results)
    (workload,) = comparison.workloads
    return comparison.view(workload)


def working(run: RunResult, *work_cpu_s: float) -> RunResult:
    """The run with the CPU time of each rank."""
    pairs = zip(run.ranks, work_cpu_s, strict=True)
    return run.model_copy(
        update={"ranks": [rank.model_copy(update={"work_cpu_s": spent}) for rank, spent in pairs]}
    )


def a_hybrid(**mesh: int) -> RunResult:
    """Four ranks in two stages: those of a replica one after the other, or those that share a stage."""
    blocks = [["conv1"], ["fc1"]] * 2 if "data" in mesh else [["conv1"], ["conv1"], ["fc1"], ["fc1"]]
    sent = [[0, 0, 100, 0], [0, 0, 0, 100], [20, 0, 0, 0], [0, 20, 0, 0]]
    bytes_to = sent if "tensor" in mesh else ()
    run = a_run({"name": "hybrid", "mesh": {**mesh, "pipeline": 2}}, nodes=4)
    return in_parts(run, [600, 400] * 2 if "data" in mesh else [600] * 4, blocks=blocks, bytes_to=bytes_to)


def a_split() -> RunResult:
    """A master, and two stages that are busy for 3 s and 1 s of 5, one after the other."""
    return in_parts(
        a_run("rpc_split", nodes=3, work_cpu_s=2.0),
        [0, 600, 400],
        blocks=[[], ["conv1"], ["flatten"]],
        bytes_to=[[0, 99_000, 0], [0, 0, 9_000], [99_000, 9_000, 0]],
        seconds=[{"wait": 5.0}, {"compute": 3.0, "wait": 2.0}, {"compute": 1.0, "wait": 4.0}],
    )


def stages(strategy: Any, blocks: list[list[str] | None], sent: list[list[int] | None] = []) -> RunResult:  # noqa: B006
    run = a_run(strategy, nodes=len(blocks), work_cpu_s=4.0)
    return in_parts(run, [1] * len(blocks), blocks=blocks, bytes_to=sent)


THREE = [[0, 10, 0], [20, 0, 300], [0, 400, 0]]
INTERLEAVED = {"name": "pipeline", "schedule": "interleaved", "micro_batches": 4}
NAMES = ("bubble_share", "bubble_share_formula", "split_point_bytes_per_step_max", "cpu_time_speedup")
METRICS: dict[str, tuple[RunResult, list[str], tuple[float | None, ...]]] = {
    # split points; the bubble without evaluation and by formula, bytes both ways, speedup over 8 s
    "pipeline": (a_pipeline(work_cpu_s=4.0), ["flatten"], (2 / 4, 1 / 5, 27_000 / 90, 8 / (4 * 5 / 4))),
    "three stages": (
        stages("pipeline", [["conv1"], ["conv2"], ["fc1"]], THREE),
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
        stages(INTERLEAVED, [["conv1", "fc1"], ["conv2", "fc2"]], [[0, 80], [80, 0]]),
        ["conv2", "fc1", "fc2"],
        (0, 1 / 9, None, 8 / (4 * 9 / 8)),
    ),
    "waiting is communication": (
        stages("pipeline_torch", [["conv1"], ["fc1"]]),
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
    assert tuple(value(row, each) for each in NAMES) == tuple(
        each if each is None else approx(each) for each in expected
    )


def test_memory_and_load_are_those_of_the_fullest_and_busiest_ranks() -> None:
    row = a_comparison(WHOLE, a_pipeline()).rows[1]
    assert (value(row, "load_balance"), value(row, "step_s")) == (approx(2 / 3), approx(0.05))
    assert partition.busy_s(row) == approx([3 / 90, 1 / 90])
    assert partition.busy_s(a_comparison(a_split()).rows[0]) == approx([3 / 90, 1 / 90])  # not the master
    server = a_run("parameter_server", nodes=3)
    assert len(partition.busy_s(a_comparison(server).rows[0])) == 2
    later = in_parts(a_run("pipeline", nodes=2), [400, 600], activations=[5000, 2000])
    row = a_comparison(later).rows[0]
    kinds = {"weights": 1600, "gradient": 1600, "optimizer": 1600, "activations": 5000}
    assert (partition.memory_by_kind(row), partition.memory_bytes(row), row.state_bytes) == (
        kinds,
        9800,
        7200,
    )
    old = a_comparison(a_run("pipeline", nodes=2)).rows[0]
    assert (partition.memory_by_kind(old), old.state_bytes, old.activation_bytes) == ({}, None, None)


def test_a_model_is_divided_if_ranks_hold_less_of_it_or_of_its_optimizer() -> None:
    def divided(*parameters: int) -> bool:
        run = in_parts(a_run("all_reduce", nodes=2), parameters)
        comparison = a_comparison(WHOLE, run)
        (chapter,) = chapters_of(comparison, asked_by(comparison).decided())
        assert (chapter.partitioned is not None) is partition.is_partitioned(comparison.groups)
        return chapter.partitioned is not None

    assert [divided(1000, 1000), divided(960, 1000), divided(500, 500)] == [False, False, True]
    assert partition.is_partitioned(a_comparison(WHOLE, a_pipeline()).groups)
    assert partition.model_size(a_comparison(a_pipeline()).groups) == 1000  # the sum of its stages
    assert partition.model_size(a_comparison(a_pipeline(), COPIES).groups) == 1000
    assert partition.model_size(a_comparison(a_hybrid(tensor=2)).groups) is None  # shards share layers


def test_the_table_has_shares_of_serial() -> None:
    comparison = a_comparison(WHOLE, a_pipeline())
    serial, pipeline = cells(MODEL_PARTITION, comparison.groups)
    names = ("bubble_share", "bubble_share_formula", "parameters_per_rank_max", "state_bytes_per_rank_max")
    assert [serial[name] for name in names] == ["–", "–", "1,000", "12.0 kB"]
    assert [pipeline[name] for name in names] == ["50.0%", "20.0%", "600 | 60.0%", "7.20 kB | 60.0%"]
    line = csv_lines(comparison)[1]
    assert (line["split_points"], line["replicas_equal"], line["batch_per"]) == ("flatten", "", "rank")


def test_only_replicas_can_differ() -> None:
    ranks = [
        rank.model_copy(update={"weights_digest": digest})
        for rank, digest in zip(a_hybrid(data=2).ranks, ("a", None, "b", None), strict=True)
    ]
    apart = a_hybrid(data=2).model_copy(update={"ranks": ranks})
    rows = a_comparison(a_run("pipeline", nodes=2), apart).rows
    assert [row.replicas_equal for row in rows] == [None, False]


def test_the_ranks_of_a_replica_share_a_row_of_the_map() -> None:
    comparison = a_comparison(a_hybrid(data=2))
    (row,) = representatives(comparison.groups)
    assert replica_ranks(row) == ("0–1", "2–3")
    seen = partition_summary_of(row)
    assert seen
    assert list(LabelMap("p", row.shape, seen, replica_ranks(row)).row_names) == ["0–1", "2–3"]
    assert replica_ranks(a_comparison(a_split()).rows[0]) == ("0–2",)
    assert list(LabelMap("p", row.shape, seen).row_names) == ["2", "3"]  # after two servers
    whole = [a_run("all_reduce", nodes=nodes) for nodes in (2, 4)]
    for runs, shown in (
        ([a_hybrid(data=2), *whole], [("all_reduce", 2), ("all_reduce", 4)]),
        ([whole[1], a_hybrid(data=2)], [("hybrid", 4), ("all_reduce", 4)]),
    ):
        found = representatives(a_comparison(*runs).groups)
        assert [(row.strategy, row.shape.ranks) for row in found] == shown


# Split points


def labels(comparison: Comparison) -> list[str]:
    return [group.strategy_label for group in one_per_split(comparison.groups)]


def test_the_default_or_the_first_represents_all_split_points() -> None:
    tried = [a_pipeline(name) for name in reversed(SPLIT_POINTS)]
    gpipe = a_pipeline("fc1", more={"schedule": "gpipe"})
    comparison = a_comparison(SERIAL, *tried, gpipe, a_pipeline("conv2", requested=False))
    both = ["pipeline schedule=gpipe split_points=[fc1]", "pipeline"]
    assert labels(comparison) == ["serial", *both]
    assert labels(a_comparison(SERIAL, *tried[:2])) == ["serial", "pipeline split_points=[fc2]"]
    (entry,) = [entry for entry in legend(comparison.groups) if entry.name == "pipeline"]
    assert [label for label, _ in entry.series] == both
    found = two_stage_splits(a_comparison(*tried, a_pipeline("fc1", requested=False)).groups)
    assert found
    assert list(found.by_block) == ["relu1", "conv2", "flatten", "fc1", "fc2"]  # in the order of the model
    assert (found.default, found.name) == ("fc1", "pipeline over gloo")
    assert two_stage_splits(a_comparison(SERIAL, a_run("pipeline", nodes=4)).groups) is None
    # The default follows from times, which each run measures.
    differ = [a_pipeline(at, requested=False, seed=seed) for seed, at in enumerate(("conv2", "fc1"))]
    found = two_stage_splits(a_comparison(*tried, *differ).groups)
    assert found
    assert (found.default, list(found.by_block)) == (None, SPLIT_POINTS)


def test_the_fastest_split_point_is_reported_with_the_default() -> None:
    steps = {"relu1": 0.03, "conv2": 0.02, "fc2": 0.05}
    runs = [a_pipeline(name, step_s=step_s) for name, step_s in steps.items()]
    default = a_pipeline("flatten", requested=False, step_s=0.04)
    data = finding_of(a_comparison(*runs, default), "split_point").data
    assert (data["best"], data["worst"], data["default"]) == ("conv2", "fc2", "flatten")
    assert data["step_s"] == {name: approx(s) for name, s in {**steps, "flatten": 0.04}.items()}
    assert findings_of(a_comparison(*runs[:2]), "split_point") == []


# Figures and findings


def test_figures_have_the_numbers_of_each_configuration() -> None:
    chart = memory_per_rank(view_of(WHOLE, in_parts(a_run("ddp", nodes=2), [1000] * 2), a_pipeline()))
    parts = [record for record in records_of(chart) if "part" in record]
    assert [*dict.fromkeys(record["series"] for record in parts)] == [
        "serial",  # first, then by size
        "pipeline split_points=[flatten] · gloo",
        "ddp · gloo",
    ]
    assert [record["part"] for record in parts[:4]] == ["weights", "gradient", "optimizer", "activations"]
    assert [record["amount"] for record in parts[:8]] == [4000, 4000, 4000, 7000, 2400, 2400, 2400, 5000]
    nothing = SERIAL, a_pipeline().model_copy(update={"ranks": []})
    assert memory_per_rank(view_of(*nothing)) is memory_per_rank(view_of(WHOLE)) is None
    runs = [a_pipeline(name, step_s=0.01 * at) for at, name in enumerate(SPLIT_POINTS, 1)]
    comparison = a_comparison(*runs)
    chart = split_points_figure(comparison.view(*comparison.workloads), Style(comparison.groups))
    assert chart is not None
    assert all(panel["encoding"]["x"]["sort"] == SPLIT_POINTS for panel in chart.spec["vconcat"])
    records = records_of(chart)
    assert [record["step"] for record in records if "step" in record] == approx([0.01, 0.02, 0.03, 0.04])
    assert [record["busy"] for record in records if "stage" in record][:2] == approx([3 / 90, 1 / 90])


def test_the_least_memory_is_reported_beside_serial_and_its_time_per_step() -> None:
    most = in_parts(a_run("gossip", nodes=2), [2000] * 2, activations=[9000] * 2)
    data = finding_of(a_comparison(WHOLE, COPIES, most, a_pipeline()), "least_memory").data
    assert (data["strategy"], data["bytes"]) == (PIPELINE, 12_200)
    assert (data["compared_with"], data["compared_bytes"]) == ("serial", 19_000)
    pairs = [approx([0.05, 0.02]), approx([0.05, 8 / 90])]
    assert [each["values"] for each in data["compared"]] == pairs
    without = finding_of(a_comparison(COPIES, most, a_pipeline()), "least_memory").data
    assert (without["compared_with"], without["compared_bytes"]) == ("the most of any strategy", 33_000)
    assert findings_of(a_comparison(WHOLE, COPIES), "least_memory") == []
    threads = a_comparison(WHOLE, a_pipeline(transport="memory"))  # have no times
    assert "compared" not in finding_of(threads, "least_memory").data
    assert findings_of(threads, "bubble") == []


def test_bubbles_are_reported_beside_the_formula_and_explained_if_all_are_above() -> None:
    def waiting(share: float, **fields: Any) -> RunResult:
        run = a_pipeline(**fields)
        seconds = {**run.ranks[0].seconds, "compute": 1 - share, "wait": share, "evaluate": 0.0}
        return run.model_copy(
            update={"ranks": [rank.model_copy(update={"seconds": seconds}) for rank in run.ranks]}
        )

    eight = "pipeline micro_batches=8 split_points=[flatten] over gloo"
    for shares, cores, shared in (((0.5, 0.5), 1, True), ((0.5, 0.1), 1, False), ((0.5, 0.5), 8, False)):
        runs = [waiting(shares[0], more={"micro_batches": 8}, cores=cores), waiting(shares[1], cores=cores)]
        finding = finding_of(a_comparison(WHOLE, *runs), "bubble")
        assert finding.data["bubble"] == {eight: approx(shares[0]), PIPELINE: approx(shares[1])}
        assert finding.data["formula"] == {eight: approx(1 / 9), PIPELINE: approx(1 / 5)}
        assert finding.data["shared_cores"] is shared
        assert ("The formula assumes" in finding.text) is (shares == (0.5, 0.5))

"""Model partitioning in the report: memory, traffic, bubbles, load balance and split points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.figures.maps import LabelMap
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.split_points import one_per_split, two_stage_splits
from orchestrator.report.quantities import model_partition as partition
from orchestrator.report.quantities.data_partition import (
    partition_summary_of,
    replica_ranks,
    representatives,
)
from orchestrator.report.render.columns import MODEL_PARTITION
from orchestrator.report.render.legend import legend
from orchestrator.report.topics.bubbles import bubbles
from orchestrator.report.topics.exchange import exchange_by_size
from orchestrator.report.topics.memory import memory_per_rank
from orchestrator.report.topics.split_points import split_points_figure
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_pages import Page
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_pipeline,
    a_run,
    around,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    in_parts,
    marks_of,
    points,
    records_of,
    repeated,
    row_of,
    value,
    write_page,
)

WHOLE = in_parts(a_run(), [1000], activations=[7000])
HYBRID = {"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}}
SPLIT_POINTS = ["relu1", "conv2", "flatten", "fc2"]


def view_of(comparison: Comparison) -> WorkloadView:
    (workload,) = comparison.workloads
    return comparison.view(workload)


def a_hybrid(**fields: Any) -> RunResult:
    parts = [["conv1"], ["fc1"]] * 2
    return in_parts(a_run(HYBRID, nodes=4, **fields), [600, 400] * 2, blocks=parts)


# Metrics


def test_metrics_of_a_pipeline() -> None:
    row = row_of(a_comparison(WHOLE, a_pipeline()), "pipeline")
    assert value(row, "step_s") == pytest.approx(0.05)
    assert value(row, "bubble_share") == pytest.approx(2 / 4)  # of training without evaluation
    assert value(row, "bubble_share_formula") == pytest.approx(1 / 5)
    assert row.split_points == ["flatten"]
    assert value(row, "split_point_bytes_per_step_max") == pytest.approx(27_000 / 90)
    assert value(row, "load_balance") == pytest.approx(2 / 3)
    assert partition.busy_s(row) == pytest.approx([3 / 90, 1 / 90])
    assert value(row, "parameters_per_rank_max") == 600
    assert row.state_bytes == 7200
    assert (value(row, "activation_bytes_per_rank_max"), partition.memory_bytes(row)) == (5000, 12_200)


def test_the_fullest_rank_need_not_be_the_first() -> None:
    run = in_parts(a_run("pipeline", nodes=2), [400, 600], activations=[5000, 2000])
    row = row_of(a_comparison(run), "pipeline")
    assert partition.memory_by_kind(row) == {
        "weights": 1600,
        "gradient": 1600,
        "optimizer": 1600,
        "activations": 5000,
    }
    assert row.state_bytes == 7200


def test_only_stages_have_a_bubble() -> None:
    comparison = a_comparison(SERIAL, a_run("all_reduce", nodes=2), a_hybrid())
    assert value(row_of(comparison, "all_reduce"), "bubble_share") is None
    assert value(row_of(comparison, "hybrid"), "bubble_share_formula") == pytest.approx(
        1 / 5
    )  # two stages, not four


def test_master_is_not_a_stage() -> None:
    """The master waits most of the time; each of the two stages waits while the other computes."""
    run = in_parts(a_run("rpc_split", nodes=3), [0, 1, 1], blocks=[[], ["conv1"], ["fc1"]])
    row = row_of(a_comparison(run), "rpc_split")
    assert value(row, "bubble_share_formula") == pytest.approx(1 / 2)
    assert len(partition.busy_s(row)) == 2
    assert row.split_points == ["fc1"]


def test_a_strategy_without_straggler_attribution_has_no_measured_bubble() -> None:
    row = row_of(a_comparison(in_parts(a_run("pipeline_torch", nodes=2), [1, 1])), "pipeline_torch")
    assert value(row, "bubble_share") is None
    assert value(row, "bubble_share_formula") == pytest.approx(
        1 / 5
    )  # as in pipeline, so that CPU-time speedups compare


def test_traffic_is_that_of_the_busiest_split_point() -> None:
    blocks = [["conv1"], ["conv2"], ["fc1"]]
    sent = [[0, 10, 0], [20, 0, 300], [0, 400, 0]]
    run = in_parts(a_run("pipeline", nodes=3), [1, 1, 1], blocks=blocks, bytes_to=sent)
    assert value(row_of(a_comparison(run), "pipeline"), "split_point_bytes_per_step_max") == pytest.approx(
        700 / 90
    )


def test_results_without_these_records_have_no_metrics() -> None:
    row = row_of(a_comparison(SERIAL, a_run("pipeline", nodes=2)), "pipeline")
    assert row.split_points == []
    assert partition.memory_by_kind(row) == {}
    assert (
        row.state_bytes,
        value(row, "activation_bytes_per_rank_max"),
        value(row, "split_point_bytes_per_step_max"),
    ) == (None,) * 3
    failed = row_of(a_comparison(a_run("pipeline", nodes=2, status="failed", cause="gone")), "pipeline")
    assert (value(failed, "step_s"), value(failed, "bubble_share"), value(failed, "load_balance")) == (
        None,
    ) * 3


@pytest.mark.parametrize("name", ["pipeline", "pipeline_torch"])
def test_cpu_time_speedup_includes_the_bubble(name: str) -> None:
    """Even where communication is free, stages wait for each other."""
    serial, run = a_run(work_cpu_s=8.0), a_run(name, nodes=2, work_cpu_s=4.0)
    row = row_of(a_comparison(serial, run), name)
    assert value(row, "cpu_time_speedup") == pytest.approx(2 * (1 - 1 / 5))


def test_uneven_stages_wait_for_the_longest() -> None:
    """The first of 4 micro-batches passes all stages; the longest stage then processes three more."""
    serial, copies = a_run(work_cpu_s=8.0), a_hybrid()
    work = [6.0, 2.0, 3.0, 3.0]
    ranks = [rank.model_copy(update={"work_cpu_s": s}) for rank, s in zip(copies.ranks, work, strict=True)]
    row = row_of(a_comparison(serial, copies.model_copy(update={"ranks": ranks})), "hybrid")
    assert value(row, "cpu_time_speedup") == pytest.approx(8 / ((6 + 2 + 3 * 6) / 4))


def test_ranks_that_share_a_stage_are_one_stage() -> None:
    """Two stages of two shards each: the slower shard is on the critical path, and both send."""
    mesh = {"name": "hybrid", "mesh": {"pipeline": 2, "tensor": 2}}
    blocks = [["conv1"], ["conv1"], ["fc1"], ["fc1"]]
    sent = [[0, 0, 100, 0], [0, 0, 0, 100], [20, 0, 0, 0], [0, 20, 0, 0]]
    run = in_parts(a_run(mesh, nodes=4), [600] * 4, blocks=blocks, bytes_to=sent)
    work = zip(run.ranks, [6.0, 5.0, 2.0, 3.0], strict=True)
    ranks = [rank.model_copy(update={"work_cpu_s": seconds}) for rank, seconds in work]
    row = row_of(a_comparison(a_run(work_cpu_s=8.0), run.model_copy(update={"ranks": ranks})), "hybrid")
    assert row.split_points == ["fc1"]
    assert value(row, "cpu_time_speedup") == pytest.approx(8 / ((6 + 3 + 3 * 6) / 4))
    assert value(row, "split_point_bytes_per_step_max") == pytest.approx(240 / 90)
    assert partition.model_size(a_comparison(run).groups) is None  # the ranks of a stage also share layers


def a_split() -> RunResult:
    """A master, and two stages that are busy for 3 s and 1 s of 5."""
    seconds = [{"wait": 5.0}, {"compute": 3.0, "wait": 2.0}, {"compute": 1.0, "wait": 4.0}]
    sent = [[0, 99_000, 0], [0, 0, 9_000], [99_000, 9_000, 0]]
    run = a_run("rpc_split", nodes=3, work_cpu_s=2.0)
    parts: list[list[str] | None] = [[], ["conv1"], ["flatten"]]
    return in_parts(run, [0, 600, 400], blocks=parts, bytes_to=sent, seconds=seconds)


def test_stages_that_run_one_after_the_other_save_no_time() -> None:
    """The master holds no block, so it has no split point and is not a waiting stage."""
    row = row_of(a_comparison(a_run(work_cpu_s=6.0), a_split()), "rpc_split")
    assert value(row, "cpu_time_speedup") == pytest.approx(1.0)
    assert (value(row, "bubble_share"), value(row, "bubble_share_formula")) == (
        pytest.approx(6 / 10),
        1 / 2,
    )
    assert row.split_points == ["flatten"]
    assert value(row, "split_point_bytes_per_step_max") == pytest.approx(18_000 / 90)
    assert partition.busy_s(row) == pytest.approx([3 / 90, 1 / 90])


def test_interleaved_stages_share_links_and_have_a_smaller_bubble() -> None:
    strategy = {"name": "pipeline", "schedule": "interleaved", "micro_batches": 4}
    run = in_parts(
        a_run(strategy, nodes=2),
        [1, 1],
        blocks=[["conv1", "fc1"], ["conv2", "fc2"]],
        bytes_to=[[0, 80], [80, 0]],
    )
    row = row_of(a_comparison(WHOLE, run), run.run.name_of("strategy"))
    assert row.split_points == ["conv2", "fc1", "fc2"]
    assert value(row, "split_point_bytes_per_step_max") is None  # of one of the three
    assert value(row, "bubble_share_formula") == pytest.approx(1 / (2 * 4 + 1))


def test_no_bubble_is_measured_if_waiting_counts_as_communication() -> None:
    run = in_parts(a_run("pipeline_torch", nodes=2), [1, 1], blocks=[["conv1"], ["fc1"]])
    row = row_of(a_comparison(run), "pipeline_torch")
    assert (value(row, "bubble_share"), value(row, "bubble_share_formula")) == (None, 1 / 5)


def test_only_replicas_can_differ() -> None:
    apart = a_run(HYBRID, nodes=4, digests=["a", None, "b", None])  # type: ignore[list-item]
    rows = a_comparison(a_run("pipeline", nodes=2), apart)
    assert row_of(rows, "pipeline").replicas_equal is None
    assert row_of(rows, "hybrid").replicas_equal is False


def test_batch_per_is_part_of_the_workload() -> None:
    shared = {"batch_size": 64, "batch_per": "run"}
    runs = [a_run(**shared), a_run("pipeline", nodes=2, **shared)]
    runs += [a_run("all_reduce", nodes=nodes, **shared) for nodes in (2, 4)]
    (workload,) = a_comparison(*runs).workloads
    assert ", batch 64 in all, " in workload.label
    other = a_run(batch_size=64)
    assert len(a_comparison(*runs, other).workloads) == 2
    assert ", batch 64 per rank, " in a_comparison(other).workloads[0].label


def test_the_size_of_a_model_is_the_sum_of_its_partitions() -> None:
    models = ["lenet", {"name": "mlp", "hidden": [64]}]
    big = {"lenet": 1, "mlp": 10}

    def runs(*names: str) -> list[RunResult]:
        return [
            in_parts(
                a_run(name, nodes=2, communicate_s=1.0, model=model),
                [600 * scale, 400 * scale] if name == "pipeline" else [1000 * scale] * 2,
                blocks=[["a"], ["b"]] if name == "pipeline" else (),
            )
            for model, scale in zip(models, big.values(), strict=True)
            for name in names
        ]

    for names in (("pipeline",), ("pipeline", "all_reduce")):
        comparison = a_comparison(*runs(*names))
        chart = exchange_by_size(comparison, Style(comparison.groups))
        assert {record["parameters"] for record in points(chart)} == {1000, 10000}


# Tables


def test_the_table_has_memory_traffic_and_bubbles() -> None:
    comparison = a_comparison(WHOLE, a_pipeline())
    serial, pipeline = cells(MODEL_PARTITION, comparison.groups)
    assert (serial["bubble_share"], pipeline["bubble_share"]) == ("–", "50.0%")
    assert (serial["bubble_share_formula"], pipeline["bubble_share_formula"]) == ("–", "20.0%")
    assert (serial["parameters_per_rank_max"], pipeline["parameters_per_rank_max"]) == (
        "1,000",
        "600 | 60.0%",
    )
    assert (serial["load_balance"], pipeline["load_balance"]) == ("100.0%", "66.7%")
    assert pipeline["state_bytes_per_rank_max"] == "7.20 kB | 60.0%"
    line = csv_lines(comparison)[1]
    assert float(line["bubble_share"]) == pytest.approx(0.5)
    assert float(line["split_point_bytes_per_step_max"]) == pytest.approx(300)
    assert (line["split_points"], line["state_bytes_per_rank_max"]) == ("flatten", "7200")
    assert (line["replicas_equal"], line["batch_per"]) == ("", "rank")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "shown"), [(a_pipeline(), True), (in_parts(a_run("ddp", nodes=2), [1000] * 2), False)]
)
def test_the_page_has_the_table_only_if_the_model_is_partitioned(
    other: RunResult, shown: bool, tmp_path: Path
) -> None:
    page = Page(write_page(tmp_path, WHOLE, other).html.read_text())
    assert ("model-partitioning" in page.ids) is shown


def test_ranks_with_less_of_the_optimizer_divide_the_model_too() -> None:
    whole = in_parts(a_run("ddp", nodes=2), [1000] * 2)
    assert not partition.is_partitioned(a_comparison(WHOLE, whole).groups)
    shards = in_parts(a_run("all_reduce", nodes=2), [500] * 2)
    assert partition.is_partitioned(a_comparison(WHOLE, shards).groups)


# Data partitions


def test_the_ranks_of_a_replica_share_a_row_of_the_map() -> None:
    comparison = a_comparison(a_hybrid())
    (row,) = representatives(comparison.groups)
    assert replica_ranks(row) == ("0–1", "2–3")
    seen = partition_summary_of(row)
    assert seen
    assert list(LabelMap("p", row.shape, seen, replica_ranks(row)).row_names) == ["0–1", "2–3"]
    assert replica_ranks(row_of(a_comparison(a_split()), "rpc_split")) == ("0–2",)
    assert list(LabelMap("p", row.shape, seen).row_names) == ["2", "3"]  # after two servers


def test_a_partition_among_replicas_is_that_among_as_many_ranks() -> None:
    whole = [a_run("all_reduce", nodes=nodes) for nodes in (2, 4)]
    rows = representatives(a_comparison(a_hybrid(), *whole).groups)
    assert [(row.strategy, row.shape.ranks) for row in rows] == [("all_reduce", 2), ("all_reduce", 4)]
    rows = representatives(a_comparison(whole[1], a_hybrid()).groups)
    assert [(row.strategy, row.shape.ranks) for row in rows] == [("hybrid", 4), ("all_reduce", 4)]


# Split points


def test_one_group_represents_all_split_points() -> None:
    tried = [a_pipeline(name) for name in SPLIT_POINTS]
    gpipe = a_pipeline("fc1", more={"schedule": "gpipe"})
    default = a_pipeline("conv2", requested=False)
    groups = a_comparison(SERIAL, *tried, gpipe, default).groups
    shown = [group.strategy_label for group in one_per_split(groups)]
    assert shown == ["serial", "pipeline schedule=gpipe split_points=[fc1]", "pipeline"]
    named = one_per_split(groups[:3])
    assert [group.strategy_label for group in named] == ["serial", "pipeline split_points=[relu1]"]
    view = view_of(a_comparison(SERIAL, *tried, default))
    assert [group.strategy_label for group in view.candidates] == ["pipeline"]
    (entry,) = [entry for entry in legend(groups) if entry.name == "pipeline"]
    assert [label for label, _ in entry.series] == [
        "pipeline schedule=gpipe split_points=[fc1]",
        "pipeline",
    ]


def test_a_default_that_differs_between_seeds_is_none() -> None:
    """The default follows from times, which each run measures."""
    tried = [a_pipeline(name) for name in SPLIT_POINTS]
    defaults = [a_pipeline(at, requested=False, seed=seed) for seed, at in enumerate(("conv2", "fc1"))]
    found = two_stage_splits(a_comparison(*tried, *defaults).groups)
    assert found
    assert found.default is None
    assert list(found.by_block) == SPLIT_POINTS


def test_split_points_are_in_the_order_of_blocks() -> None:
    tried = [a_pipeline(name) for name in reversed(SPLIT_POINTS)]
    found = two_stage_splits(a_comparison(*tried, a_pipeline("fc1", requested=False)).groups)
    assert found
    assert list(found.by_block) == ["relu1", "conv2", "flatten", "fc1", "fc2"]
    assert (found.default, found.name) == ("fc1", "pipeline over gloo")
    assert two_stage_splits(a_comparison(SERIAL, a_run("pipeline", nodes=4)).groups) is None


def test_labels_write_lists_as_yaml_does() -> None:
    run = a_run({"name": "pipeline", "split_points": ["conv2", "fc1"], "micro_batches": 8}, nodes=3).run
    assert component_label(run, "strategy") == "pipeline micro_batches=8 split_points=[conv2, fc1]"
    assert component_label(run, "strategy", but=("split_points",)) == "pipeline micro_batches=8"


def test_labels_show_the_dimensions_of_a_mesh() -> None:
    run, same = (
        a_run({"name": "hybrid", "mesh": {"data": 2, "tensor": 2, **more}}, nodes=4).run
        for more in ({}, {"pipeline": 1})
    )
    assert component_label(run, "strategy") == "hybrid mesh={data: 2, tensor: 2}"
    assert run.key == same.key


# Figures


def test_memory_is_stacked_for_the_fullest_rank_serial_first() -> None:
    view = view_of(a_comparison(WHOLE, in_parts(a_run("ddp", nodes=2), [1000] * 2), a_pipeline()))
    chart = memory_per_rank(view)
    assert chart is not None
    parts = [record for record in records_of(chart) if "part" in record]
    assert [*dict.fromkeys(record["series"] for record in parts)] == [
        "serial",
        "pipeline split_points=[flatten] · gloo",
        "ddp · gloo",
    ]
    assert [record["part"] for record in parts[:4]] == ["weights", "gradient", "optimizer", "activations"]
    assert [record["amount"] for record in parts[:8]] == [4000, 4000, 4000, 7000, 2400, 2400, 2400, 5000]
    assert sum(record["share"] for record in parts[:4]) == pytest.approx(1)
    nothing = a_comparison(SERIAL, a_pipeline().model_copy(update={"ranks": []}))
    assert memory_per_rank(view_of(nothing)) is None
    assert memory_per_rank(view_of(a_comparison(WHOLE))) is None


def test_the_figure_has_bubbles_and_the_formula() -> None:
    more = a_pipeline(more={"micro_batches": 8})
    comparison = a_comparison(SERIAL, a_pipeline(), more)
    chart = bubbles(view_of(comparison), Style(comparison.groups))
    records = records_of(chart)
    assert [record["formula"] for record in records] == pytest.approx([1 / 9, 1 / 5])
    assert [record["measured"] for record in records] == pytest.approx([0.5, 0.5])
    assert chart is not None
    assert marks_of(chart.spec) == ["rule", "tick", "point"]
    alone = a_comparison(SERIAL, a_pipeline())
    assert bubbles(view_of(alone), Style(alone.groups)) is None


def test_the_figure_of_split_points_has_time_busy_time_and_traffic() -> None:
    runs = [a_pipeline(name, step_s=0.01 * at) for at, name in enumerate(SPLIT_POINTS, 1)]
    comparison = a_comparison(*runs)
    chart = split_points_figure(view_of(comparison), Style(comparison.groups))
    assert chart is not None
    time, work, sent = chart.spec["vconcat"]
    assert all(panel["encoding"]["x"]["sort"] == SPLIT_POINTS for panel in (time, work, sent))
    records = records_of(chart)
    steps = [record["step"] for record in records if "step" in record]
    assert steps == pytest.approx([0.01, 0.02, 0.03, 0.04])
    stages = [record["busy"] for record in records if "stage" in record]
    assert stages[:2] == pytest.approx([3 / 90, 1 / 90])
    assert [record["of"] for record in records if "of" in record] == pytest.approx([2 / 3] * 4)
    assert len([record for record in records if "bytes" in record]) >= 4
    few = a_comparison(*runs[:2])
    assert split_points_figure(view_of(few), Style(few.groups)) is None


# Findings


def all_reduce_in_memory() -> RunResult:
    return in_parts(a_run("all_reduce", nodes=2, train_s=1.8), [1000] * 2, activations=[3000] * 2)


PIPELINE = "pipeline split_points=[flatten] over gloo"


def test_the_least_memory_is_reported_with_its_time_per_step() -> None:
    data = finding_of(a_comparison(WHOLE, all_reduce_in_memory(), a_pipeline()), "least_memory").data
    assert (data["strategy"], data["bytes"]) == (PIPELINE, 12_200)
    assert (data["compared_with"], data["compared_bytes"]) == ("serial", 19_000)
    assert [each["values"] for each in data["compared"]] == [
        pytest.approx([0.05, 0.02]),
        pytest.approx([0.05, 8 / 90]),
    ]
    assert findings_of(a_comparison(WHOLE, all_reduce_in_memory()), "least_memory") == []


def test_ranks_that_are_threads_have_no_times() -> None:
    comparison = a_comparison(WHOLE, a_pipeline(transport="memory"))
    assert "compared" not in finding_of(comparison, "least_memory").data
    assert findings_of(comparison, "bubble") == []


def test_bubbles_are_reported_beside_the_formula() -> None:
    more = a_pipeline(more={"micro_batches": 8})
    data = finding_of(a_comparison(WHOLE, a_pipeline(), more), "bubble").data
    eight = "pipeline micro_batches=8 split_points=[flatten] over gloo"
    assert data["bubble"] == {eight: pytest.approx(0.5), PIPELINE: pytest.approx(0.5)}
    assert data["formula"] == {eight: pytest.approx(1 / 9), PIPELINE: pytest.approx(1 / 5)}
    assert not data["shared_cores"]
    assert finding_of(a_comparison(WHOLE, a_pipeline(cores=1)), "bubble").data["shared_cores"]
    assert findings_of(a_comparison(WHOLE, *repeated("all_reduce", [5.0], nodes=2)), "bubble") == []


def test_the_fastest_split_point_is_reported_with_the_default() -> None:
    steps = {"relu1": 0.03, "conv2": 0.02, "fc2": 0.05}
    runs = [a_pipeline(name, step_s=step_s) for name, step_s in steps.items()]
    default = a_pipeline("flatten", requested=False, step_s=0.04)
    data = finding_of(a_comparison(*runs, default), "split_point").data
    assert (data["best"], data["worst"], data["default"]) == ("conv2", "fc2", "flatten")
    assert data["step_s"] == {name: pytest.approx(s) for name, s in {**steps, "flatten": 0.04}.items()}
    assert findings_of(a_comparison(*runs[:2]), "split_point") == []


def test_split_points_and_schedules_are_no_variants_of_accuracy() -> None:
    runs = [a_pipeline(), a_pipeline(more={"micro_batches": 8}), a_run("gossip", nodes=2)]
    variant = a_run({"name": "gossip", "graph": "complete"}, nodes=2)
    assert finding_of(a_comparison(SERIAL, *runs, variant), "variant").data["strategy"] == "gossip"
    assert findings_of(a_comparison(SERIAL, *runs), "variant") == []


def test_fewer_updates_are_those_of_the_strategies_that_lose() -> None:
    serial = repeated("serial", around(0.95), "accuracy", steps=180)
    losing = repeated("one_shot", around(0.8), "accuracy", nodes=2, steps=90)
    equal = repeated("pipeline", around(0.95), "accuracy", nodes=2, steps=180)
    data = finding_of(a_comparison(*serial, *losing, *equal), "fewer_updates").data
    assert data["updates"] == {"one_shot over mpi": (90, 90)}

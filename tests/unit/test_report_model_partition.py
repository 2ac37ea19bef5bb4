"""The report on models that several nodes hold: what they keep, send and wait for, and where to cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from orchestrator.report.figures.bubbles import bubbles
from orchestrator.report.figures.maps import Map
from orchestrator.report.figures.memory import memory_per_rank
from orchestrator.report.figures.sizes import exchange_by_size
from orchestrator.report.figures.split_points import step_by_cut
from orchestrator.report.figures.style import RC, Style
from orchestrator.report.figures.svg import to_svg
from orchestrator.report.metrics import model_partition as cut
from orchestrator.report.metrics.data_partition import holders, representatives, survey_of
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.split_points import halves, one_of_each
from orchestrator.report.render.columns import DIVIDED, filled
from orchestrator.report.render.legend import legend
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_pipeline,
    a_run,
    csv_lines,
    in_parts,
    row_of,
)
from tests.unit.test_report_pages import Page, write_sweep

WHOLE = in_parts(a_run(), [1000], activations=[7000])
HYBRID = {"name": "hybrid", "shape": [2, 2]}
SPLIT_POINTS = ["relu1", "conv2", "flatten", "fc2"]


def scene_of(comparison: Comparison) -> WorkloadView:
    (work,) = comparison.works
    return comparison.scene(work)


def a_hybrid(**fields: Any) -> RunResult:
    parts = [["conv1"], ["fc1"]] * 2
    return in_parts(a_run(HYBRID, nodes=4, **fields), [600, 400] * 2, blocks=parts)


# What a rank holds, sends and waits for


def test_a_row_says_what_the_cut_costs() -> None:
    row = row_of(a_comparison(WHOLE, a_pipeline()), "pipeline")
    assert cut.step_s(row) == pytest.approx(0.05)
    assert cut.bubble(row) == pytest.approx(2 / 4)  # of training, not of evaluation
    assert cut.bubble_formula(row) == pytest.approx(1 / 5)
    assert cut.split_points(row) == ["flatten"]
    assert cut.cut_bytes_per_step(row) == pytest.approx(27_000 / 90)
    assert cut.balance(row) == pytest.approx(2 / 3)
    assert cut.work_s(row) == pytest.approx([3 / 90, 1 / 90])
    assert (cut.parameters(row), cut.parameters_share(row)) == (600, pytest.approx(0.6))
    assert (cut.state_bytes(row), cut.held_share(row)) == (7200, pytest.approx(0.6))
    assert (cut.activation_bytes(row), cut.memory_bytes(row)) == (5000, 12_200)


def test_the_fullest_rank_need_not_be_the_first() -> None:
    run = in_parts(a_run("pipeline", nodes=2), [400, 600], activations=[5000, 2000])
    row = row_of(a_comparison(run), "pipeline")
    assert cut.memory_by_kind(row) == {
        "weights": 1600,
        "gradient": 1600,
        "optimizer": 1600,
        "activations": 5000,
    }
    assert cut.state_bytes(row) == 7200


def test_a_bubble_is_only_told_of_stages() -> None:
    comparison = a_comparison(SERIAL, a_run("all_reduce", nodes=2), a_hybrid())
    assert cut.bubble(row_of(comparison, "all_reduce")) is None
    assert cut.bubble_formula(row_of(comparison, "hybrid")) == pytest.approx(1 / 5)  # two stages, not four


def test_who_drives_the_parts_is_no_stage() -> None:
    """A master waits nearly all the time; of two parts one waits while the other computes."""
    run = in_parts(a_run("rpc_split", nodes=3), [0, 1, 1], blocks=[[], ["conv1"], ["fc1"]])
    row = row_of(a_comparison(run), "rpc_split")
    assert cut.bubble_formula(row) == pytest.approx(1 / 2)
    assert len(cut.work_s(row)) == 2
    assert cut.split_points(row) == ["fc1"]


def test_a_library_that_does_not_say_when_it_waits_has_no_measured_bubble() -> None:
    row = row_of(a_comparison(in_parts(a_run("pipeline_torch", nodes=2), [1, 1])), "pipeline_torch")
    assert cut.bubble(row) is None
    assert cut.bubble_formula(row) == pytest.approx(1 / 5)  # as in pipeline, so that work speedups compare


def test_the_busiest_of_several_cuts_counts() -> None:
    blocks = [["conv1"], ["conv2"], ["fc1"]]
    sent = [[0, 10, 0], [20, 0, 300], [0, 400, 0]]
    run = in_parts(a_run("pipeline", nodes=3), [1, 1, 1], blocks=blocks, bytes_to=sent)
    assert cut.cut_bytes_per_step(row_of(a_comparison(run), "pipeline")) == pytest.approx(700 / 90)


def test_results_from_before_all_that_was_recorded_have_none_of_it() -> None:
    row = row_of(a_comparison(SERIAL, a_run("pipeline", nodes=2)), "pipeline")
    assert cut.split_points(row) == []
    assert cut.memory_by_kind(row) == {}
    assert (cut.state_bytes(row), cut.activation_bytes(row), cut.cut_bytes_per_step(row)) == (None,) * 3
    failed = row_of(a_comparison(a_run("pipeline", nodes=2, status="failed", cause="gone")), "pipeline")
    assert (cut.step_s(failed), cut.bubble(failed), cut.balance(failed)) == (None,) * 3


@pytest.mark.parametrize("name", ["pipeline", "pipeline_torch"])
def test_work_speedup_has_the_bubble_in_it(name: str) -> None:
    """Even where communication is free, stages wait for each other."""
    serial, run = a_run(work_cpu_s=8.0), a_run(name, nodes=2, work_cpu_s=4.0)
    row = row_of(a_comparison(serial, run), name)
    assert row.work_speedup == pytest.approx(2 * (1 - 1 / 5))


def test_stages_of_different_length_wait_for_the_longest() -> None:
    """Of 4 micro-batches one goes through all stages, the longest then takes three more."""
    serial, copies = a_run(work_cpu_s=8.0), a_hybrid()
    work = [6.0, 2.0, 3.0, 3.0]
    ranks = [rank.model_copy(update={"work_cpu_s": s}) for rank, s in zip(copies.ranks, work, strict=True)]
    row = row_of(a_comparison(serial, copies.model_copy(update={"ranks": ranks})), "hybrid")
    assert row.work_speedup == pytest.approx(8 / ((6 + 2 + 3 * 6) / 4))


def a_split() -> RunResult:
    """A master, and two parts that work 3 s and 1 s of 5."""
    seconds = [{"wait": 5.0}, {"compute": 3.0, "wait": 2.0}, {"compute": 1.0, "wait": 4.0}]
    sent = [[0, 99_000, 0], [0, 0, 9_000], [99_000, 9_000, 0]]
    run = a_run("rpc_split", nodes=3, work_cpu_s=2.0)
    parts: list[list[str] | None] = [[], ["conv1"], ["flatten"]]
    return in_parts(run, [0, 600, 400], blocks=parts, bytes_to=sent, seconds=seconds)


def test_parts_that_are_called_one_after_the_other_save_no_time() -> None:
    """The master holds none of the model: it is at no cut, and does not count among idle stages."""
    row = row_of(a_comparison(a_run(work_cpu_s=6.0), a_split()), "rpc_split")
    assert row.work_speedup == pytest.approx(1.0)
    assert (cut.bubble(row), cut.bubble_formula(row)) == (pytest.approx(6 / 10), 1 / 2)
    assert cut.split_points(row) == ["flatten"]
    assert cut.cut_bytes_per_step(row) == pytest.approx(18_000 / 90)
    assert cut.work_s(row) == pytest.approx([3 / 90, 1 / 90])


def test_a_bubble_is_not_told_where_waiting_is_booked_as_communication() -> None:
    run = in_parts(a_run("pipeline_torch", nodes=2), [1, 1], blocks=[["conv1"], ["fc1"]])
    row = row_of(a_comparison(run), "pipeline_torch")
    assert (cut.bubble(row), cut.bubble_formula(row)) == (None, 1 / 5)


def test_only_copies_of_the_model_can_differ() -> None:
    apart = a_run(HYBRID, nodes=4, digests=["a", None, "b", None])  # type: ignore[list-item]
    rows = a_comparison(a_run("pipeline", nodes=2), apart)
    assert row_of(rows, "pipeline").replicas_equal is None
    assert row_of(rows, "hybrid").replicas_equal is False


def test_a_batch_of_the_run_is_other_work_than_one_of_each_rank() -> None:
    shared = {"batch_size": 64, "batch_per": "run"}
    runs = [a_run(**shared), a_run("pipeline", nodes=2, **shared)]
    runs += [a_run("all_reduce", nodes=nodes, **shared) for nodes in (2, 4)]
    (work,) = a_comparison(*runs).works
    assert ", batch 64 in all, " in work.label
    other = a_run(batch_size=64)
    assert len(a_comparison(*runs, other).works) == 2
    assert ", batch 64 per rank, " in a_comparison(other).works[0].label


def test_the_size_of_a_model_is_that_of_all_its_parts() -> None:
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
        with rc_context(RC):  # type: ignore[arg-type]
            figure = exchange_by_size(comparison, Style(comparison.groups))
        assert figure
        ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
        assert ticks == ["1,000", "10,000"]


# Tables


def titles(comparison: Comparison) -> dict[str, list[str]]:
    groups = comparison.groups
    return {
        column.title: [column.cell(group).text for group in groups] for column in filled(DIVIDED, groups)
    }


def test_the_table_has_what_matters_where_a_model_is_cut() -> None:
    comparison = a_comparison(WHOLE, a_pipeline())
    told = titles(comparison)
    assert told["Bubble"] == ["–", "50.0%"]
    assert told["Bubble by formula"] == ["–", "20.0%"]
    assert told["Parameters, of serial's"] == ["1,000", "600"]
    assert told["Balance of work"] == ["100.0%", "66.7%"]
    (cell,) = [
        column.cell(comparison.groups[1])
        for column in DIVIDED
        if column.title == "Weights, gradient, optimizer, of serial's"
    ]
    assert cell.detail == "60.0%"
    line = csv_lines(comparison)[1]
    assert float(line["bubble"]) == pytest.approx(0.5)
    assert float(line["cut_bytes_per_step_max"]) == pytest.approx(300)
    assert (line["split_points"], line["held_bytes_per_rank_max"]) == ("flatten", "7200")
    assert (line["replicas_equal"], line["batch_per"]) == ("", "rank")


def test_the_pages_have_the_table_only_where_something_is_divided(tmp_path: Path) -> None:
    pages = []
    for name, other in [("cut", a_pipeline()), ("whole", in_parts(a_run("ddp", nodes=2), [1000] * 2))]:
        paths = write_sweep(tmp_path / name, WHOLE, other)
        page = Page(paths.html.read_text())
        assert ("divided" in page.ids) == ("#divided" in page.links) == (name == "cut")
        pages.append(paths.markdown.read_text())
    assert "The model over the nodes" in pages[0]
    assert "The model over the nodes" not in pages[1]


def test_ranks_with_less_of_the_optimizer_divide_the_model_too() -> None:
    whole = in_parts(a_run("ddp", nodes=2), [1000] * 2)
    assert not cut.divides(a_comparison(WHOLE, whole).groups)
    shards = in_parts(a_run("all_reduce", nodes=2), [500] * 2)
    assert cut.divides(a_comparison(WHOLE, shards).groups)


# Splits


def test_ranks_that_hold_one_copy_share_a_row_of_the_map() -> None:
    comparison = a_comparison(a_hybrid())
    (row,) = representatives(comparison.groups)
    assert holders(row) == ("0–1", "2–3")
    seen = survey_of(row)
    assert seen
    assert list(Map("p", row.shape, seen, holders(row)).row_names) == ["0–1", "2–3"]
    assert holders(row_of(a_comparison(a_split()), "rpc_split")) == ("0–2",)
    assert list(Map("p", row.shape, seen).row_names) == ["2", "3"]  # after two servers


def test_a_split_among_copies_is_that_among_as_many_ranks() -> None:
    whole = [a_run("all_reduce", nodes=nodes) for nodes in (2, 4)]
    rows = representatives(a_comparison(a_hybrid(), *whole).groups)
    assert [(row.strategy, row.shape.ranks) for row in rows] == [("all_reduce", 2), ("all_reduce", 4)]
    rows = representatives(a_comparison(whole[1], a_hybrid()).groups)
    assert [(row.strategy, row.shape.ranks) for row in rows] == [("hybrid", 4), ("all_reduce", 4)]


# Cuts


def test_of_cuts_that_are_all_alike_one_stands_for_the_others() -> None:
    tried = [a_pipeline(name) for name in SPLIT_POINTS]
    gpipe = a_pipeline("fc1", more={"schedule": "gpipe"})
    default = a_pipeline("conv2", named=False)
    groups = a_comparison(SERIAL, *tried, gpipe, default).groups
    shown = [group.strategy_label for group in one_of_each(groups)]
    assert shown == ["serial", "pipeline schedule=gpipe split_points=[fc1]", "pipeline"]
    named = one_of_each(groups[:3])
    assert [group.strategy_label for group in named] == ["serial", "pipeline split_points=[relu1]"]
    scene = scene_of(a_comparison(SERIAL, *tried, default))
    assert [group.strategy_label for group in scene.rivals] == ["pipeline"]
    (entry,) = [entry for entry in legend(groups) if entry.name == "pipeline"]
    assert [label for label, _ in entry.looks] == ["pipeline schedule=gpipe split_points=[fc1]", "pipeline"]


def test_a_default_that_was_another_cut_with_another_seed_is_none() -> None:
    """It follows from times, which are measured anew."""
    tried = [a_pipeline(cut) for cut in SPLIT_POINTS]
    defaults = [a_pipeline(at, named=False, seed=seed) for seed, at in enumerate(("conv2", "fc1"))]
    found = halves(a_comparison(*tried, *defaults).groups)
    assert found
    assert found.default is None
    assert list(found.by_cut) == SPLIT_POINTS


def test_cuts_stand_in_the_order_of_the_blocks_and_the_default_among_them() -> None:
    tried = [a_pipeline(name) for name in reversed(SPLIT_POINTS)]
    found = halves(a_comparison(*tried, a_pipeline("fc1", named=False)).groups)
    assert found
    assert list(found.by_cut) == ["relu1", "conv2", "flatten", "fc1", "fc2"]
    assert (found.default, found.name) == ("fc1", "pipeline over gloo")
    assert halves(a_comparison(SERIAL, a_run("pipeline", nodes=4)).groups) is None


def test_labels_write_lists_as_yaml_does() -> None:
    run = a_run({"name": "pipeline", "split_points": ["conv2", "fc1"], "micro_batches": 8}, nodes=3).run
    assert component_label(run, "strategy") == "pipeline micro_batches=8 split_points=[conv2, fc1]"
    assert component_label(run, "strategy", but=("split_points",)) == "pipeline micro_batches=8"


# Figures


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    with rc_context(RC):  # type: ignore[arg-type]
        to_svg(figure, "figure")
    return figure


def test_memory_is_stacked_for_the_fullest_rank_serial_first() -> None:
    scene = scene_of(a_comparison(WHOLE, in_parts(a_run("ddp", nodes=2), [1000] * 2), a_pipeline()))
    axes = drawn(memory_per_rank(scene)).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["serial", "pipeline split_points=[flatten]\n·\xa0gloo", "ddp · gloo"]
    widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    assert widths[:8] == [4000, 4000, 4000, 7000, 2400, 2400, 2400, 5000]
    assert (
        memory_per_rank(scene_of(a_comparison(SERIAL, a_pipeline().model_copy(update={"ranks": []}))))
        is None
    )
    assert memory_per_rank(scene_of(a_comparison(WHOLE))) is None


def test_the_bubble_stands_beside_its_formula() -> None:
    more = a_pipeline(more={"micro_batches": 8})
    comparison = a_comparison(SERIAL, a_pipeline(), more)
    axes = drawn(bubbles(scene_of(comparison), Style(comparison.groups))).axes[0]
    marks = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "|"]  # type: ignore[index]
    dots = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "s"]  # type: ignore[index]
    assert marks == pytest.approx([1 / 9, 1 / 5])
    assert dots == pytest.approx([0.5, 0.5])
    alone = a_comparison(SERIAL, a_pipeline())
    assert bubbles(scene_of(alone), Style(alone.groups)) is None


def test_the_cut_figure_has_time_work_and_bytes_by_block() -> None:
    runs = [a_pipeline(name, step_s=0.01 * at) for at, name in enumerate(SPLIT_POINTS, 1)]
    comparison = a_comparison(*runs)
    time, work, sent = drawn(step_by_cut(scene_of(comparison), Style(comparison.groups))).axes
    assert [label.get_text() for label in sent.get_xticklabels()] == SPLIT_POINTS
    assert time.lines[0].get_ydata() == pytest.approx([0.01, 0.02, 0.03, 0.04])
    heights = [bar.get_height() for bar in work.patches]  # type: ignore[attr-defined]
    assert heights[:2] == pytest.approx([3 / 90, 1 / 90])
    assert [text.get_text() for text in work.texts] == ["67%"] * 4
    few = a_comparison(*runs[:2])
    assert step_by_cut(scene_of(few), Style(few.groups)) is None

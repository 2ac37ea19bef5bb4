"""Overview figures, exchange against model size, and the legend of strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.glance import strategies_at_a_glance
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.render.legend import legend
from orchestrator.report.topics.exchange import exchange_by_size
from orchestrator.results.records import RunResult
from tests.unit.conftest import PROJECT
from tests.unit.orchestrator.report.test_report_pages import Page
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_run,
    layers,
    points,
    row_of,
    scale,
    value,
    write_page,
)
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES

NAMES = ["all_reduce", "one_shot", "gossip", "local_sgd"]
ACCURACY = [0.88, 0.71, 0.80, 0.84]


def tried(partitioner: str = "random_partition", less: float = 0.0, **fields: Any) -> list[RunResult]:
    return [
        a_run(
            name,
            nodes=4,
            transport="mpi",
            partitioner=partitioner,
            accuracy=accuracy - less,
            train_s=4.0 + at,
            **fields,
        )
        for at, (name, accuracy) in enumerate(zip(NAMES, ACCURACY, strict=True))
    ]


def view_of(comparison: Comparison) -> WorkloadView:
    (workload,) = comparison.workloads
    return comparison.view(workload)


def glance(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(*runs)
    return strategies_at_a_glance(view_of(comparison), Style(comparison.groups))


def panels(chart: Chart | None) -> list[list[dict[str, Any]]]:
    """The records of each panel."""
    assert chart is not None
    return [chart.spec["datasets"][panel["data"]["name"]] for panel in chart.spec["hconcat"]]


def test_the_most_accurate_strategy_comes_first_after_serial() -> None:
    accuracy, times, sent = panels(glance(SERIAL, *tried()))
    rows = ["serial", "all_reduce · mpi", "local_sgd · mpi", "gossip · mpi", "one_shot · mpi"]
    for records in (accuracy, times, sent):
        assert [record["series"] for record in records] == rows
    assert [record["mean"] for record in accuracy] == pytest.approx([0.9, 0.88, 0.84, 0.80, 0.71])
    assert [record["mean"] for record in times] == pytest.approx([8, 4, 7, 6, 5])  # not sorted
    assert [record["written"][:4] for record in times] == ["8.00", "4.00", "7.00", "6.00", "5.00"]


def test_amounts_far_apart_are_dots_on_a_logarithmic_axis() -> None:
    quick = a_run("ddp", nodes=4, train_s=0.1)
    for runs, kind in (([*tried(), quick], "log"), (tried(), "linear")):
        chart = glance(SERIAL, *runs)
        assert chart is not None
        views = layers(chart.spec["hconcat"][1])
        assert {
            view["encoding"]["x"]["scale"]["type"]
            for view in views
            if "scale" in view["encoding"].get("x", {})
        } == {kind}
        assert not {view["mark"]["type"] for view in layers(chart.spec)} & {"bar", "area"}


def test_an_outlier_does_not_flatten_the_others() -> None:
    chart = glance(SERIAL, *tried(), a_run("ddp", nodes=4, accuracy=0.08))
    low, high = scale(chart, "x")["domain"]
    assert 0.6 < low < 0.71
    assert 0.9 < high < 1
    outside = [record for record in panels(chart)[0] if record["outside"]]
    assert [(record["series"], record["outside"], record["written"]) for record in outside] == [
        ("ddp · gloo", -1, "8.0%")
    ]
    assert chart is not None
    assert "triangle-left" in {view["mark"].get("shape") for view in layers(chart.spec)}


def test_few_strategies_have_no_overview() -> None:
    assert glance(SERIAL, *tried()[:2]) is None


def test_the_overview_shows_one_partitioner() -> None:
    accuracy, _, _ = panels(glance(SERIAL, *tried(), *tried("contiguous", less=0.2)))
    assert [record["series"] for record in accuracy].count("gossip · mpi") == 1


def test_figures_with_many_lines_show_one_partitioner() -> None:
    several = ["random_partition", "contiguous", "shards", "stratified"]
    few = a_comparison(SERIAL, *[run for name in several[:3] for run in tried(name)])
    many = a_comparison(SERIAL, *[run for name in several for run in tried(name)])
    assert len(view_of(few).line_groups) == 13
    assert {group.partitioner_label for group in view_of(many).line_groups} == {"", "random_partition"}


# Models of several sizes


def sized(strategy: str, hidden: int, communicate_s: float, **fields: Any) -> RunResult:
    """A run of a model with `hidden` parameters."""
    run = a_run(
        strategy,
        nodes=2,
        transport="mpi",
        communicate_s=communicate_s,
        model={"name": "mlp", "hidden": [hidden]},
        **fields,
    )
    return run.model_copy(
        update={"ranks": [r.model_copy(update={"parameters": hidden}) for r in run.ranks]}
    )


def exchange(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(*runs)
    return exchange_by_size(comparison, Style(comparison.groups))


def test_communication_time_by_model_size() -> None:
    runs = [
        *(
            sized("all_reduce", hidden, seconds)
            for hidden, seconds in ((100, 0.9), (10, 0.09), (1000, 4.5))
        ),
        *(sized("all_gather", hidden, seconds) for hidden, seconds in ((10, 0.18), (1000, 2.7))),
    ]
    chart = exchange(*runs)
    drawn = [(record["series"], record["parameters"], record["mean"]) for record in points(chart)]
    assert [name for name, _, _ in drawn] == ["all_reduce · mpi"] * 3 + ["all_gather · mpi"] * 2
    assert [size for _, size, _ in drawn] == [10, 100, 1000, 10, 1000]
    assert [mean for _, _, mean in drawn] == pytest.approx([0.001, 0.01, 0.05, 0.002, 0.03])
    assert scale(chart, "x")["type"] == scale(chart, "y")["type"] == "log"


def test_the_report_has_this_figure_once(tmp_path: Path) -> None:
    paths = write_page(tmp_path, sized("all_reduce", 10, 0.1), sized("all_reduce", 100, 0.2))
    assert [file.name for file in paths.plots.glob("exchange*")] == ["exchange-1.svg"]


def test_one_model_size_has_no_figure() -> None:
    assert exchange(sized("all_reduce", 10, 0.9), sized("all_gather", 10, 0.9)) is None
    assert exchange(sized("all_reduce", 10, 0.9), sized("all_reduce", 100, 0.9, lr=0.5)) is None


# The legend


@pytest.mark.parametrize("name", [name for name in STRATEGIES.entries if name != "serial"])
def test_every_strategy_has_its_file_in_the_legend(name: str) -> None:
    nodes = 4 if name == "hybrid" else max(2, STRATEGIES.load(name).min_nodes)
    (entry,) = legend(a_comparison(a_run(name, nodes=nodes, **fields_for(name))).groups)
    assert entry.name == name
    text = (PROJECT / entry.file).read_text()
    assert f"class {type(STRATEGIES.parse(name)).__name__}(" in text
    assert entry.summary.endswith(".")
    assert entry.summary in " ".join(text.split())
    assert len(entry.about[0]) > 20


def test_the_legend_has_the_colours_of_the_figures() -> None:
    variants = [a_run({"name": "gossip", "graph": graph}, nodes=2) for graph in ("ring", "complete")]
    groups = a_comparison(SERIAL, *tried(), *variants).groups
    entries = {entry.name: entry for entry in legend(groups)}
    assert list(entries) == ["serial", *NAMES]
    assert [label for label, _ in entries["gossip"].series] == ["gossip", "gossip graph=complete"]
    style = Style(groups)
    for group in groups:
        assert (group.strategy_label, style.look(group).colour) in entries[group.strategy].series


def test_the_page_names_the_file_of_each_strategy(tmp_path: Path) -> None:
    paths = write_page(tmp_path, SERIAL, *tried())
    page = Page(paths.html.read_text())
    for name in NAMES:
        assert f"trainer/strategies/{name}.py" in page.text
        assert f"`trainer/strategies/{name}.py`" in paths.markdown.read_text()
    assert "strategies" in page.ids


# Per step


def test_communication_time_per_step() -> None:
    comparison = a_comparison(
        SERIAL,
        a_run("all_reduce", nodes=4, communicate_s=1.8, steps=90),
        a_run("gossip", status="failed", nodes=2),
        a_run("one_shot", nodes=2, communicate_s=1.8, steps=90),
        a_run("hogwild", nodes=2, steps=90),
    )
    row = row_of(comparison, "all_reduce")
    assert value(row, "exchange_s_per_step") == pytest.approx(0.02)
    assert value(row, "bytes_sent_per_rank_per_step") == pytest.approx(1e6 / 90)
    for other in (row_of(comparison, "serial"), row_of(comparison, "gossip")):
        assert value(other, "exchange_s_per_step") is None
    for other in (row_of(comparison, "one_shot"), row_of(comparison, "hogwild")):  # nothing in a step
        assert value(other, "exchange_s_per_step") is None
        assert value(other, "bytes_sent_per_rank_per_step") is None


def test_consensus_distance_is_that_of_the_last_epoch() -> None:
    run = a_run("gossip", nodes=2)
    distances = {1: 0.5, 2: 0.25}
    points = [p.model_copy(update={"consensus_distance": distances[p.epoch]}) for p in run.epochs]
    comparison = a_comparison(run.model_copy(update={"epochs": points}), SERIAL)
    assert value(row_of(comparison, "gossip"), "consensus_distance") == 0.25
    assert value(row_of(comparison, "serial"), "consensus_distance") is None

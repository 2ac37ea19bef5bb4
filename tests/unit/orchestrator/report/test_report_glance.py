"""Mistakes in the overview of strategies, in the figure of model sizes and in the legend: order, scale,
what is outside an axis, and colours and files of another strategy."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.glance import strategies_at_a_glance
from orchestrator.report.figures.style import Style
from orchestrator.report.plots import draw
from orchestrator.report.render.legend import legend
from orchestrator.report.topics.exchange import exchange_by_size
from orchestrator.results.records import RunResult
from tests.unit.conftest import PROJECT
from tests.unit.report_support import SERIAL, a_comparison, a_run, layers, points, scale
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES

TRIED = {"all_reduce": 0.88, "one_shot": 0.71, "gossip": 0.80, "local_sgd": 0.84}


def tried(**fields: Any) -> list[RunResult]:
    return [
        a_run(name, **{"nodes": 4, "transport": "mpi", "accuracy": accuracy, "train_s": 4.0 + at, **fields})
        for at, (name, accuracy) in enumerate(TRIED.items())
    ]


def glance(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(*runs)
    (workload,) = comparison.workloads
    return strategies_at_a_glance(comparison.view(workload), Style(comparison.groups))


def panels(chart: Chart | None) -> list[list[dict[str, Any]]]:
    """The records of each panel."""
    assert chart is not None
    return [chart.spec["datasets"][panel["data"]["name"]] for panel in chart.spec["hconcat"]]


def test_the_most_accurate_strategy_comes_first_after_serial() -> None:
    others = tried(partitioner="contiguous", accuracy=0.1)  # the overview shows one partitioner
    accuracy, times, sent = panels(glance(SERIAL, *tried(), *others))
    rows = ["serial", "all_reduce · mpi", "local_sgd · mpi", "gossip · mpi", "one_shot · mpi"]
    for records in (accuracy, times, sent):
        assert [record["series"] for record in records] == rows
    assert [record["mean"] for record in accuracy] == pytest.approx([0.9, 0.88, 0.84, 0.80, 0.71])
    assert [record["mean"] for record in times] == pytest.approx([8, 4, 7, 6, 5])  # not sorted
    assert [record["written"][:4] for record in times] == ["8.00", "4.00", "7.00", "6.00", "5.00"]
    assert glance(SERIAL, *tried()[:2]) is None  # other figures show few


def test_amounts_far_apart_are_dots_on_a_logarithmic_axis() -> None:
    quick = a_run("ddp", nodes=4, train_s=0.1)
    for runs, kind in (([*tried(), quick], "log"), (tried(), "linear")):
        chart = glance(SERIAL, *runs)
        assert chart is not None
        encodings = [view["encoding"].get("x", {}) for view in layers(chart.spec["hconcat"][1])]
        assert {x["scale"]["type"] for x in encodings if "scale" in x} == {kind}
        assert not {view["mark"]["type"] for view in layers(chart.spec)} & {"bar", "area"}


def test_an_outlier_does_not_flatten_the_others() -> None:
    chart = glance(SERIAL, *tried(), a_run("ddp", nodes=4, accuracy=0.08))
    low, high = scale(chart, "x")["domain"]
    assert 0.6 < low < 0.71
    assert 0.9 < high < 1
    outside = [record for record in panels(chart)[0] if record["outside"]]
    shown = [(record["series"], record["outside"], record["written"]) for record in outside]
    assert shown == [("ddp · gloo", -1, "8.0%")]
    assert chart is not None
    assert "triangle-left" in {view["mark"].get("shape") for view in layers(chart.spec)}


def sized(strategy: str, hidden: int, communicate_s: float, **fields: Any) -> RunResult:
    """A run of a model with `hidden` parameters."""
    model = {"name": "mlp", "hidden": [hidden]}
    run = a_run(strategy, nodes=2, transport="mpi", communicate_s=communicate_s, model=model, **fields)
    ranks = [rank.model_copy(update={"parameters": hidden}) for rank in run.ranks]
    return run.model_copy(update={"ranks": ranks})


def test_exchange_by_model_size_is_one_figure_of_models_trained_alike() -> None:
    spent = {"all_reduce": {100: 0.9, 10: 0.09, 1000: 4.5}, "all_gather": {10: 0.18, 1000: 2.7}}
    comparison = a_comparison(*(sized(name, n, s) for name, of in spent.items() for n, s in of.items()))
    chart = exchange_by_size(comparison, Style(comparison.groups))
    drawn = [(record["series"], record["parameters"], record["mean"]) for record in points(chart)]
    assert [name for name, _, _ in drawn] == ["all_reduce · mpi"] * 3 + ["all_gather · mpi"] * 2
    assert [size for _, size, _ in drawn] == [10, 100, 1000, 10, 1000]
    assert [mean for _, _, mean in drawn] == pytest.approx([0.001, 0.01, 0.05, 0.002, 0.03])
    assert scale(chart, "x")["type"] == scale(chart, "y")["type"] == "log"
    for other in ({}, {"lr": 0.5}):  # one size, and another training
        runs = [
            sized("all_reduce", 10, 0.9),
            sized("all_reduce", 100 if other else 10, 0.9, seed=1, **other),
        ]
        alone = a_comparison(*runs)
        assert exchange_by_size(alone, Style(alone.groups)) is None
    two = a_comparison(sized("all_reduce", 10, 0.1), sized("all_reduce", 100, 0.2))
    assert [plot.name for plot in draw(two) if plot.kind.name == "exchange"] == ["exchange-1"]


def test_the_legend_has_the_file_and_the_colours_of_every_strategy() -> None:
    names = [name for name in STRATEGIES.entries if name != "serial"]
    nodes = {name: 4 if name == "hybrid" else max(2, STRATEGIES.load(name).min_nodes) for name in names}
    variant = a_run({"name": "gossip", "graph": "complete"}, nodes=2)
    groups = a_comparison(
        SERIAL, *(a_run(name, nodes=nodes[name], **fields_for(name)) for name in names), variant
    ).groups
    entries = {entry.name: entry for entry in legend(groups)}
    assert [*entries] == ["serial", *names]
    for name in names:
        entry = entries[name]
        text = (PROJECT / entry.file).read_text()
        assert f"class {type(STRATEGIES.parse(name)).__name__}(" in text
        assert entry.summary.endswith(".")
        assert entry.summary in " ".join(text.split())
        assert len(entry.about[0]) > 20
    assert [label for label, _ in entries["gossip"].series] == ["gossip", "gossip graph=complete"]
    style = Style(groups)
    for group in groups:
        assert (group.strategy_label, style.look(group).colour) in entries[group.strategy].series

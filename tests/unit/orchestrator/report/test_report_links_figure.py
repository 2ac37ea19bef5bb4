"""The figure of times over links: a cell per strategy and link, shaded by what the fastest takes."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from orchestrator.report.model.comparison import Comparison
from orchestrator.report.plots import draw
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.topics.links import time_by_link
from tests.unit.report_support import a_comparison, a_run, around, repeated, unrendered_figures

SLOW = {"bandwidth_mbit": 10, "latency_ms": 1}


def cells(comparison: Comparison) -> dict[tuple[str, str], dict[str, Any]]:
    (views,) = comparison.over_links().values()
    figure = time_by_link(views)
    assert figure
    (records,) = figure.spec["datasets"].values()
    return {(record["series"], record["link"]): record for record in records}


def test_cells_are_shaded_by_the_fastest_distributed_strategy_of_their_link() -> None:
    times = {("all_reduce", True): 8.0, ("gossip", True): 2.0, ("all_reduce", False): 1.5}
    runs = [
        run
        for (strategy, slow), train_s in times.items()
        for run in repeated(
            strategy, around(train_s), nodes=2, transport="gloo", link=SLOW if slow else None
        )
    ]
    found = cells(a_comparison(*repeated("serial", around(1.0)), *runs))
    link = "10 Mbit/s, 1 ms"
    assert {name: record["shade"] for name, record in found.items()} == {
        ("serial", link): 0,
        ("serial", OWN_LINKS): 0,
        ("all_reduce · gloo", link): pytest.approx(log(4), rel=0.01),
        ("gossip · gloo", link): 0,
        ("all_reduce · gloo", OWN_LINKS): 0,
    }
    assert found["all_reduce · gloo", link]["written"].split() == ["8.00", "s"]


def test_the_figures_of_several_workloads_over_links_have_files_of_their_own() -> None:
    runs = [
        a_run("all_reduce", nodes=2, transport="gloo", link=link, lr=lr)
        for lr in (0.1, 0.2)
        for link in (SLOW, None)
    ]
    with unrendered_figures():
        names = [plot.name for plot in draw(a_comparison(*runs))]
    assert sum(name.startswith("links-") for name in names) == 2
    assert len({*names}) == len(names)


def test_one_link_is_no_comparison_of_links() -> None:
    run = a_run("all_reduce", nodes=2, transport="gloo", link=SLOW)
    (views,) = a_comparison(a_run(), run).over_links().values()
    assert time_by_link(views) is None

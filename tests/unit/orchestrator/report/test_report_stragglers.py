"""Straggler attribution, and runs with a slow node."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import UNEQUAL_NODES
from orchestrator.report.plots import draw
from orchestrator.report.quantities.stragglers import mean_wait_shares, straggler_of, wait_shares
from orchestrator.report.render.columns import GROUPS
from orchestrator.report.topics.stragglers import (
    MAX_NUMBERED_RANKS,
    MAX_PANELS,
    MOST_ROWS,
    straggler_attribution,
)
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_run,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    marks_of,
    records_of,
    row_of,
    unrendered_figures,
    value,
)

# Seconds that each rank (row) waited for each other rank (column), of 10 s of training.
WAITS_FOR_LAST = [[0.0, 0.5, 6.0], [0.25, 0.0, 5.0], [0.0, 0.25, 0.0]]
WAITS_FOR_ALL = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def waiting(seconds: list[list[float]], strategy: Any = "all_reduce", **fields: Any) -> RunResult:
    run = a_run(strategy, nodes=len(seconds), train_s=10.0, **fields)
    ranks = [rank.model_copy(update={"wait_s_by_rank": seconds[rank.rank]}) for rank in run.ranks]
    return run.model_copy(update={"ranks": ranks})


def test_shares_are_relative_to_the_wall_time_of_the_waiting_rank() -> None:
    comparison = a_comparison(waiting(WAITS_FOR_LAST))
    assert np.allclose(wait_shares(row_of(comparison, "all_reduce")), np.array(WAITS_FOR_LAST) / 10)  # type: ignore[arg-type]
    most = straggler_of(mean_wait_shares(comparison.groups[0]))
    assert most is not None
    assert (most.rank, most.ranks) == (2, 3)
    assert most.share_of_time == pytest.approx((0.6 + 0.5) / 2)
    assert most.share_of_waiting == pytest.approx(11 / 12)


def test_results_without_straggler_attribution_have_no_shares() -> None:
    for run in (a_run("all_reduce", nodes=2), SERIAL):
        (row,) = a_comparison(run).rows
        assert wait_shares(row) is None
    assert straggler_of(np.zeros((2, 2))) is None


def over_seeds(*waits: list[list[float]], **fields: Any) -> list[RunResult]:
    """A run for each, with its own seed."""
    return [waiting(seconds, seed=seed, **fields) for seed, seconds in enumerate(waits)]


def test_a_straggler_is_reported() -> None:
    data = finding_of(a_comparison(*over_seeds(*[WAITS_FOR_LAST] * 5)), "straggler").data
    assert (data["strategy"], data["rank"]) == ("all_reduce over mpi", 2)
    assert data["share_of_time"] == pytest.approx(0.55)
    assert data["share_of_waiting"] == pytest.approx(11 / 12)
    (compared,) = data["compared"]
    assert compared["values"] == [pytest.approx(11 / 12 - 1 / 3), 0.0]
    slow = a_comparison(*over_seeds(*[WAITS_FOR_LAST] * 5, node_speed={-1: 0.25}))
    assert finding_of(slow, "straggler").data["rank"] == 2


def test_a_rank_that_is_slow_in_few_seeds_is_no_straggler() -> None:
    """Of equal ranks, one is always waited for most."""
    waits_for_first = [row[::-1] for row in WAITS_FOR_LAST[::-1]]
    for runs in (over_seeds(WAITS_FOR_LAST), over_seeds(WAITS_FOR_LAST, WAITS_FOR_LAST, waits_for_first)):
        assert findings_of(a_comparison(*runs), "straggler") == []


def test_nodes_without_a_common_clock_have_no_straggler_attribution() -> None:
    run = waiting(WAITS_FOR_LAST)
    info = dataclasses.replace(run.runtime_info, one_clock=False)
    comparison = a_comparison(run.model_copy(update={"runtime_info": info}))
    assert wait_shares(comparison.rows[0]) is None
    assert findings_of(comparison, "straggler") == []
    assert "stragglers" not in [plot.name for plot in draw(comparison)]
    assert len(finding_of(comparison, "no_common_clock").rows) == 1


def test_even_or_little_waiting_has_no_straggler() -> None:
    little = [[seconds / 20 for seconds in row] for row in WAITS_FOR_LAST]
    for seconds in (WAITS_FOR_ALL, little):
        assert findings_of(a_comparison(*over_seeds(*[seconds] * 3)), "straggler") == []


def test_a_run_with_a_slow_node_has_no_speedup() -> None:
    alike = a_run("all_reduce", nodes=2, train_s=5.0)
    slow = a_run("all_reduce", nodes=2, train_s=15.0, node_speed={-1: 0.25})
    comparison = a_comparison(SERIAL, alike, slow)
    first, last = (row for row in comparison.rows if row.strategy == "all_reduce")
    assert (first.speedup, first.no_speedup) == (8.0 / 5.0, None)
    assert (last.speedup, value(last, "efficiency"), last.no_speedup) == (None, None, UNEQUAL_NODES)
    assert first.shape.label.replace(formats.JOIN, " ") == "2 nodes"
    assert last.shape.label.replace(formats.JOIN, " ") == "2 nodes, node 1 at speed 0.25"
    assert last.workload.label == f"{first.workload.label}, one node at speed 0.25"
    assert len(comparison.groups) == 3
    assert [finding.data["reason"] for finding in findings_of(comparison, "no_serial")] == [UNEQUAL_NODES]
    assert [line["node_speed"] for line in csv_lines(comparison)] == ["", "", "1 0.25"]


def test_a_slow_node_is_compared_with_equal_nodes() -> None:
    equal = a_run("all_reduce", nodes=2, train_s=5.0, cpus=0.5)
    slow = a_run("all_reduce", nodes=2, train_s=15.0, cpus=0.5, node_speed={-1: 0.25})
    data = finding_of(a_comparison(equal, slow), "slow_node").data
    assert (data["train_s"], data["equal_train_s"]) == (pytest.approx(15.0), pytest.approx(5.0))
    other = a_run("all_reduce", nodes=2, transport="gloo", cpus=0.5)
    assert findings_of(a_comparison(slow, other), "slow_node") == []


@pytest.mark.parametrize(("transport", "found"), [("mpi", 0), ("gloo", 1)])
def test_runs_that_poll_and_runs_that_sleep_are_not_compared(transport: str, found: int) -> None:
    """Open MPI's ranks poll if each has a core; they all sleep if one node has less."""
    equal = a_run("all_reduce", nodes=2, transport=transport)
    slow = a_run("all_reduce", nodes=2, transport=transport, node_speed={-1: 0.25})
    assert len(findings_of(a_comparison(equal, slow), "slow_node")) == found


def test_the_table_separates_communication_and_waiting() -> None:
    (line,) = cells(GROUPS, a_comparison(a_run("all_reduce", nodes=2, communicate_s=3.0)).groups)
    assert (line["communicate_s"], line["wait_s"]) == ("3.00 s", "0 s")
    (alone,) = cells(GROUPS, a_comparison(SERIAL).groups)
    assert {"communicate_s", "wait_s"}.isdisjoint(alone)


def figure_of(comparison: Comparison) -> Chart | None:
    return straggler_attribution(comparison.view(comparison.workloads[0]))


def test_the_figure_has_a_map_for_each_run() -> None:
    comparison = a_comparison(waiting(WAITS_FOR_LAST), waiting(WAITS_FOR_ALL, "all_gather"))
    with unrendered_figures():
        assert "stragglers" in [plot.name for plot in draw(comparison)]
    chart = figure_of(comparison)
    assert chart is not None
    assert chart.wide
    assert chart.spec["facet"]["sort"] == ["all_reduce · mpi", "all_gather · mpi"]
    shown = [record for record in records_of(chart) if record["series"] == "all_reduce · mpi"]
    assert len(shown) == 9
    for record in shown:
        rank, other = record["waiting"], record["for"]
        expected = None if rank == other else pytest.approx(WAITS_FOR_LAST[rank][other] / 10)
        assert record["share"] == expected


def test_cells_are_shaded_by_opacity_on_one_scale_and_numbered_while_there_is_room() -> None:
    few = figure_of(a_comparison(waiting(WAITS_FOR_LAST), waiting(WAITS_FOR_ALL, "all_gather")))
    assert few is not None
    _, cells, numbers = few.spec["spec"]["layer"]
    assert cells["encoding"]["opacity"]["scale"]["domain"] == [0, 0.6]
    assert numbers["mark"]["type"] == "text"
    many = MAX_NUMBERED_RANKS + 1
    chart = figure_of(a_comparison(waiting([[0.0, *[1.0] * (many - 1)]] * many)))
    assert chart is not None
    assert "text" not in marks_of(chart.spec)
    assert chart.spec["spec"]["layer"][1]["encoding"]["opacity"]["legend"]


def test_the_figure_is_limited_and_left_out_without_waiting() -> None:
    many = [waiting(WAITS_FOR_LAST, {"name": "local_sgd", "local_steps": steps}) for steps in range(1, 10)]
    series = {record["series"] for record in records_of(figure_of(a_comparison(*many)))}
    assert len(series) == MAX_PANELS
    assert figure_of(a_comparison(waiting([[0.0, 0.01], [0.0, 0.0]]))) is None


def test_rows_and_columns_are_several_ranks_where_these_are_many() -> None:
    ranks = 2 * MOST_ROWS - 1
    waits = [[0.0 if rank == other else (other + 1) / 5 for other in range(ranks)] for rank in range(ranks)]
    shown = records_of(figure_of(a_comparison(waiting(waits))))
    assert len(shown) == MOST_ROWS**2
    cell = next(record for record in shown if (record["waiting"], record["for"]) == (2, 0))
    assert (cell["waiting_ranks"], cell["for_ranks"]) == ("2–3", "0–1")
    assert cell["share"] == pytest.approx((0.2 + 0.4) / 10)
    own = next(record for record in shown if (record["waiting"], record["for"]) == (0, 0))
    assert own["share"] == pytest.approx((0.2 + 0.4) / 2 / 10)
    assert shown[-1]["for_ranks"] == str(ranks - 1)
    of_first = [record["share"] for record in shown if record["waiting"] == 0]
    assert sum(of_first) == pytest.approx((sum(waits[0]) + sum(waits[1])) / 2 / 10)

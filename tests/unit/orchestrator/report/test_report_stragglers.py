"""Mistakes in straggler attribution: rows and columns, what waiting is divided by, which runs compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.model.rows import UNEQUAL_NODES
from orchestrator.report.quantities.stragglers import mean_wait_shares, straggler_of, wait_shares
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
    csv_lines,
    finding_of,
    findings_of,
    marks_of,
    records_of,
    value,
)

# Seconds that each rank (row) waited for each other rank (column), of 10 s of training.
WAITS_FOR_LAST = [[0.0, 0.5, 6.0], [0.25, 0.0, 5.0], [0.0, 0.25, 0.0]]
WAITS_FOR_ALL = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def waiting(seconds: list[list[float]], strategy: Any = "all_reduce", **fields: Any) -> RunResult:
    run = a_run(strategy, nodes=len(seconds), train_s=10.0, **fields)
    ranks = [rank.model_copy(update={"wait_s_by_rank": seconds[rank.rank]}) for rank in run.ranks]
    return run.model_copy(update={"ranks": ranks})


def over_seeds(*waits: list[list[float]], **fields: Any) -> list[RunResult]:
    """A run for each, with its own seed."""
    return [waiting(seconds, seed=seed, **fields) for seed, seconds in enumerate(waits)]


def test_shares_are_relative_to_the_time_of_the_waiting_rank() -> None:
    run = waiting(WAITS_FOR_LAST)
    ranks = [rank.model_copy(update={"train_s": 10.0 + rank.rank}) for rank in run.ranks]
    (row,) = a_comparison(run.model_copy(update={"ranks": ranks})).rows
    shares = wait_shares(row)
    assert shares is not None
    assert shares == pytest.approx(np.array([np.array(WAITS_FOR_LAST[at]) / (10 + at) for at in range(3)]))
    for other in (a_run("all_reduce", nodes=2), SERIAL):  # which recorded nothing
        assert wait_shares(a_comparison(other).rows[0]) is None
    assert straggler_of(np.zeros((2, 2))) is None


@pytest.mark.parametrize("fields", [{}, {"node_speed": {-1: 0.25}}], ids=["equal", "slow"])
def test_a_straggler_delays_the_others_more_than_its_share(fields: dict[str, Any]) -> None:
    comparison = a_comparison(*over_seeds(*[WAITS_FOR_LAST] * 5, **fields))
    most = straggler_of(mean_wait_shares(comparison.groups[0]))
    assert most is not None
    assert (most.rank, most.ranks) == (2, 3)
    assert (most.share_of_time, most.share_of_waiting) == pytest.approx(((0.6 + 0.5) / 2, 11 / 12))
    data = finding_of(comparison, "straggler").data
    assert (data["strategy"], data["rank"]) == ("all_reduce over mpi", 2)
    (compared,) = data["compared"]
    assert compared["values"] == [pytest.approx(11 / 12 - 1 / 3), 0.0]


def test_a_rank_that_is_slow_in_few_seeds_or_by_little_is_no_straggler() -> None:
    """Of equal ranks, one is always waited for most."""
    waits_for_first = [row[::-1] for row in WAITS_FOR_LAST[::-1]]
    little = [[seconds / 20 for seconds in row] for row in WAITS_FOR_LAST]
    few = [WAITS_FOR_LAST, WAITS_FOR_LAST, waits_for_first]
    for waits in ([WAITS_FOR_LAST], few, [little] * 5, [WAITS_FOR_ALL] * 5):
        assert findings_of(a_comparison(*over_seeds(*waits)), "straggler") == []


# Slow nodes


def test_a_run_with_a_slow_node_has_no_speedup() -> None:
    alike = a_run("all_reduce", nodes=2, train_s=5.0)
    slow = a_run("all_reduce", nodes=2, train_s=15.0, node_speed={-1: 0.25})
    comparison = a_comparison(SERIAL, alike, slow)
    first, last = comparison.rows[1:]
    assert (first.speedup, first.no_speedup) == (8.0 / 5.0, None)
    assert (last.speedup, value(last, "efficiency"), last.no_speedup) == (None, None, UNEQUAL_NODES)
    assert last.shape.label.replace(formats.JOIN, " ") == "2 nodes, node 1 at speed 0.25"
    assert last.workload.label == f"{first.workload.label}, one node at speed 0.25"
    assert [finding.data["reason"] for finding in findings_of(comparison, "no_serial")] == [UNEQUAL_NODES]
    assert [line["node_speed"] for line in csv_lines(comparison)] == ["", "", "1 0.25"]


@pytest.mark.parametrize(
    ("equal", "slow", "found"),
    [
        ({"cpus": 0.5}, {"cpus": 0.5}, True),
        ({"transport": "gloo"}, {"transport": "gloo"}, True),
        ({}, {}, False),  # over Open MPI ranks poll if each has a core, and sleep if one node has less
        ({"cpus": 0.5, "transport": "gloo"}, {"cpus": 0.5}, False),
    ],
)
def test_a_slow_node_is_compared_with_the_same_run_on_equal_nodes(
    equal: dict[str, Any], slow: dict[str, Any], found: bool
) -> None:
    runs = [
        a_run("all_reduce", nodes=2, train_s=5.0, **equal),
        a_run("all_reduce", nodes=2, train_s=15.0, node_speed={-1: 0.25}, **slow),
    ]
    data = [finding.data for finding in findings_of(a_comparison(*runs), "slow_node")]
    assert [(each["train_s"], each["equal_train_s"]) for each in data] == [
        (pytest.approx(15.0), pytest.approx(5.0))
    ] * found


# The figure


def figure_of(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(*runs)
    return straggler_attribution(comparison.view(comparison.workloads[0]))


def test_the_figure_has_a_map_for_each_run_on_one_scale() -> None:
    chart = figure_of(waiting(WAITS_FOR_ALL, "all_gather"), waiting(WAITS_FOR_LAST))
    assert chart is not None
    assert chart.spec["facet"]["sort"] == ["all_reduce · mpi", "all_gather · mpi"]
    shown = {
        (record["waiting"], record["for"]): record["share"]
        for record in records_of(chart)
        if record["series"] == "all_reduce · mpi"
    }
    assert shown == {
        (rank, other): None if rank == other else pytest.approx(WAITS_FOR_LAST[rank][other] / 10)
        for rank in range(3)
        for other in range(3)
    }
    _, cells, numbers = chart.spec["spec"]["layer"]
    assert cells["encoding"]["opacity"]["scale"]["domain"] == [0, 0.6]
    assert numbers["mark"]["type"] == "text"


def test_the_figure_is_limited_and_left_out_without_waiting() -> None:
    many = [waiting(WAITS_FOR_LAST, {"name": "local_sgd", "local_steps": steps}) for steps in range(1, 10)]
    assert len({record["series"] for record in records_of(figure_of(*many))}) == MAX_PANELS
    assert figure_of(waiting([[0.0, 0.01], [0.0, 0.0]])) is None
    ranks = MAX_NUMBERED_RANKS + 1
    chart = figure_of(waiting([[0.0, *[1.0] * (ranks - 1)]] * ranks))
    assert chart is not None
    assert "text" not in marks_of(chart.spec)
    assert chart.spec["spec"]["layer"][1]["encoding"]["opacity"]["legend"]


def test_rows_and_columns_are_several_ranks_where_these_are_many() -> None:
    """A cell is the mean over the ranks that wait, and the sum over those that they wait for."""
    ranks = 2 * MOST_ROWS - 1
    waits = np.random.default_rng(0).uniform(0.0, 2.0, (ranks, ranks)) * (1 - np.eye(ranks))
    shown = records_of(figure_of(waiting(waits.tolist())))
    assert len(shown) == MOST_ROWS**2
    for record in shown:
        rows, columns = (
            [at for at in (record[side], record[side] + 1) if at < ranks] for side in ("waiting", "for")
        )
        assert record["waiting_ranks"] == "–".join(map(str, rows))
        assert record["for_ranks"] == "–".join(map(str, columns))
        expected = sum(waits[row, column] for row in rows for column in columns) / 10 / len(rows)
        assert record["share"] == pytest.approx(expected, abs=1e-5)

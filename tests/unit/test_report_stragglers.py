"""Who waited for whom, and runs with a node that was slower than the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from orchestrator.report import formats
from orchestrator.report.figures import draw
from orchestrator.report.figures.stragglers import MOST_PANELS, straggler_attribution
from orchestrator.report.figures.style import RC
from orchestrator.report.findings import find
from orchestrator.report.metrics.stragglers import mean_shares, most_waited_for, shares_of
from orchestrator.report.model.rows import UNLIKE_NODES
from orchestrator.report.render.columns import GROUPS
from orchestrator.results.records import RunResult
from tests.unit.report_support import SERIAL, a_comparison, a_run, csv_lines, row_of

# Seconds that each rank (row) waited for each other, of 10 s of training.
FOR_THE_LAST = [[0.0, 0.5, 6.0], [0.25, 0.0, 5.0], [0.0, 0.25, 0.0]]
FOR_ALL_ALIKE = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def waiting(seconds: list[list[float]], strategy: Any = "all_reduce", **fields: Any) -> RunResult:
    run = a_run(strategy, nodes=len(seconds), train_s=10.0, **fields)
    told = [rank.model_copy(update={"wait_s_by_rank": seconds[rank.rank]}) for rank in run.ranks]
    return run.model_copy(update={"ranks": told})


def texts(topic: str, *results: RunResult) -> list[str]:
    found = find(a_comparison(*results))
    return [f.text.replace(formats.JOIN, " ") for f in found if f.topic == topic]


def test_shares_are_of_the_training_time_of_who_waits() -> None:
    comparison = a_comparison(waiting(FOR_THE_LAST))
    assert np.allclose(shares_of(row_of(comparison, "all_reduce")), np.array(FOR_THE_LAST) / 10)  # type: ignore[arg-type]
    most = most_waited_for(mean_shares(comparison.groups[0]))
    assert most is not None
    assert (most.rank, most.ranks) == (2, 3)
    assert most.of_time == pytest.approx((0.6 + 0.5) / 2)
    assert most.of_waiting == pytest.approx(11 / 12)


def test_results_that_do_not_tell_have_no_shares() -> None:
    for run in (a_run("all_reduce", nodes=2), SERIAL):
        (row,) = a_comparison(run).rows
        assert shares_of(row) is None
    assert most_waited_for(np.zeros((2, 2))) is None


def test_who_made_the_others_wait_is_told() -> None:
    assert texts("Waiting", waiting(FOR_THE_LAST)) == [
        "all_reduce over mpi on 3 nodes: node 2 made the others wait 55.0% of the training time; "
        "91.7% of all waiting was for it."
    ]
    slow = waiting(FOR_THE_LAST, bottleneck_cpus=0.25)
    assert texts("Waiting", slow)[0].startswith("all_reduce over mpi on 3 nodes, last at 0.25 cpu: node 2")


def test_waiting_that_is_nobody_s_in_particular_is_no_finding() -> None:
    assert texts("Waiting", waiting(FOR_ALL_ALIKE)) == []
    little = [[seconds / 20 for seconds in row] for row in FOR_THE_LAST]
    assert texts("Waiting", waiting(little)) == []


def test_a_slower_node_is_never_measured_against_serial() -> None:
    alike = a_run("all_reduce", nodes=2, train_s=5.0)
    slow = a_run("all_reduce", nodes=2, train_s=15.0, bottleneck_cpus=0.25)
    comparison = a_comparison(SERIAL, alike, slow)
    first, last = (row for row in comparison.rows if row.strategy == "all_reduce")
    assert (first.speedup, first.no_speedup) == (8.0 / 5.0, None)
    assert (last.speedup, last.efficiency, last.no_speedup) == (None, None, UNLIKE_NODES)
    assert first.shape.label.replace(formats.JOIN, " ") == "2 nodes"
    assert last.shape.label.replace(formats.JOIN, " ") == "2 nodes, last at 0.25 cpu"
    assert last.work.label == f"{first.work.label}, last node at 0.25 cpu"
    assert len(comparison.groups) == 3
    assert UNLIKE_NODES in " ".join(texts("No serial run", SERIAL, alike, slow))
    assert [line["bottleneck_cpus"] for line in csv_lines(comparison)] == ["", "", "0.25"]


def test_what_a_slower_node_costs_is_told_against_nodes_that_are_alike() -> None:
    alike = a_run("all_reduce", nodes=2, train_s=5.0, cpus=0.5)
    slow = a_run("all_reduce", nodes=2, train_s=15.0, cpus=0.5, bottleneck_cpus=0.25)
    (told,) = texts("Slow node", alike, slow)
    assert told.startswith(
        "all_reduce over mpi on 2 nodes, last at 0.25 cpu: 15.0 s, 3.00 times as long as with nodes "
        "that are alike (5.00 s)"
    )
    assert texts("Slow node", slow, a_run("all_reduce", nodes=2, transport="gloo", cpus=0.5)) == []


@pytest.mark.parametrize(("transport", "told"), [("mpi", 0), ("gloo", 1)])
def test_runs_whose_ranks_wait_in_another_way_are_not_compared(transport: str, told: int) -> None:
    """With a core each Open MPI's ranks wait awake; with one that has less they all wait asleep."""
    alike = a_run("all_reduce", nodes=2, transport=transport)
    slow = a_run("all_reduce", nodes=2, transport=transport, bottleneck_cpus=0.25)
    assert len(texts("Slow node", alike, slow)) == told


def test_communicating_and_waiting_stand_apart_in_the_table() -> None:
    group = a_comparison(a_run("all_reduce", nodes=2, communicate_s=3.0)).groups[0]
    cells = {column.title: column.cell(group).text.replace(formats.JOIN, " ") for column in GROUPS}
    assert (cells["Communicate"], cells["Wait"]) == ("3.00 s", "0 s")
    alone = a_comparison(SERIAL).groups[0]
    assert {c.cell(alone).text for c in GROUPS if c.title in ("Communicate", "Wait")} == {formats.ABSENT}


def test_the_figure_has_a_map_for_each_run() -> None:
    comparison = a_comparison(waiting(FOR_THE_LAST), waiting(FOR_ALL_ALIKE, "all_gather"))
    (plot,) = [plot for plot in draw(comparison) if plot.name == "waits"]
    assert "node waited for" in plot.svg
    with rc_context(RC):  # type: ignore[arg-type]
        figure = straggler_attribution(comparison.scene(comparison.works[0]))
    assert figure is not None
    first, second = figure.axes
    assert "91.7% of all waiting is for node 2" in first.get_title(loc="left")
    numbers = [text.get_text() for text in first.texts]
    assert numbers == ["5%", "60%", "2%", "50%", "0%", "2%"]
    assert second.get_title(loc="left").startswith("all_gather · mpi")


def test_the_figure_has_a_limit_and_is_left_out_where_nobody_waited() -> None:
    many = [waiting(FOR_THE_LAST, {"name": "local_sgd", "local_steps": steps}) for steps in range(1, 10)]
    comparison = a_comparison(*many)
    with rc_context(RC):  # type: ignore[arg-type]
        figure = straggler_attribution(comparison.scene(comparison.works[0]))
        assert figure is not None
        assert len(figure.axes) == MOST_PANELS
        none = a_comparison(waiting([[0.0, 0.01], [0.0, 0.0]]))
        assert straggler_attribution(none.scene(none.works[0])) is None

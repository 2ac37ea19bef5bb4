"""Mistakes in links: over which one runs compare, bits and bytes, what is requested and what enforced."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from orchestrator.report.metrics.clock import clock_error
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities.links import OWN_LINKS
from orchestrator.report.render.columns import GROUPS
from orchestrator.report.topics.links import time_by_link
from orchestrator.results.records import LinkResult, RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    around,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    in_cluster_time,
    records_of,
    repeated,
    row_of,
)

SLOW = {"bandwidth_mbit": 10, "latency_ms": 1}
FAR = {"bandwidth_mbit": 1000, "latency_ms": 10}
SERIAL = repeated("serial", around(2.0), cores=2, runtime="docker")


def over(
    link: dict[str, float] | None, strategy: str, train_s: float, runtime: str = "docker", **fields: Any
) -> list[RunResult]:
    """Runs whose ranks have measured three links, of which one is far slower."""
    runs = repeated(
        strategy, around(train_s, **fields), nodes=2, cores=2, link=link, transport="gloo", runtime=runtime
    )
    links = [
        LinkResult(source=source, to=to, latency_s=latency_s, bytes_per_s=bytes_per_s)
        for source, to, latency_s, bytes_per_s in (
            (0, 1, 0.0011, 1.2e6),
            (1, 0, 0.001, 1.3e6),
            (0, 1, 1.0, 1e3),
        )
    ]
    return [run.model_copy(update={"links": links}) for run in runs]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return a_comparison(
        *SERIAL,
        *over(SLOW, "all_reduce", 9.0),
        *over(SLOW, "gossip", 5.0),
        *over(FAR, "all_reduce", 3.0),
        *over(FAR, "gossip", 3.0, step=-0.002),
    )


def test_each_link_is_a_workload_with_the_same_serial_runs(comparison: Comparison) -> None:
    views = [comparison.view(workload) for workload in comparison.workloads]
    assert [view.workload.link for view in views] == ["10 Mbit/s, 1 ms", "1000 Mbit/s, 10 ms"]
    for view in views:
        assert [group.strategy for group in view.groups] == ["serial", "all_reduce", "gossip"]
        assert view.clock == "wall"
    assert row_of(comparison, "all_reduce").speedup == pytest.approx(1.998 / 8.998)
    without = a_comparison(*SERIAL, *over(None, "all_reduce", 2.5), *over(SLOW, "all_reduce", 9.0))
    assert [workload.link for workload in without.workloads] == ["", "10 Mbit/s, 1 ms"]
    assert all(without.view(workload).serial for workload in without.workloads)


def test_the_fastest_is_named_for_each_link_by_the_comparisons_of_the_workloads(
    comparison: Comparison,
) -> None:
    """They are decided once, so naming them again costs no probability of a false claim."""
    finding = finding_of(comparison, "links")
    slow, far = finding.data["links"]
    assert (slow["link"], slow["fastest"]) == ("10 Mbit/s, 1 ms", "gossip over gloo")
    assert (far["link"], far["fastest"]) == ("1000 Mbit/s, 10 ms", None)
    assert slow["order"] == ["gossip over gloo", "all_reduce over gloo"]
    assert slow["train_s"] == pytest.approx([5.0, 9.0], rel=1e-3)
    compared = finding.data["compared"]
    fastest = findings_of(comparison, "fastest")
    of_workloads = [each for found in fastest for each in found.data["compared"]]
    assert compared
    assert all(each in of_workloads for each in compared)
    link_of = {row.key: row.link_label for row in comparison.rows}
    for each in of_workloads:
        assert len({link_of[key] for key in (*each["left"], *each["right"])} - {""}) == 1
    one = a_comparison(*SERIAL, *over(SLOW, "all_reduce", 9.0), *over(SLOW, "gossip", 5.0))
    assert findings_of(one, "links") == []


def test_a_table_shows_the_median_that_was_measured_beside_what_was_requested(
    comparison: Comparison,
) -> None:
    line = cells(GROUPS, comparison.groups_in(comparison.workloads[0]))[1]
    assert line["link_latency_s"] == "1.10 ms | 1.00 ms requested"
    assert line["link_bytes_per_s"] == "9.60 Mbit/s | 10.0 Mbit/s requested"
    (plain,) = cells(GROUPS, a_comparison(over(None, "all_reduce", 2.0)[0]).groups)
    assert "link_latency_s" not in plain
    assert findings_of(comparison, "link_not_enforced") == []


def test_links_that_were_not_enforced_are_compared_in_cluster_time() -> None:
    cluster_s = {"serial": 2.0, "all_reduce": 9.0, "gossip": 5.0}
    runs = [*over(SLOW, "all_reduce", 1.5, "local"), *over(SLOW, "gossip", 1.6, "local")]
    results = [*repeated("serial", around(2.0), cores=2), *runs]
    clusters = [in_cluster_time(run, cluster_s[run.run.name_of("strategy")]) for run in results]
    comparison = a_comparison(*results, clusters=clusters)
    assert {line["clock"] for line in csv_lines(comparison)} == {"cluster"}
    assert finding_of(comparison, "fastest").data["strategy"] == "gossip over gloo"
    finding = finding_of(comparison, "link_not_enforced")
    assert {row.key for row in finding.rows} == {run.key for run in runs}
    assert finding.data["in_wall_time"] == []
    assert "not enforced" in cells(GROUPS, comparison.groups)[1]["link_latency_s"]
    # Their wall times are those of other links, and say nothing about the error of cluster times.
    assert clock_error(comparison.rows) is None
    untimed = finding_of(a_comparison(*results), "link_not_enforced")
    assert len(untimed.data["in_wall_time"]) == len(runs)


def test_cells_are_shaded_by_the_fastest_distributed_strategy_of_their_link() -> None:
    runs = [
        run
        for strategy, link, train_s in (
            ("all_reduce", SLOW, 8.0),
            ("gossip", SLOW, 2.0),
            ("all_reduce", None, 1.5),
        )
        for run in repeated(strategy, [train_s], nodes=2, transport="gloo", link=link)
    ]
    (views,) = a_comparison(a_run(train_s=1.0), *runs).over_links().values()
    shown = records_of(time_by_link(views))
    link = "10 Mbit/s, 1 ms"
    assert {(cell["series"], cell["link"]): cell["shade"] for cell in shown} == {
        ("serial", link): 0,
        ("serial", OWN_LINKS): 0,
        ("all_reduce · gloo", link): pytest.approx(log(4)),
        ("gossip · gloo", link): 0,
        ("all_reduce · gloo", OWN_LINKS): 0,
    }
    assert time_by_link(views[:1]) is None

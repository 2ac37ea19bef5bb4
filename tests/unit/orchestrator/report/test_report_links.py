"""Links in a report: one workload for each, the fastest over each, and links that were not enforced."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.metrics.clock import clock_error
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.columns import GROUPS
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    around,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    in_cluster_time,
    repeated,
    row_of,
    with_measured_link,
    write_page,
)

SLOW = {"bandwidth_mbit": 10, "latency_ms": 1}
FAR = {"bandwidth_mbit": 1000, "latency_ms": 10}
SERIAL = repeated("serial", around(2.0), cores=2, runtime="docker")


def over(
    link: dict[str, float] | None,
    strategy: str,
    train_s: float,
    runtime: str = "docker",
    step: float = 0.001,
) -> list[RunResult]:
    runs = repeated(
        strategy, around(train_s, step), nodes=2, cores=2, link=link, transport="gloo", runtime=runtime
    )
    return [with_measured_link(run, latency_s=0.0011, bytes_per_s=1.2e6) for run in runs]


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


def test_serial_runs_are_a_workload_where_runs_have_no_links_too() -> None:
    comparison = a_comparison(*SERIAL, *over(None, "all_reduce", 2.5), *over(SLOW, "all_reduce", 9.0))
    assert [workload.link for workload in comparison.workloads] == ["", "10 Mbit/s, 1 ms"]
    assert all(comparison.view(workload).serial for workload in comparison.workloads)


def test_the_fastest_is_named_for_each_link(comparison: Comparison) -> None:
    data = finding_of(comparison, "links").data["links"]
    assert [(each["link"], each["fastest"]) for each in data] == [
        ("10 Mbit/s, 1 ms", "gossip over gloo"),
        ("1000 Mbit/s, 10 ms", None),
    ]
    assert data[0]["order"] == ["gossip over gloo", "all_reduce over gloo"]
    assert data[0]["train_s"] == pytest.approx([5.0, 9.0], rel=1e-3)


def test_comparisons_of_links_are_those_of_the_workloads(comparison: Comparison) -> None:
    """They are decided once, so naming them again costs no probability of a false claim."""
    of_links = finding_of(comparison, "links").data["compared"]
    of_workloads = [
        each for finding in findings_of(comparison, "fastest") for each in finding.data["compared"]
    ]
    assert of_links
    assert all(each in of_workloads for each in of_links)


def test_no_strategy_is_compared_over_different_links(comparison: Comparison) -> None:
    link_of = {row.key: row.link_label for row in comparison.rows}
    compared = finding_of(comparison, "links").data["compared"]
    for finding in (*findings_of(comparison, "fastest"), *findings_of(comparison, "front")):
        compared = [*compared, *finding.data["compared"]]
    for each in compared:
        assert len({link_of[key] for key in (*each["left"], *each["right"])} - {""}) == 1


def test_one_link_needs_no_finding() -> None:
    comparison = a_comparison(*SERIAL, *over(SLOW, "all_reduce", 9.0), *over(SLOW, "gossip", 5.0))
    assert findings_of(comparison, "links") == []


def test_a_table_shows_what_was_measured_beside_what_was_requested(comparison: Comparison) -> None:
    lines = cells(GROUPS, comparison.groups_in(comparison.workloads[0]))
    assert lines[1]["link_latency_s"] == "1.10 ms | 1.00 ms requested"
    assert lines[1]["link_bytes_per_s"] == "9.60 Mbit/s | 10.0 Mbit/s requested"
    (plain,) = cells(GROUPS, a_comparison(over(None, "all_reduce", 2.0)[0]).groups)
    assert "link_latency_s" not in plain


def unenforced() -> tuple[list[RunResult], list[RunResult]]:
    return repeated("serial", around(2.0), cores=2), [
        *over(SLOW, "all_reduce", 1.5, "local"),
        *over(SLOW, "gossip", 1.6, "local"),
    ]


def test_links_that_were_not_enforced_are_compared_in_cluster_time() -> None:
    serial, runs = unenforced()
    cluster_s = {"serial": 2.0, "all_reduce": 9.0, "gossip": 5.0}
    clusters = [in_cluster_time(run, cluster_s[run.run.name_of("strategy")]) for run in (*serial, *runs)]
    comparison = a_comparison(*serial, *runs, clusters=clusters)
    assert {row.clock for row in comparison.rows} == {"cluster"}
    assert finding_of(comparison, "fastest").data["strategy"] == "gossip over gloo"
    finding = finding_of(comparison, "link_not_enforced")
    assert {row.key for row in finding.rows} == {run.key for run in runs}
    assert finding.data["in_wall_time"] == []
    assert "not enforced" in cells(GROUPS, comparison.groups)[1]["link_latency_s"]
    # Their wall times are those of other links, and say nothing about the error of cluster times.
    assert clock_error(comparison.rows) is None
    assert {line["clock"] for line in csv_lines(comparison)} == {"cluster"}


def test_runs_without_cluster_time_say_that_their_links_do_not_count() -> None:
    serial, runs = unenforced()
    comparison = a_comparison(*serial, *runs)
    finding = finding_of(comparison, "link_not_enforced")
    assert len(finding.data["in_wall_time"]) == len(runs)


def test_enforced_links_need_no_caution(comparison: Comparison) -> None:
    assert findings_of(comparison, "link_not_enforced") == []


def test_the_page_names_the_link_of_each_run(comparison: Comparison, tmp_path: Path) -> None:
    paths = write_page(tmp_path, *(row.result for row in comparison.rows))
    runs = paths.html.read_text().split('<section id="runs">')[1]
    assert runs.count("10 Mbit/s, 1 ms") >= 10

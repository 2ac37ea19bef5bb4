"""The two clocks of a report: which one is compared, and what shows their error."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.replay.run import ClusterTime
from orchestrator.report.metrics.clock import MAX_ERROR, clock_error, wall_by_cluster
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.columns import GROUPS
from orchestrator.report.topics import find
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    around,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    in_cluster_time,
    page_of,
    repeated,
    row_of,
    value,
    verdicts_of,
)

# Two cores: 2 ranks have one each, 4 ranks share them. In cluster time 4 nodes are four times as fast.
SERIAL = repeated("serial", around(8.0), cores=2)
ON_TWO = repeated("all_reduce", around(4.4), nodes=2, cores=2)
ON_FOUR = repeated("all_reduce", around(6.0), nodes=4, cores=2)
HOGWILD = repeated("hogwild", around(5.0), nodes=4, cores=2)


def times(runs: list[RunResult], cluster_s: float, **fields: float) -> list[ClusterTime]:
    return [
        in_cluster_time(run, value, **fields) for run, value in zip(runs, around(cluster_s), strict=True)
    ]


CLUSTERS = [
    *times(SERIAL, 8.0),
    *times(ON_TWO, 4.0, communicate_s=0.4),
    *times(ON_FOUR, 2.0, communicate_s=0.2, wait_s=0.3),
]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, *HOGWILD, clusters=CLUSTERS)


def test_a_workload_whose_nodes_share_cores_is_compared_in_cluster_time(comparison: Comparison) -> None:
    (view,) = map(comparison.view, comparison.workloads)
    assert view.clock == "cluster"
    row = next(row for row in comparison.rows if row.strategy == "all_reduce" and row.shape.nodes == 4)
    assert row.train_s == pytest.approx(1.998)
    assert row.speedup == pytest.approx(7.998 / 1.998)
    assert row.wall.train_s == pytest.approx(5.998)
    assert row.wall.speedup == pytest.approx(7.998 / 5.998)
    assert value(row, "exchange_share") == pytest.approx(0.5 / 1.998)
    assert not row.shares_cores
    assert row.wall.shares_cores


def test_findings_use_the_times_that_are_compared(comparison: Comparison) -> None:
    fastest = finding_of(comparison, "fastest")
    assert fastest.data["train_s"] == pytest.approx(2.0, rel=1e-3)
    assert fastest.data["speedup"] == pytest.approx(4.0, rel=1e-3)
    assert findings_of(comparison, "shared_cores") == []
    more = finding_of(comparison, "more_nodes")
    assert more.data["steps"] == ["less"]


@pytest.mark.parametrize(
    "name", ["train_s", "step_s", "exchange_s_per_step", "samples_per_s", "exchange_share"]
)
def test_a_run_without_cluster_time_has_no_quantity_of_it(comparison: Comparison, name: str) -> None:
    """Its wall time must not stand among the cluster times of other seeds."""
    untimed = a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, *HOGWILD, clusters=CLUSTERS[:-1]).rows[14]
    timed = comparison.rows[14]
    assert (timed.key, timed.clock, untimed.clock) == (untimed.key, "cluster", "cluster")
    assert value(timed, name)
    assert value(untimed, name) is None


def test_a_run_without_cluster_time_is_in_no_comparison_of_times(comparison: Comparison) -> None:
    hogwild = row_of(comparison, "hogwild")
    assert (hogwild.train_s, hogwild.speedup, hogwild.seconds) == (None, None, {})
    assert hogwild.wall.train_s == pytest.approx(4.998)
    assert hogwild.no_speedup
    named = finding_of(comparison, "no_cluster_time").data["configurations"]
    assert len(named) == 1
    assert "hogwild" in named[0]
    compared = finding_of(comparison, "fastest").data["compared"]
    assert not any("hogwild" in key for each in compared for key in (*each["left"], *(each["right"] or ())))


def test_tables_show_both_times_and_why_they_differ(comparison: Comparison) -> None:
    shown = {line["strategy"] + line["nodes"]: line for line in cells(GROUPS, comparison.groups)}
    two, four = (shown[f"all_reduce · mpi | random_partition{nodes}"] for nodes in (2, 4))
    assert (four["cluster_s"].split(" |")[0], four["wall_s"].split(" |")[0]) == ("2.00 s", "6.00 s")
    assert four["wall_by_cluster"] == "3.00 | 4 ranks on 2 cores"
    assert two["wall_by_cluster"] == "1.10 | a core for each rank"
    assert "cpu_time_speedup" not in four


def test_csv_has_wall_and_cluster_times(comparison: Comparison) -> None:
    line = next(each for each in csv_lines(comparison) if each["ranks"] == "4")
    assert line["clock"] == "cluster"
    assert float(line["train_s"]) == pytest.approx(5.998)
    assert float(line["cluster_s"]) == pytest.approx(1.998)
    assert float(line["speedup"]) == pytest.approx(7.998 / 5.998)
    assert float(line["cluster_speedup"]) == pytest.approx(7.998 / 1.998)
    assert float(line["cluster_wait_s"]) == pytest.approx(0.3)


def test_the_error_comes_from_runs_with_a_core_for_each_rank(comparison: Comparison) -> None:
    error = clock_error(comparison.rows)
    assert error is not None
    assert {row.shape.nodes for row in error.rows} == {2}
    assert error.median == pytest.approx(0.4 / 4.4, rel=1e-2)
    data = finding_of(comparison, "cluster_time").data
    assert (data["median_error"], data["worst_error"]) == (error.median, error.worst)
    assert data["unchecked_ranks"] == [4]
    assert wall_by_cluster(row_of(comparison, "serial")) == pytest.approx(1.0)


OTHER_ON_FOUR = repeated("gossip", around(6.0), nodes=4, cores=2)


@pytest.mark.parametrize(
    ("cluster_s", "open_"),
    [
        (2.1, True),  # 5 % more, and cluster time is off by 10 %
        (2.8, False),
    ],
)
def test_a_difference_within_the_error_of_cluster_time_is_not_claimed(
    cluster_s: float, open_: bool
) -> None:
    clusters = [*CLUSTERS, *times(OTHER_ON_FOUR, cluster_s)]
    runs = [*SERIAL, *ON_TWO, *ON_FOUR, *OTHER_ON_FOUR]
    comparison = a_comparison(*runs, clusters=clusters)
    finding = finding_of(comparison, "fastest")
    assert finding.data["fastest"] is not open_
    (compared,) = [
        each for each in finding.data["compared"] if each["right"] != finding.data["compared"][-1]["right"]
    ]
    assert compared["decision"] == ("undecided" if open_ else "less")
    error = math.hypot(0.4 / 4.4, math.sqrt(2) * BETWEEN_SESSIONS)
    assert compared["between_sessions"] == pytest.approx(error, rel=0.02)
    assert (compared["hopeless"], compared["seeds_to_decide"]) == (open_, None)
    (verdict,) = verdicts_of(comparison)
    assert (verdict.options[0].chance == "over 99%") is not open_


def test_cluster_time_without_calibration_counts_as_off_by_15_percent() -> None:
    clusters = [*times(SERIAL, 8.0), *times(ON_FOUR, 2.0), *times(OTHER_ON_FOUR, 2.2)]
    comparison = a_comparison(*SERIAL, *ON_FOUR, *OTHER_ON_FOUR, clusters=clusters)
    finding = finding_of(comparison, "fastest")
    assert not finding.data["fastest"]
    assert finding.data["compared"][0]["between_sessions"] > MAX_ERROR
    assert "an error of 15.0%" in finding_of(comparison, "cluster_time_uncalibrated").text


def test_wall_times_differ_between_sessions_alone() -> None:
    runs = [
        *repeated("all_reduce", around(2.0), nodes=2, cores=8),
        *repeated("gossip", around(2.3), nodes=2, cores=8),
    ]
    finding = finding_of(a_comparison(*runs), "fastest")
    assert finding.data["fastest"]
    (compared,) = finding.data["compared"]
    assert compared["between_sessions"] == pytest.approx(math.sqrt(2) * BETWEEN_SESSIONS)


def contended(run: RunResult) -> RunResult:
    ranks = [
        rank.model_copy(update={"seconds": {**rank.seconds, "cpu_contention": 1.0}}) for rank in run.ranks
    ]
    return run.model_copy(update={"ranks": ranks})


@pytest.mark.parametrize(("disturbed", "clock"), [(3, "cluster"), (2, "wall")])
def test_times_are_cluster_times_where_other_load_took_the_cores(disturbed: int, clock: str) -> None:
    """Two cores for two ranks: of five seeds, most or a few had to wait for them."""
    runs = [*map(contended, ON_TWO[:disturbed]), *ON_TWO[disturbed:]]
    clusters = [*times(SERIAL, 8.0), *times(ON_TWO, 4.0)]
    comparison = a_comparison(*SERIAL, *runs, clusters=clusters)
    assert {row.clock for row in comparison.rows} == {clock}
    busy = findings_of(comparison, "disturbed")
    if clock == "cluster":
        found = finding_of(comparison, "cluster_time_uncalibrated")  # two of five runs are few
        assert "Other load took the cores" in found.text
        assert [(finding.data["disturbed"], finding.data["of"]) for finding in busy] == [(3, 10)]
        before_the_verdict, _, _ = page_of(comparison, find(comparison)).partition('id="verdict"')
        assert busy[0].text in before_the_verdict
    else:
        assert busy == []


def test_a_report_says_by_how_much_the_cpu_time_of_shared_cores_was_corrected(
    comparison: Comparison,
) -> None:
    assert findings_of(comparison, "cpu_inflation") == []
    corrected = [
        in_cluster_time(run, 2.0, inflation=inflation)
        for run, inflation in zip(ON_FOUR[:2], (1.1, 1.25), strict=True)
    ]
    clusters = [*times(SERIAL, 8.0), *times(ON_TWO, 4.0), *corrected, in_cluster_time(ON_FOUR[2], 2.0)]
    found = finding_of(a_comparison(*SERIAL, *ON_TWO, *ON_FOUR[:3], clusters=clusters), "cpu_inflation")
    assert [*found.data["inflation"].values()] == pytest.approx([1.1, 1.25])
    assert found.data["unknown"] == 1
    assert "1.1 to 1.25" in found.text


@pytest.mark.parametrize(
    ("calibrating", "cluster_s"),
    [
        ([], 4.0),
        ([contended(run) for run in ON_TWO], 4.0),  # beside another load
        (ON_TWO, 3.0),  # off by more than 15 %
    ],
)
def test_cluster_times_without_a_small_known_error_are_flagged(
    calibrating: list[RunResult], cluster_s: float
) -> None:
    clusters = [*times(SERIAL, 8.0), *times(ON_TWO, cluster_s), *times(ON_FOUR, 2.0)]
    found = a_comparison(*SERIAL, *calibrating, *ON_FOUR, clusters=clusters)
    assert finding_of(found, "cluster_time_uncalibrated").caution
    assert findings_of(found, "cluster_time") == []


@pytest.mark.parametrize(
    ("runs", "clusters"),
    [
        ([*SERIAL, *ON_TWO], CLUSTERS),  # no cores are shared
        ([*SERIAL, *ON_FOUR], []),  # no cluster times
        ([*SERIAL, *ON_FOUR], times(ON_FOUR, 2.0)),  # the serial runs have none
    ],
)
def test_other_workloads_are_compared_in_wall_time(
    runs: list[RunResult], clusters: list[ClusterTime]
) -> None:
    found = a_comparison(*runs, clusters=clusters)
    assert {row.clock for row in found.rows} == {"wall"}
    assert finding_of(found, "fastest").data["train_s"] > 4.0


def test_the_time_to_a_target_is_on_the_same_clock() -> None:
    fields: dict[str, Any] = {"target_accuracy": 0.75, "cores": 2}
    serial, four = a_run("serial", **fields), a_run("all_reduce", nodes=4, **fields)
    reached = [
        run.model_copy(
            update={"epochs": [p.model_copy(update={"target_reached": p.epoch == 2}) for p in run.epochs]}
        )
        for run in (serial, four)
    ]
    clusters = [in_cluster_time(run, 3.0) for run in reached]
    first = finding_of(a_comparison(*reached, clusters=clusters), "target_first")
    assert [*first.data["time_to_target_s"].values()] == pytest.approx([3.0, 3.0])

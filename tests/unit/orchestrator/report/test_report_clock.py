"""Mistakes in the two clocks of a report: which one counts, what shows its error, what it leaves out."""

from __future__ import annotations

import math

import pytest

from orchestrator.replay.run import ClusterTime
from orchestrator.report.metrics.clock import MAX_ERROR, clock_error, wall_by_cluster
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.topics import find
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    around,
    csv_lines,
    finding_of,
    findings_of,
    in_cluster_time,
    page_of,
    repeated,
    row_of,
    value,
    verdicts_of,
    with_ranks,
)

# Two cores: 2 ranks have one each, 4 ranks share them. In cluster time 4 nodes are four times as fast.
SERIAL = repeated("serial", around(8.0), cores=2)
ON_TWO = repeated("all_reduce", around(4.4), nodes=2, cores=2)
ON_FOUR = repeated("all_reduce", around(6.0), nodes=4, cores=2)
OTHER_ON_FOUR = repeated("gossip", around(6.0), nodes=4, cores=2)
HOGWILD = repeated("hogwild", around(5.0), nodes=4, cores=2)


def times(runs: list[RunResult], cluster_s: float, **fields: float) -> list[ClusterTime]:
    return [in_cluster_time(run, at, **fields) for run, at in zip(runs, around(cluster_s), strict=True)]


CLUSTERS = [
    *times(SERIAL, 8.0),
    *times(ON_TWO, 4.0, communicate_s=0.4),
    *times(ON_FOUR, 2.0, communicate_s=0.2, wait_s=0.3),
]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, *HOGWILD, clusters=CLUSTERS)


def test_runs_on_shared_cores_are_compared_in_cluster_time_and_keep_their_wall_time(
    comparison: Comparison,
) -> None:
    row = next(row for row in comparison.rows if row.shape.nodes == 4)
    assert (row.train_s, row.speedup) == (pytest.approx(1.998), pytest.approx(7.998 / 1.998))
    assert (row.wall.train_s, row.wall.speedup) == (pytest.approx(5.998), pytest.approx(7.998 / 5.998))
    assert value(row, "exchange_share") == pytest.approx(0.5 / 1.998)
    assert (row.shares_cores, row.wall.shares_cores) == (False, True)
    line = next(each for each in csv_lines(comparison) if each["ranks"] == "4")
    names = ("train_s", "cluster_s", "speedup", "cluster_speedup", "cluster_wait_s")
    expected = (5.998, 1.998, 7.998 / 5.998, 7.998 / 1.998, 0.3)
    assert [float(line[name]) for name in names] == pytest.approx(expected)
    assert finding_of(comparison, "fastest").data["speedup"] == pytest.approx(4.0, rel=1e-3)


def test_a_run_without_cluster_time_is_in_no_comparison_of_times(comparison: Comparison) -> None:
    """Its wall time must not stand among the cluster times of other seeds."""
    untimed = a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, clusters=CLUSTERS[:-1]).rows[14]
    timed = comparison.rows[14]
    assert (timed.key, timed.clock, untimed.clock) == (untimed.key, "cluster", "cluster")
    for name in ("train_s", "step_s", "exchange_s_per_step", "samples_per_s", "exchange_share", "speedup"):
        assert value(timed, name)
        assert value(untimed, name) is None
    assert untimed.no_speedup
    (named,) = finding_of(comparison, "no_cluster_time").data["configurations"]
    assert "hogwild" in named
    compared = finding_of(comparison, "fastest").data["compared"]
    assert not any("hogwild" in key for each in compared for key in (*each["left"], *(each["right"] or ())))


def test_the_error_is_relative_to_wall_times_with_a_core_for_each_rank(comparison: Comparison) -> None:
    error = clock_error(comparison.rows)
    assert error is not None
    assert {row.shape.nodes for row in error.rows} == {2}
    assert error.median == pytest.approx(0.4 / 4.4, rel=1e-3)
    data = finding_of(comparison, "cluster_time").data
    assert (data["median_error"], data["worst_error"]) == (error.median, error.worst)
    assert data["unchecked_ranks"] == [4]
    assert wall_by_cluster(row_of(comparison, "serial")) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cluster_s", "open_"),
    [(2.1, True), (2.8, False)],  # 5 % more, and cluster time is off by 10 %
)
def test_a_difference_within_the_error_of_cluster_time_is_not_claimed(
    cluster_s: float, open_: bool
) -> None:
    clusters = [*CLUSTERS, *times(OTHER_ON_FOUR, cluster_s)]
    comparison = a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, *OTHER_ON_FOUR, clusters=clusters)
    finding = finding_of(comparison, "fastest")
    assert finding.data["fastest"] is not open_
    compared = finding.data["compared"][0]
    error = math.hypot(0.4 / 4.4, math.sqrt(2) * BETWEEN_SESSIONS)
    assert compared["between_sessions"] == pytest.approx(error, rel=0.02)
    assert (compared["hopeless"], compared["seeds_to_decide"]) == (open_, None)
    (verdict,) = verdicts_of(comparison)
    assert (verdict.options[0].chance == "over 99%") is not open_


def contended(run: RunResult) -> RunResult:
    return with_ranks(run, *({"seconds": {**rank.seconds, "cpu_contention": 1.0}} for rank in run.ranks))


@pytest.mark.parametrize(
    ("calibrating", "cluster_s"),
    [([], 4.0), ([*map(contended, ON_TWO)], 4.0), (ON_TWO, 3.0)],
    ids=["no run with cores", "beside another load", "off by more than 15 %"],
)
def test_cluster_times_without_a_small_known_error_are_flagged(
    calibrating: list[RunResult], cluster_s: float
) -> None:
    clusters = [*times(SERIAL, 8.0), *times(ON_TWO, cluster_s), *times(ON_FOUR, 2.0)]
    clusters += times(OTHER_ON_FOUR, 2.2)
    found = a_comparison(*SERIAL, *calibrating, *ON_FOUR, *OTHER_ON_FOUR, clusters=clusters)
    assert finding_of(found, "cluster_time_uncalibrated").caution
    assert findings_of(found, "cluster_time") == []
    fastest = finding_of(found, "fastest").data
    assert not fastest["fastest"]
    assert fastest["compared"][0]["between_sessions"] > MAX_ERROR


def test_half_of_the_runs_that_could_calibrate_and_a_quarter_of_all_may_have_waited_for_cores() -> None:
    four = ON_TWO[:4]
    clusters = [*times(SERIAL, 8.0), *times(ON_TWO, 4.0), *times(ON_FOUR, 2.0)]
    for busy, known in ((2, True), (3, False)):
        runs = [*map(contended, four[:busy]), *four[busy:]]
        rows = a_comparison(*SERIAL, *runs, *ON_FOUR, clusters=clusters).rows
        assert (clock_error(rows) is not None) is known
    for alone, found in ((3, 0), (2, 1)):
        runs = [contended(ON_TWO[0]), *ON_TWO[1 : alone + 1]]
        assert len(findings_of(a_comparison(*runs), "disturbed")) == found


@pytest.mark.parametrize(("waiting", "clock"), [(3, "cluster"), (2, "wall")])
def test_times_are_cluster_times_where_other_load_took_the_cores(waiting: int, clock: str) -> None:
    """Two cores for two ranks: of five seeds, most or a few had to wait for them."""
    runs = [*map(contended, ON_TWO[:waiting]), *ON_TWO[waiting:]]
    comparison = a_comparison(*SERIAL, *runs, clusters=[*times(SERIAL, 8.0), *times(ON_TWO, 4.0)])
    assert {row.clock for row in comparison.rows} == {clock}
    busy = findings_of(comparison, "disturbed")
    counts = [(finding.data["disturbed"], finding.data["of"]) for finding in busy]
    assert counts == [(3, 10)] * (clock == "cluster")
    if busy:
        assert "Other load took the cores" in finding_of(comparison, "cluster_time_uncalibrated").text
        before_the_verdict, _, _ = page_of(comparison, find(comparison), []).partition('id="verdict"')
        assert busy[0].text in before_the_verdict

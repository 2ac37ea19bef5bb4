"""Mistakes in sentences beside numbers: what was measured, what is the most, what holds for which runs, and
what a reader should do."""

from __future__ import annotations

import pytest

from orchestrator.report.figures.sentences import Shown, figure_sentence, measured
from orchestrator.report.formats import percent, ratio
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.topics import find
from orchestrator.report.topics.samples import TOPIC as SAMPLES
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    around,
    finding_of,
    in_cluster_time,
    on_360_images,
    only_view,
    repeated,
    view_of,
    with_ranks,
)
from trainer.time_model.cluster import SoftwareCost

# Figures


@pytest.mark.parametrize("learned", ["none", "one"])
def test_what_did_not_learn_was_measured_nevertheless(learned: str) -> None:
    """Of the one that learned, no staleness is known."""
    stale = a_run("async_parameter_server", nodes=3, accuracy=0.1, staleness=[(1.0, 2), (1.5, 3)])
    other = a_run("all_reduce", nodes=3, accuracy=0.1 if learned == "none" else 0.9)
    comparison = a_comparison(*map(on_360_images, [stale, other]))
    sentence = figure_sentence((), measured(Q.staleness_mean), only_view(comparison), find(comparison))
    assert not sentence.endswith("was measured.")
    assert "learned" in sentence


@pytest.mark.parametrize(("name", "computed"), [("train_s", True), ("wait_s", True), ("accuracy", False)])
def test_what_is_read_from_cluster_time_was_not_measured(name: str, computed: bool) -> None:
    runs = [a_run(cores=1), a_run("all_reduce", nodes=2, cores=1)]
    clusters = [in_cluster_time(runs[0], 8.0), in_cluster_time(runs[1], 4.0, wait_s=1.0)]
    view = only_view(a_comparison(*runs, clusters=clusters))
    sentence = measured(QUANTITIES[name])(Shown(view))
    assert (sentence.startswith("Measured"), "in cluster time" in sentence) == (not computed, computed)


@pytest.mark.parametrize("partitioners", [["contiguous"], ["contiguous", "random_partition"]])
def test_the_only_partitioner_is_not_the_most_skewed(partitioners: list[str]) -> None:
    runs = [
        a_run(strategy, nodes=40, partitioner=name)
        for strategy in ("one_shot", "local_sgd")
        for name in partitioners
    ]
    (kind,) = SAMPLES.figures
    assert ("most" in kind.otherwise(Shown(view_of(*runs)))) is (len(partitioners) > 1)


# Clock


def without_core(run: RunResult, seconds: float) -> RunResult:
    """The run, of which each rank waited so long for a core."""
    return with_ranks(run, seconds={**run.ranks[0].seconds, "cpu_contention": seconds})


@pytest.mark.parametrize("strategy", ["serial", "all_reduce"])
def test_a_rank_that_waited_for_a_core_had_none_of_its_own(strategy: str) -> None:
    """Five seeds on two cores, of which one run met other load."""
    nodes = 1 if strategy == "serial" else 2
    runs = repeated(strategy, around(8.0), nodes=nodes, cores=2)
    loaded = without_core(runs[0], 7.0)
    details = []
    for measured_runs in (runs, [loaded, *runs[1:]]):
        groups = a_comparison(*measured_runs, clusters=[in_cluster_time(run, 1.0) for run in runs]).groups
        details.append(Q.wall_by_cluster.detail(groups[0], ""))
    assert details[0] == "a core for each rank"
    assert details[1] != details[0]


@pytest.mark.parametrize("priced", [("all_reduce", "gossip"), ("all_reduce",), ()])
def test_exchanges_cost_what_they_cost_here_only_where_a_run_shows_it(priced: tuple[str, ...]) -> None:
    """Four ranks on two cores; exchanges of some configurations have a cost in the time model."""
    shown = {"collective": [SoftwareCost(bytes=100, seconds=1e-4)]}
    runs = [a_run(cores=2), *(a_run(name, nodes=4, cores=2) for name in ("all_reduce", "gossip"))]
    clusters = [
        time.model_copy(update={"cluster": time.cluster.model_copy(update={"software": software})})
        for run in runs
        for time in [in_cluster_time(run, 2.0)]
        for software in [shown if run.run.name_of("strategy") in priced else {}]
    ]
    finding = finding_of(a_comparison(*runs, clusters=clusters), "cluster_time_uncalibrated")
    assert [name.split()[0] for name in finding.data["unpriced"]] == [
        name for name in ("all_reduce", "gossip") if name not in priced
    ]
    assert ("what they cost here" in finding.text) is bool(priced)


def test_the_wait_for_cores_is_the_longest_of_the_runs_that_were_checked() -> None:
    """Two ranks on two cores, once beside other load; four ranks had no core each."""
    pairs = map(without_core, repeated("all_reduce", [4.0] * 3, nodes=2, cores=2), (0.0, 0.02, 2.0))
    runs = [a_run(cores=2), *pairs, a_run("all_reduce", nodes=4, cores=2)]
    clusters = [in_cluster_time(run, 4.0) for run in runs]
    finding = finding_of(a_comparison(*runs, clusters=clusters), "cluster_time")
    assert finding.data["without_core"] == pytest.approx(0.02 / 4.0)
    assert percent(0.02 / 4.0) in finding.text


@pytest.mark.parametrize("step", [1, -1])
def test_a_drift_makes_configurations_differ_by_the_mean_time_of_their_runs(step: int) -> None:
    """Each seed takes 5 % more or less than the one before."""
    runs = [
        run.model_copy(update={"started_at": run.started_at + 60 * run.run.seed})
        for name, seeds in (("all_reduce", 8), ("gossip", 5))
        for run in repeated(name, [8.0 * 1.05 ** (step * seed) for seed in range(seeds)], nodes=2)
    ]
    finding = finding_of(a_comparison(*runs), "drift")
    assert finding.data["by_order"] == pytest.approx(1.05**1.5)
    names = [finding.data[place].split()[0] for place in ("earliest", "latest")]
    assert names == ["gossip", "all_reduce"]
    assert ratio(1.05**1.5) in finding.text


def test_whether_equal_times_drift_is_not_undecided() -> None:
    """As those of virtual nodes at a price."""
    runs = [
        run.model_copy(update={"started_at": run.started_at + 60 * run.run.seed})
        for run in repeated("all_reduce", [8.0] * 5, nodes=2)
    ]
    assert not {finding.kind for finding in find(a_comparison(*runs))} & {"drift", "no_drift"}


# Seeds


@pytest.mark.parametrize("clock", ["wall", "cluster"])
def test_seeds_do_not_reduce_an_error_that_these_times_have(clock: str) -> None:
    """8 % more may be the difference of two sessions, and on shared cores the error of cluster time."""
    fields = {"nodes": 4, "cores": 2 if clock == "cluster" else 8}
    runs = [*repeated("all_reduce", around(8.0), **fields), *repeated("gossip", around(8.64), **fields)]
    clusters = [in_cluster_time(run, run.train_s or 0.0) for run in runs] if clock == "cluster" else []
    finding = finding_of(a_comparison(*runs, clusters=clusters), "undecided")
    assert finding.data["hopeless"] > 0
    assert ("the error of cluster time" in finding.text) is (clock == "cluster")

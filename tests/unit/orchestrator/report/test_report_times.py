"""Mistakes in targets, epochs and the two clocks of a report: which epoch, rank, seed and clock counts, how
far cluster time is off, and with what a run compares."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.replay.real_nodes import RealTime
from orchestrator.replay.run import ClusterTime
from orchestrator.report import formats
from orchestrator.report.metrics.curves import curve, reached_sooner
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS, MAX_ERROR, error_of_difference
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.model.groups import learned as has_learned
from orchestrator.report.model.rows import DISTURBED, OTHER_EPOCHS
from orchestrator.report.quantities.learning import updates
from orchestrator.report.render.csv_tables import epoch_lines
from orchestrator.report.topics import find
from orchestrator.results.csv_text import csv_text
from orchestrator.results.limits import MAX_SLOWDOWN, is_disturbed
from orchestrator.results.records import EpochPoint, RunResult
from tests.unit.report_support import (
    FAILED,
    a_comparison,
    a_record,
    a_run,
    around,
    beside_load,
    csv_lines,
    finding_of,
    findings_of,
    in_cluster_time,
    only_view,
    page_of,
    repeated,
    value,
    verdicts_of,
    with_certificate,
    with_epochs,
    with_ranks,
)

EPOCH_S = 2.0


def learned(
    strategy: str | dict[str, Any],
    accuracies: Sequence[float],
    *,
    target: float | None = 0.9,
    lr: float = 0.05,
    **fields: Any,
) -> RunResult:
    """A run of `epochs: 4` with these test accuracies, one per epoch; rank r finishes r/10 s later."""
    count = len(accuracies)
    made: dict[str, Any] = {"epochs": 4, "target_accuracy": target, "accuracy": accuracies[-1], **fields}
    run = a_run(strategy, train_s=EPOCH_S * count, **made)
    last = accuracies[-fields.get("patience", 1) :]
    reached = target is not None and all(accuracy >= target for accuracy in last)
    epochs = [
        EpochPoint(
            rank=rank.rank,
            epoch=epoch,
            train_s=EPOCH_S * epoch + rank.rank / 10,
            loss=None if rank.rank < run.run.strategy.servers else 0.5 + rank.rank,
            accuracy=accuracy,
            test_loss=0.3,
            lr=lr * epoch,
            target_reached=reached and epoch == count,
        )
        for rank in run.ranks
        for epoch, accuracy in enumerate(accuracies, 1)
    ]
    assert run.certificate
    first = run.certificate.parts
    parts = [part.model_copy(update={"epoch": epoch}) for epoch in range(1, count + 1) for part in first]
    return with_certificate(run, parts=parts).model_copy(update={"epochs": epochs})


# Targets


@pytest.mark.parametrize(
    ("accuracies", "patience", "seconds"),
    [([0.95], 1, 2.0), ([0.95, 0.5, 0.91, 0.92], 2, 6.0), ([0.91, 0.92, 0.93], 3, 2.0)],
)
def test_the_first_of_the_consecutive_epochs_counts(
    accuracies: list[float], patience: int, seconds: float
) -> None:
    names = {"serial": 1, "ddp": 3}
    runs = [learned(name, accuracies, patience=patience, nodes=nodes) for name, nodes in names.items()]
    alone, of_three = csv_lines(a_comparison(*runs))
    assert float(alone["time_to_target_s"]) == seconds
    assert float(of_three["time_to_target_s"]) == pytest.approx(seconds + 0.2)  # the slowest rank
    assert (alone["target_reached"], int(alone["epochs_trained"])) == ("true", len(accuracies))


def test_a_round_that_has_begun_counts() -> None:
    """Of 90 steps in rounds of 20, all or those of the first of two epochs led to the target."""
    strategy = {"name": "local_sgd", "local_steps": 20, "participation": {"fraction": 0.5}}
    for patience, rounds in ((1, 5), (2, 3)):
        (row,) = a_comparison(learned(strategy, [0.91, 0.95], nodes=2, patience=patience)).rows
        assert value(row, "rounds_to_target") == rounds


# What a run compares with


def test_a_speedup_needs_as_many_epochs_in_every_seed() -> None:
    rows = a_comparison(
        *(learned("serial", [0.6, 0.95], seed=seed) for seed in (0, 1)),
        learned("all_reduce", [0.5, 0.95], nodes=2, seed=0),
        learned("all_reduce", [0.5, 0.6, 0.95], nodes=2, seed=1),
        learned("ddp", [0.5, 0.95], nodes=2),
    ).rows
    assert [row.no_speedup for row in rows] == [None, None, OTHER_EPOCHS, OTHER_EPOCHS, None]
    assert [value(rows[2], name) for name in ("speedup", "cpu_time_speedup", "efficiency")] == [None] * 3
    assert value(rows[2], "accuracy_difference") == pytest.approx(0.0)
    assert rows[4].speedup == 1.0


def test_a_strategy_may_have_a_learning_rate_of_its_own() -> None:
    """It compares with the serial run, unless there is a serial run of its rate."""
    serial, same = a_run("serial", lr=0.05), a_run("all_reduce", nodes=2, lr=0.05)
    signs = {"name": "all_reduce", "compression": "sign"}
    own = [a_run(signs, nodes=2, lr=lr) for lr in (0.001, 0.002)]
    comparison = a_comparison(serial, same, *own)
    assert [workload.lr for workload in comparison.workloads] == [0.05]
    labels = [row.strategy_label.removeprefix("all_reduce") for row in comparison.rows[1:]]
    assert labels == ["", " compression=sign lr=0.001", " compression=sign lr=0.002"]
    assert all(row.speedup for row in comparison.rows)
    separate = a_comparison(serial, a_run("serial", lr=0.001), same, *own)
    assert [workload.lr for workload in separate.workloads] == [0.05, 0.001, 0.002]
    assert {row.strategy_label for row in separate.rows[3:]} == {"all_reduce compression=sign"}
    assert [row.speedup is None for row in separate.rows[2:]] == [False, False, True]


# Epochs


def test_a_line_for_each_run_and_epoch() -> None:
    comparison = a_comparison(
        learned("serial", [0.5, 0.95]),
        learned("parameter_server", [0.4, 0.6, 0.92], nodes=3, transport="gloo"),
        a_run("gossip", nodes=2, epochs=4, **FAILED),
    )
    lines = list(csv.DictReader(csv_text(*epoch_lines(comparison)).splitlines()))
    assert [(line["nodes"], line["epoch"]) for line in lines] == [*zip("11333", "12123", strict=True)]
    second = lines[3]
    assert (second["key"], second["strategy"]) == (comparison.rows[1].key, "parameter_server")
    # The loss is the mean over the two workers, and the samples are those of this epoch alone.
    names = ("train_s", "lr", "accuracy", "loss")
    assert [float(second[name]) for name in names] == pytest.approx([4.2, 0.1, 0.6, 2.0])
    rates = [float(line["samples_per_s"]) for line in lines]
    assert rates == pytest.approx([300, 300, 600 / 2.2, 600 / 2, 600 / 2])


def test_a_curve_has_the_slowest_rank_and_the_mean_of_ranks_and_seeds_up_to_the_last_common_epoch() -> None:
    """Seeds take 1, 2 and 4 times as long, and reach 2 % more each; so do ranks."""
    runs = [
        with_epochs(
            learned("gossip", [0.5, 0.6, 0.7][: 2 + seed], target=None, nodes=3, seed=seed),
            lambda at, seed=seed: {
                "train_s": (at.epoch + at.rank) * 2**seed,
                "accuracy": at.accuracy + 0.02 * (at.rank + seed),
            },
        )
        for seed in range(3)
    ]
    (group,) = a_comparison(*runs).groups
    first, second = [(at.epoch, at.train_s, at.accuracy) for at in curve(group)]
    assert first == pytest.approx((1, 3.0 * 2, 0.54))
    assert second == pytest.approx((2, 4.0 * 2, 0.64))


def test_updates_of_a_shared_model_are_those_of_all_ranks() -> None:
    shared, own = a_comparison(a_run("hogwild", nodes=2), a_run("all_reduce", nodes=2)).rows
    assert (updates(shared), updates(own)) == (180, 90)


@pytest.mark.parametrize(
    ("accuracy", "losses", "images", "expected"),
    [
        (0.2, (0.5, 0.5), 500, True),
        (0.2, (0.51, 0.51), 500, False),
        (0.2, (0.5, 0.51), 500, True),  # overfitted
        (0.11, (0.4, 0.4), 500, False),
        (None, (0.4, 0.4), 500, None),
        (0.05, (0.4, 0.4), None, None),  # the test set is unknown
    ],
)
def test_a_model_has_learned_if_it_beats_chance_and_its_loss_did_not_rise(
    accuracy: float | None, losses: tuple[float, float], images: int | None, expected: bool | None
) -> None:
    last = dict(zip(("loss", "test_loss"), losses, strict=True))
    run = with_epochs(a_run(accuracy=accuracy), lambda at: last if at.epoch == 2 else {})
    known = {"test_samples": images, "chance_accuracy": images and 0.1}
    assert has_learned(a_comparison(with_ranks(run, **known)).rows[0]) is expected


def test_who_reaches_an_accuracy_after_fewer_epochs_is_in_the_verdict() -> None:
    slow, fast = [0.935, 0.94, 0.94, 0.94], [0.5, 0.6, 0.7, 0.935]
    runs = [learned("serial", slow, target=None, seed=seed) for seed in range(5)]
    others = [learned("all_reduce", fast, target=None, nodes=2, seed=seed) for seed in range(5)]
    comparison = a_comparison(*runs, *(with_ranks(run, train_s=3.0) for run in others))
    serial, group = comparison.groups
    of_last_rank = pytest.approx([2.1, 4.1, 6.1, 8.1])
    assert [point.train_s for point in curve(group)] == of_last_rank
    found = reached_sooner(group, comparison.groups)
    assert found is not None
    assert (found[0], found[1].epoch) == (serial, 1)
    assert reached_sooner(serial, comparison.groups) is None
    (verdict,) = verdicts_of(comparison)
    assert f"serial reached {formats.percent(0.935)} in " in verdict.certainty


# Cluster time


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
    epochs = csv.DictReader(csv_text(*epoch_lines(comparison)).splitlines())
    assert [float(each["train_s"]) for each in epochs if each["key"] == row.key][-1] == row.wall.train_s
    assert finding_of(comparison, "fastest").data["speedup"] == pytest.approx(4.0, rel=1e-3)


def test_a_rank_trains_until_its_last_record_in_cluster_time() -> None:
    time = in_cluster_time(ON_TWO[0], 4.0, communicate_s=0.5, wait_s=0.25)
    early = time.ranks[1].model_copy(update={"idle_s": 1.0, "work_s": {"compute": 2.25}})
    time = time.model_copy(update={"ranks": [time.ranks[0], early]})
    (row,) = a_comparison(ON_TWO[0], clusters=[time]).rows
    assert row.cluster
    for rank, train_s in zip(row.cluster.result.ranks, (4.0, 3.0), strict=True):
        assert rank.train_s == train_s
        assert sum(rank.seconds.values()) - rank.seconds["evaluate"] == pytest.approx(train_s)


def test_cluster_time_is_calibrated_if_no_run_is_off_by_much() -> None:
    others = [*CLUSTERS[:5], *CLUSTERS[10:]]
    for worst, kind in ((0.1, "cluster_time"), (0.2, "cluster_time_uncalibrated")):
        off = [*zip(ON_TWO, (0.01, 0.05, 0.02, worst, 0.03), strict=True)]
        clusters = [in_cluster_time(run, (run.train_s or 0.0) * (1 - part)) for run, part in off]
        found = a_comparison(*SERIAL, *ON_TWO, *ON_FOUR, clusters=[*others, *clusters])
        data = finding_of(found, kind).data
        assert (data["median_error"], data["worst_error"]) == pytest.approx((0.03, worst))
        assert (data["checked"], data["of"], data["unchecked_ranks"]) == (5, 5, [4])
        assert error_of_difference(only_view(found)) == pytest.approx(0.03)
    unknown = a_comparison(*SERIAL, *ON_FOUR, clusters=others)
    assert error_of_difference(only_view(unknown)) == MAX_ERROR


def test_virtual_nodes_are_off_by_no_less_than_if_nothing_was_known() -> None:
    info = dataclasses.replace(ON_TWO[0].runtime_info, simulates_time=True)
    runs = [run.model_copy(update={"runtime_info": info}) for run in ON_TWO[:2]]
    for predicted_s, error, checked in ((1.9, MAX_ERROR, 2), (1.9, MAX_ERROR, 1), (2.6, 0.3, 2)):
        real = {run.key: RealTime(2.0, "wall", predicted_s) for run in runs[:checked]}
        clusters = {run.key: in_cluster_time(run, predicted_s) for run in runs}
        found = compare(a_record(runs), [(run.key, run) for run in runs], clusters=clusters, real=real)
        assert error_of_difference(only_view(found)) == pytest.approx(error)
        assert len(findings_of(found, "cluster_time")) == ((predicted_s, checked) == (1.9, 2))


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


LIMIT = 1 - 1 / MAX_SLOWDOWN  # of the share of its time in which a rank waited for its core


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(
    ("share", "loaded", "compared"),
    [(LIMIT + 0.01, 3, False), (LIMIT + 0.01, 2, True), (LIMIT - 0.01, 5, True)],
)
def test_times_of_a_sweep_beside_too_much_load_are_compared_on_no_clock(
    share: float, loaded: int, compared: bool, replayed: bool
) -> None:
    """Some of five serial runs waited for their cores, and other runs waited less."""
    serial = [beside_load(run, share) for run in SERIAL[:loaded]] + SERIAL[loaded:]
    two = [beside_load(run, 0.05) for run in ON_TWO]
    clusters = [*times(serial, 8.0), *times(two, 4.0)] if replayed else []
    comparison = a_comparison(*serial, *two, clusters=clusters)
    for row in comparison.rows:
        assert (row.train_s is not None) is row.times_compare is compared
        assert (row.wall.train_s is not None, row.speedup is not None) == (compared, compared)
        assert row.no_speedup == (None if compared else DISTURBED)
    kinds = {finding.kind for finding in find(comparison)}
    assert kinds.isdisjoint({"fastest", "front", "cluster_time_uncalibrated", "no_cluster_time"}) is not (
        compared
    )
    assert compared or "disturbed" in kinds


def test_neither_threads_nor_an_injected_fault_are_other_load() -> None:
    slow = {"slow": {"node": 0, "factor": 8}, "at": {"epoch": 1}}
    fields: list[dict[str, Any]] = [{}, {"faults": [slow]}, {"transport": "memory"}]
    runs = [beside_load(a_run("all_reduce", nodes=2, **each), 0.9) for each in fields]
    assert [is_disturbed(run) for run in runs] == [True, False, False]


@pytest.mark.parametrize(("waiting", "clock"), [(3, "cluster"), (2, "wall")])
def test_times_are_cluster_times_where_other_load_took_the_cores(waiting: int, clock: str) -> None:
    """Two cores for two ranks: of five seeds, most or a few had to wait for them."""
    runs = [*map(contended, ON_TWO[:waiting]), *ON_TWO[waiting:]]
    comparison = a_comparison(*SERIAL, *runs, clusters=[*times(SERIAL, 8.0), *times(ON_TWO, 4.0)])
    assert {row.clock for row in comparison.rows} == {clock}
    untraced = a_comparison(*SERIAL, *runs, clusters=[*times(SERIAL, 8.0)[1:], *times(ON_TWO, 4.0)])
    assert {row.clock for row in untraced.rows} == {"wall"}  # on which all serial runs have a time
    busy = findings_of(comparison, "disturbed")
    counts = [(finding.data["disturbed"], finding.data["of"]) for finding in busy]
    assert counts == [(3, 10)] * (clock == "cluster")
    if busy:
        assert "Other load took the cores" in finding_of(comparison, "cluster_time_uncalibrated").text
        above, _, _ = page_of(comparison, find(comparison), []).partition('<div class="verdict')
        assert busy[0].text in re.sub("<[^>]*>", "", above)

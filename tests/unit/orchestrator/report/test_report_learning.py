"""Mistakes in targets, rates and epochs: which epoch, rank and seed counts, with what a run compares."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.figures.style import Style
from orchestrator.report.metrics.curves import curve, reached_sooner
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import OTHER_EPOCHS
from orchestrator.report.quantities.learning import learned as has_learned
from orchestrator.report.quantities.learning import updates
from orchestrator.report.render.columns import GROUPS, NOT_REACHED
from orchestrator.report.render.csv_tables import epochs_csv
from orchestrator.report.topics.target import time_to_target
from orchestrator.results.records import Certificate, EpochPoint, RunResult
from tests.unit.report_support import a_comparison, a_run, cells, csv_lines, value, verdicts_of

EPOCH_S = 2.0
OVER_GLOO: dict[str, Any] = {"nodes": 2, "transport": "gloo"}


def learned(
    strategy: str | dict[str, Any],
    accuracies: Sequence[float],
    *,
    target: float | None = 0.9,
    lr: float = 0.05,
    **fields: Any,
) -> RunResult:
    """A run of `epochs: 4` with these test accuracies, one per epoch; rank r finishes r/10 s later."""
    patience = fields.get("patience", 1)
    run = a_run(
        strategy,
        epochs=4,
        target_accuracy=target,
        accuracy=accuracies[-1],
        train_s=EPOCH_S * len(accuracies),
        **fields,
    )
    reached = target is not None and all(accuracy >= target for accuracy in accuracies[-patience:])
    points = [
        EpochPoint(
            rank=rank.rank,
            epoch=epoch,
            train_s=EPOCH_S * epoch + rank.rank / 10,
            loss=None if rank.rank < run.run.strategy.servers else 0.5 + rank.rank,
            accuracy=accuracy,
            test_loss=0.3,
            lr=lr * epoch,
            target_reached=reached and epoch == len(accuracies),
        )
        for rank in run.ranks
        for epoch, accuracy in enumerate(accuracies, 1)
    ]
    assert run.certificate
    parts = [
        part.model_copy(update={"epoch": epoch})
        for epoch in range(1, len(accuracies) + 1)
        for part in run.certificate.parts
    ]
    certificate = Certificate(verified=True, splits=run.certificate.splits, parts=parts)
    return run.model_copy(update={"epochs": points, "certificate": certificate})


def by_strategy(comparison: Comparison) -> dict[str, dict[str, str]]:
    """The cells of the table of results, by strategy and number of nodes."""
    names = [f"{group.strategy_label} {group.shape.nodes}" for group in comparison.groups]
    return dict(zip(names, cells(GROUPS, comparison.groups), strict=True))


# Targets


@pytest.mark.parametrize(
    ("accuracies", "patience", "seconds"),
    [([0.95], 1, 2.0), ([0.95, 0.5, 0.91, 0.92], 2, 6.0), ([0.91, 0.92, 0.93], 3, 2.0)],
)
def test_the_first_of_the_consecutive_epochs_counts(
    accuracies: list[float], patience: int, seconds: float
) -> None:
    alone, of_three = csv_lines(
        a_comparison(
            learned("serial", accuracies, patience=patience),
            learned("all_reduce", accuracies, patience=patience, nodes=3),
        )
    )
    assert float(alone["time_to_target_s"]) == seconds
    assert float(of_three["time_to_target_s"]) == pytest.approx(seconds + 0.2)  # the slowest rank
    assert (alone["target_reached"], int(alone["epochs_trained"])) == ("true", len(accuracies))


def test_without_a_target_or_before_it_there_is_no_time_to_it() -> None:
    never = a_comparison(learned("serial", [0.5, 0.6, 0.7, 0.8]))
    plain = a_comparison(learned("serial", [0.5, 0.95, 0.6, 0.7], target=None))
    for comparison, expected in ((never, ("", "false", "0.9")), (plain, ("", "", ""))):
        (line,) = csv_lines(comparison)
        assert (line["time_to_target_s"], line["target_reached"], line["target_accuracy"]) == expected
        view = comparison.view(comparison.workloads[0])
        assert time_to_target(view.line_groups, Style(comparison.groups)) is None
    assert by_strategy(never)["serial 1"]["time_to_target_s"] == NOT_REACHED
    assert "time_to_target_s" not in by_strategy(plain)["serial 1"]


def test_a_round_that_has_begun_counts() -> None:
    """Of 90 steps in rounds of 20, all or those of the first of two epochs led to the target."""
    strategy = {"name": "local_sgd", "local_steps": 20, "participation": {"fraction": 0.5}}
    for patience, rounds in ((1, 5), (2, 3)):
        (row,) = a_comparison(learned(strategy, [0.91, 0.95], nodes=2, patience=patience)).rows
        assert value(row, "rounds_to_target") == rounds


# What a run compares with


def test_a_speedup_needs_as_many_epochs_in_every_seed() -> None:
    comparison = a_comparison(
        *(learned("serial", [0.6, 0.95], seed=seed) for seed in (0, 1)),
        learned("all_reduce", [0.5, 0.95], nodes=2, seed=0),
        learned("all_reduce", [0.5, 0.6, 0.95], nodes=2, seed=1),
        learned("ddp", [0.5, 0.95], nodes=2),
    )
    assert [row.no_speedup for row in comparison.rows] == [None, None, OTHER_EPOCHS, OTHER_EPOCHS, None]
    names = ("speedup", "cpu_time_speedup", "efficiency")
    assert [value(comparison.rows[2], name) for name in names] == [None] * 3
    assert value(comparison.rows[2], "accuracy_difference") == pytest.approx(0.0)
    assert comparison.rows[4].speedup == 1.0


def test_a_run_compares_with_the_serial_run_of_its_warm_up() -> None:
    cold, warm = a_run("serial"), a_run("serial", warm_up_epochs=2)
    runs = [a_run("all_reduce", warm_up_epochs=each, **OVER_GLOO) for each in (0, 2, 1)]
    comparison = a_comparison(cold, warm, *runs)
    assert [workload.warm_up_epochs for workload in comparison.workloads] == [0, 2]
    found = {row.key: row.baseline for row in comparison.rows}
    baselines = [found[run.key] for run in runs]
    assert [each and each.keys for each in baselines] == [(cold.key,), (warm.key,), (cold.key,)]
    (alone,) = a_comparison(warm, *runs).workloads
    assert alone.warm_up_epochs == 2


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
        a_run("gossip", status="failed", cause="odd", epochs=4, **OVER_GLOO),
    )
    lines = list(csv.DictReader(epochs_csv(comparison).splitlines()))
    assert [(line["nodes"], line["epoch"]) for line in lines] == [*zip("11333", "12123", strict=True)]
    second = lines[3]
    assert (second["key"], second["strategy"], second["seed"]) == (
        comparison.rows[1].key,
        "parameter_server",
        "0",
    )
    assert [float(second[name]) for name in ("train_s", "lr", "accuracy")] == pytest.approx([4.2, 0.1, 0.6])
    assert float(second["loss"]) == 2.0  # mean over the two workers; the server has no loss
    assert float(second["samples_per_s"]) == pytest.approx(600 / 2.0)  # of this epoch, not cumulative
    assert float(lines[2]["samples_per_s"]) == pytest.approx(600 / 2.2)


def test_updates_of_a_shared_model_are_those_of_all_ranks() -> None:
    shared, own = a_comparison(a_run("hogwild", nodes=2), a_run("all_reduce", nodes=2)).rows
    assert (updates(shared), updates(own)) == (180, 90)


@pytest.mark.parametrize(
    ("accuracy", "last_loss", "expected"),
    [(0.2, 0.5, True), (0.2, 0.51, False), (0.11, 0.4, False), (None, 0.4, None)],
)
def test_a_model_has_learned_if_it_beats_chance_and_its_loss_did_not_rise(
    accuracy: float | None, last_loss: float, expected: bool | None
) -> None:
    run = a_run(accuracy=accuracy)
    points = [
        point.model_copy(update={"loss": loss, "test_loss": loss})
        for point, loss in zip(run.epochs, (0.5, last_loss), strict=True)
    ]
    known = {"test_samples": 500, "chance_accuracy": 0.1}
    ranks = [rank.model_copy(update=known) for rank in run.ranks]
    (row,) = a_comparison(run.model_copy(update={"epochs": points, "ranks": ranks})).rows
    assert has_learned(row) is expected


def test_who_reaches_an_accuracy_after_fewer_epochs_is_in_the_verdict() -> None:
    slow, fast = [0.935, 0.94, 0.94, 0.94], [0.5, 0.6, 0.7, 0.935]
    runs = [learned("serial", slow, target=None, seed=seed) for seed in range(5)]
    for seed in range(5):
        run = learned("all_reduce", fast, target=None, nodes=2, seed=seed)
        ranks = [rank.model_copy(update={"train_s": 3.0}) for rank in run.ranks]
        runs.append(run.model_copy(update={"ranks": ranks}))
    comparison = a_comparison(*runs)
    serial, group = comparison.groups
    assert [point.train_s for point in curve(group)] == pytest.approx(
        [2.1, 4.1, 6.1, 8.1]
    )  # of the last rank
    found = reached_sooner(group, comparison.groups)
    assert found is not None
    assert (found[0], found[1].epoch) == (serial, 1)
    assert reached_sooner(serial, comparison.groups) is None
    (verdict,) = verdicts_of(comparison)
    assert f"serial reached {formats.percent(0.935)} in " in verdict.certainty

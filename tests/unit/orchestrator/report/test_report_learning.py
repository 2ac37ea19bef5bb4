"""Learning rates, target accuracies and epochs.csv."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.metrics.curves import reached_sooner
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import OTHER_EPOCHS
from orchestrator.report.plots import draw
from orchestrator.report.render.columns import GROUPS, NOT_REACHED, RUNS
from orchestrator.report.render.csv_tables import epochs_csv
from orchestrator.report.topics import find
from orchestrator.results.records import Certificate, EpochPoint, RunResult
from tests.unit.report_support import (
    a_comparison,
    a_run,
    cells,
    csv_lines,
    finding_of,
    findings_of,
    row_of,
    value,
    verdicts_of,
)

EPOCH_S = 2.0


def learned(
    strategy: str,
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
    parts = [
        part.model_copy(update={"epoch": epoch})
        for epoch in range(1, len(accuracies) + 1)
        for part in (run.certificate.parts if run.certificate else [])
    ]
    assert run.certificate
    certificate = Certificate(verified=True, splits=run.certificate.splits, parts=parts)
    return run.model_copy(update={"epochs": points, "certificate": certificate})


def by_strategy(comparison: Comparison) -> dict[str, dict[str, str]]:
    """The cells of the table of results, by strategy and number of nodes."""
    names = [f"{group.strategy_label} {group.shape.nodes}" for group in comparison.groups]
    return dict(zip(names, cells(GROUPS, comparison.groups), strict=True))


# Time to the target


@pytest.mark.parametrize(
    ("accuracies", "patience", "seconds"),
    [
        ([0.5, 0.95], 1, 2 * EPOCH_S),
        ([0.95], 1, EPOCH_S),
        ([0.95, 0.5, 0.91, 0.92], 2, 3 * EPOCH_S),
        ([0.91, 0.92, 0.93], 3, EPOCH_S),
    ],
)
def test_the_first_of_the_consecutive_epochs_counts(
    accuracies: list[float], patience: int, seconds: float
) -> None:
    (line,) = csv_lines(a_comparison(learned("serial", accuracies, patience=patience)))
    assert float(line["time_to_target_s"]) == seconds
    assert line["target_reached"] == "true"
    assert int(line["epochs_trained"]) == len(accuracies)
    (line,) = csv_lines(a_comparison(learned("all_reduce", accuracies, patience=patience, nodes=3)))
    assert float(line["time_to_target_s"]) == pytest.approx(seconds + 0.2)  # the slowest rank


def test_a_target_that_was_not_reached_is_shown() -> None:
    never = a_comparison(learned("serial", [0.5, 0.6, 0.7, 0.8]))
    (line,) = csv_lines(never)
    assert (line["time_to_target_s"], line["target_reached"], line["target_accuracy"]) == (
        "",
        "false",
        "0.9",
    )
    assert by_strategy(never)["serial 1"]["time_to_target_s"] == NOT_REACHED
    assert cells(RUNS, never.rows)[0]["time_to_target_s"] == NOT_REACHED
    assert "time_to_target_s" not in [plot.name for plot in draw(never)]  # there is no time to draw


def test_report_without_a_target_does_not_mention_one() -> None:
    plain = a_comparison(learned("serial", [0.5, 0.95, 0.6, 0.7], target=None))
    assert "time_to_target_s" not in by_strategy(plain)["serial 1"]
    assert "time_to_target_s" not in cells(RUNS, plain.rows)[0]
    assert [finding.kind for finding in find(plain) if finding.kind.startswith("target")] == []
    assert "time_to_target_s" not in [plot.name for plot in draw(plain)]
    (line,) = csv_lines(plain)
    assert (line["time_to_target_s"], line["target_reached"], line["target_accuracy"]) == ("", "", "")


def test_seeds_that_reached_the_target_are_counted() -> None:
    comparison = a_comparison(
        learned("serial", [0.5, 0.95], seed=0), learned("serial", [0.5, 0.6, 0.7, 0.8], seed=1)
    )
    assert by_strategy(comparison)["serial 1"]["time_to_target_s"] == "4.00 s | 1 of 2 seeds"
    assert finding_of(comparison, "target_some_seeds").data["seeds"] == {"serial": (1, 2)}
    assert findings_of(comparison, "target_first") == []


def test_seeds_that_reach_the_target_early_late_and_never() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo"),
        learned("ddp", [0.5, 0.95], nodes=3),
        learned("gossip", [0.5, 0.6, 0.7, 0.8], nodes=2, transport="gloo"),
    )
    first = finding_of(comparison, "target_first")
    assert {name.replace(formats.JOIN, " "): s for name, s in first.data["time_to_target_s"].items()} == {
        "all_reduce over gloo on 2 nodes": pytest.approx(4.1),
        "ddp over gloo on 3 nodes": pytest.approx(4.2),
        "serial": pytest.approx(6.0),
    }
    assert first.data["shortest"].startswith("all_reduce")
    assert first.data["first"] is None
    assert {each["decision"] for each in first.data["compared"]} == {"too_few_seeds"}
    assert {row.strategy for row in first.rows} == {"all_reduce", "ddp", "serial"}
    never = finding_of(comparison, "target_never")
    assert list(never.data["best_accuracy"].values()) == [0.8]
    assert [row.strategy for row in never.rows] == ["gossip"]


def test_runs_with_different_numbers_of_epochs_have_no_speedup() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo"),
        learned("ddp", [0.5, 0.6, 0.95], nodes=2),
    )
    other, same = row_of(comparison, "all_reduce"), row_of(comparison, "ddp")
    assert (other.speedup, value(other, "cpu_time_speedup"), value(other, "efficiency")) == (
        None,
        None,
        None,
    )
    assert other.no_speedup == OTHER_EPOCHS
    assert value(other, "accuracy_difference") == pytest.approx(0.0)
    assert same.speedup == 1.0
    assert same.no_speedup is None
    assert findings_of(comparison, "fastest") == []
    shown = by_strategy(comparison)
    assert [shown[name]["epochs_trained"] for name in ("serial 1", "all_reduce 2")] == ["3", "2"]


def test_speedup_needs_all_seeds() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.95], seed=0),
        learned("serial", [0.6, 0.95], seed=1),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo", seed=0),
        learned("all_reduce", [0.5, 0.6, 0.95], nodes=2, transport="gloo", seed=1),
    )
    assert [row.no_speedup for row in comparison.rows] == [None, None, OTHER_EPOCHS, OTHER_EPOCHS]
    shown = by_strategy(comparison)
    assert (shown["serial 1"]["speedup"], shown["all_reduce 2"]["speedup"]) == ("1.00", formats.ABSENT)
    assert shown["all_reduce 2"]["epochs_trained"] == "2.5 | 2–3"


def test_a_target_is_part_of_the_workload() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("serial", [0.6, 0.7, 0.95, 0.96], target=None),
        learned("serial", [0.6, 0.95, 0.95], patience=2),
    )
    labels = [workload.label for workload in comparison.workloads]
    assert [label.partition("4 epochs")[2] for label in labels] == [
        " or until 90.0% accuracy",
        "",
        " or until 90.0% accuracy in 2 in a row",
    ]


# Learning rates


def test_labels_name_the_lr_schedule_where_it_differs() -> None:
    fields: dict[str, Any] = {"nodes": 2, "transport": "gloo"}
    linear = a_run("all_reduce", lr_scaling="linear", **fields)
    plain, warm = a_run("all_reduce", **fields), a_run("all_reduce", warm_up_epochs=2, **fields)
    serial = a_run("serial", lr_scaling="linear")
    labels = [group.strategy_label for group in a_comparison(serial, plain, linear, warm).groups]
    assert labels == [
        "serial",
        "all_reduce",
        "all_reduce lr_scaling=linear",
        "all_reduce warm_up_epochs=2",
    ]
    alike = a_comparison(serial, linear, a_run("gossip", lr_scaling="linear", **fields))
    assert [group.strategy_label for group in alike.groups] == ["serial", "all_reduce", "gossip"]
    assert [line["lr_scaling"] for line in csv_lines(alike)] == ["linear"] * 3
    assert csv_lines(a_comparison(plain, linear))[1]["strategy"] == "all_reduce"


def test_all_lr_schedules_share_the_serial_run() -> None:
    comparison = a_comparison(
        a_run("serial"),
        a_run("all_reduce", nodes=2, transport="gloo"),
        a_run("all_reduce", nodes=2, transport="gloo", lr_scaling="linear", accuracy=0.8),
    )
    assert len(comparison.workloads) == 1
    assert all(row.speedup for row in comparison.rows)
    data = finding_of(comparison, "variant").data
    assert data["parameters"] == ({"lr_scaling": "none"}, {"lr_scaling": "linear"})
    assert data["accuracy"][1] == pytest.approx(0.8)


def test_a_run_compares_with_the_serial_run_of_its_warm_up() -> None:
    cold, warm = a_run("serial"), a_run("serial", warm_up_epochs=2)
    runs = [a_run("all_reduce", nodes=2, transport="gloo", warm_up_epochs=each) for each in (0, 2, 1)]
    first, second = a_comparison(cold, warm, *runs).workloads
    assert (first.warm_up_epochs, second.warm_up_epochs) == (0, 2)
    assert first.label != second.label
    found = {row.key: row.baseline for row in a_comparison(cold, warm, *runs).rows}
    baselines = [found[run.key] for run in runs]
    assert [each and each.keys for each in baselines] == [(cold.key,), (warm.key,), (cold.key,)]
    (alone,) = a_comparison(warm, *runs).workloads
    assert alone.warm_up_epochs == 2


def test_learning_rate_has_a_column_if_it_differs_from_the_spec() -> None:
    growing = a_comparison(learned("serial", [0.5, 0.6]), learned("serial", [0.5, 0.6], target=None))
    assert by_strategy(growing)["serial 1"]["lr_last_epoch"] == "0.1 | from 0.05"
    assert csv_lines(growing)[0]["lr_first_epoch"] == "0.05"
    assert csv_lines(growing)[0]["lr_last_epoch"] == "0.1"
    plain = a_run("serial")
    points = [point.model_copy(update={"lr": 0.05}) for point in plain.epochs]
    constant = a_comparison(plain.model_copy(update={"epochs": points}))
    assert "lr_last_epoch" not in by_strategy(constant)["serial 1"]
    older = a_comparison(plain)  # a result without learning rates
    assert "lr_last_epoch" not in by_strategy(older)["serial 1"]
    assert csv_lines(older)[0]["lr_last_epoch"] == ""


# epochs.csv


def test_a_line_for_each_run_and_epoch() -> None:
    comparison = a_comparison(
        learned("serial", [0.5, 0.95]),
        learned("parameter_server", [0.4, 0.6, 0.92], nodes=3, transport="gloo"),
        a_run("gossip", nodes=2, status="failed", cause="odd", epochs=4, transport="gloo"),
    )
    lines = list(csv.DictReader(epochs_csv(comparison).splitlines()))
    measured = ["train_s", "lr", "loss", "accuracy", "test_loss", "samples_per_s"]
    assert list(lines[0]) == ["key", "strategy", "nodes", "seed", "epoch", *measured]
    assert [(line["strategy"], line["epoch"]) for line in lines] == [
        ("serial", "1"),
        ("serial", "2"),
        ("parameter_server", "1"),
        ("parameter_server", "2"),
        ("parameter_server", "3"),
    ]
    second = lines[3]
    assert (second["key"], second["nodes"], second["seed"]) == (comparison.rows[1].key, "3", "0")
    assert [float(second[name]) for name in ("train_s", "lr", "accuracy")] == pytest.approx([4.2, 0.1, 0.6])
    assert float(second["loss"]) == 2.0  # mean over the two workers; the server has no loss
    assert float(second["samples_per_s"]) == pytest.approx(600 / 2.0)  # of this epoch, not cumulative
    assert float(lines[2]["samples_per_s"]) == pytest.approx(600 / 2.2)


def test_the_table_has_samples_per_s() -> None:
    comparison = a_comparison(a_run("all_reduce", nodes=2, transport="gloo", train_s=5.0))
    assert by_strategy(comparison)["all_reduce 2"]["samples_per_s"] == "40.0"


def test_who_reaches_an_accuracy_after_fewer_epochs_is_in_the_verdict() -> None:
    slow, fast = [0.935, 0.94, 0.94, 0.94], [0.5, 0.6, 0.7, 0.935]
    serial = [learned("serial", slow, target=None, seed=seed) for seed in range(5)]
    sharing = [
        run.model_copy(update={"ranks": [rank.model_copy(update={"train_s": 3.0}) for rank in run.ranks]})
        for seed in range(5)
        for run in [learned("all_reduce", fast, target=None, nodes=2, seed=seed)]
    ]
    comparison = a_comparison(*serial, *sharing)
    view = comparison.view(comparison.workloads[0])
    (group,) = view.ranked_candidates
    assert view.serial is not None
    found = reached_sooner(group, [group, view.serial])
    assert found is not None
    assert (found[0], found[1].epoch) == (view.serial, 1)
    (verdict,) = verdicts_of(comparison)
    assert f"serial reached {formats.percent(0.935)} in " in verdict.certainty
    assert reached_sooner(view.serial, [group, view.serial]) is None


def test_a_strategy_may_have_a_learning_rate_of_its_own() -> None:
    """It compares with the serial run, unless there is a serial run of its rate."""
    serial = a_run("serial", lr=0.05)
    same = a_run("all_reduce", nodes=2, lr=0.05)
    signs = {"name": "all_reduce", "compression": "sign"}
    own = [a_run(signs, nodes=2, lr=lr) for lr in (0.001, 0.002)]
    comparison = a_comparison(serial, same, *own)
    (workload,) = comparison.workloads
    assert workload.lr == 0.05
    assert [row.strategy_label for row in comparison.rows[1:]] == [
        "all_reduce",
        "all_reduce compression=sign lr=0.001",
        "all_reduce compression=sign lr=0.002",
    ]
    assert all(row.speedup for row in comparison.rows)
    found = finding_of(comparison, "conditions_unequal").data["differences"]["learning rate"]
    assert [*found] == ["0.05", "0.001", "0.002"]
    assert "all_reduce compression=sign was tried with 2" in stated_conditions(comparison.view(workload))

    of_one_rate = a_run("serial", lr=0.001)
    separate = a_comparison(serial, of_one_rate, same, *own)
    assert [workload.lr for workload in separate.workloads] == [0.05, 0.001, 0.002]
    assert {row.strategy_label for row in separate.rows[3:]} == {"all_reduce compression=sign"}
    assert [row.speedup is None for row in separate.rows[2:]] == [False, False, True]

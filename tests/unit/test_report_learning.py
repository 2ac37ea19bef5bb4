"""Learning rates, target accuracies and single epochs in the report."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.report.figures import draw
from orchestrator.report.findings import find
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import OTHER_EPOCHS
from orchestrator.report.render import html, markdown
from orchestrator.report.render.columns import GROUPS, RUNS, filled
from orchestrator.report.render.epochs_csv import epochs_csv
from orchestrator.results.records import Certificate, EpochPoint, RunResult
from tests.unit.report_support import a_comparison, a_run, csv_lines, row_of

EPOCH_S = 2.0


def learned(
    strategy: str,
    accuracies: Sequence[float],
    *,
    target: float | None = 0.9,
    lr: float = 0.05,
    **fields: Any,
) -> RunResult:
    """A run of `epochs: 4` with these test accuracies, one for each; rank r is r/10 s late."""
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


def groups(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Text of every cell that the table of cells shows, by strategy and title."""
    columns = filled(GROUPS, comparison.groups)
    return {
        f"{group.strategy_label} {group.shape.nodes}": {
            column.title: " ".join(filter(None, [column.cell(group).text, column.cell(group).detail]))
            for column in columns
        }
        for group in comparison.groups
    }


def texts(comparison: Comparison, topic: str) -> str:
    return " ".join(finding.text for finding in find(comparison) if finding.topic == topic)


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
def test_the_first_epoch_of_those_in_a_row_counts(
    accuracies: list[float], patience: int, seconds: float
) -> None:
    (line,) = csv_lines(a_comparison(learned("serial", accuracies, patience=patience)))
    assert float(line["time_to_target_s"]) == seconds
    assert line["target_reached"] == "true"
    assert int(line["epochs_trained"]) == len(accuracies)
    (line,) = csv_lines(a_comparison(learned("all_reduce", accuracies, patience=patience, nodes=3)))
    assert float(line["time_to_target_s"]) == pytest.approx(seconds + 0.2)  # of the slowest rank


def test_a_target_that_was_not_reached_is_told_and_not_left_blank() -> None:
    never = a_comparison(learned("serial", [0.5, 0.6, 0.7, 0.8]))
    (line,) = csv_lines(never)
    assert (line["time_to_target_s"], line["target_reached"], line["target_accuracy"]) == (
        "",
        "false",
        "0.9",
    )
    assert groups(never)["serial 1"]["Time to target accuracy"] == "not reached"
    (column,) = [column for column in filled(RUNS, never.rows) if "target" in column.title]
    assert column.cell(never.rows[0]).text == "not reached"
    plots = draw(never)
    assert "not reached in 4 epochs" in next(p.svg for p in plots if p.name == "time_to_target")
    page, text = html.render(never, find(never), plots), markdown.render(never, find(never), plots)
    assert "not reached" in page
    assert "not reached" in text


def test_without_a_target_nothing_is_said_of_one() -> None:
    plain = a_comparison(learned("serial", [0.5, 0.95, 0.6, 0.7], target=None))
    assert not any("target" in title for title in groups(plain)["serial 1"])
    assert not any("target" in column.title for column in filled(RUNS, plain.rows))
    assert texts(plain, "Target accuracy") == ""
    assert "time_to_target" not in [plot.name for plot in draw(plain)]
    (line,) = csv_lines(plain)
    assert (line["time_to_target_s"], line["target_reached"], line["target_accuracy"]) == ("", "", "")


def test_seeds_that_reached_it_are_counted() -> None:
    comparison = a_comparison(
        learned("serial", [0.5, 0.95], seed=0), learned("serial", [0.5, 0.6, 0.7, 0.8], seed=1)
    )
    assert groups(comparison)["serial 1"]["Time to target accuracy"] == "4.00\u00a0s by 1 of 2\u00a0seeds"
    assert texts(comparison, "Target accuracy") == (
        "Only some seeds reached 90.0% test accuracy: serial (1 of 2)."
    )
    assert "1 of 2 seeds" in next(p.svg for p in draw(comparison) if p.name == "time_to_target")


def test_who_was_first_and_who_never_was() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo"),
        learned("ddp", [0.5, 0.95], nodes=3),
        learned("gossip", [0.5, 0.6, 0.7, 0.8], nodes=2, transport="gloo"),
    )
    told = texts(comparison, "Target accuracy")
    assert told.replace("\u00a0", " ") == (
        "all_reduce over gloo on 2 nodes was the first at 90.0% test accuracy: 4.10 s of training, in "
        "epoch 2. Next came ddp over gloo on 3 nodes: 4.20 s, in epoch 2, a difference not repeated often "
        "enough to tell from chance. Serial took 6.00 s, in epoch 3. 90.0% test accuracy was not reached "
        "in 4 epochs: gossip over gloo on 2 nodes (at best 80.0%)."
    )
    assert {row.strategy for f in find(comparison) if f.topic == "Target accuracy" for row in f.rows} >= {
        "gossip",
        "serial",
        "all_reduce",
    }


def test_times_of_different_numbers_of_epochs_are_no_speedup() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo"),
        learned("ddp", [0.5, 0.6, 0.95], nodes=2),
    )
    other, same = row_of(comparison, "all_reduce"), row_of(comparison, "ddp")
    assert (other.speedup, other.work_speedup, other.efficiency) == (None, None, None)
    assert other.no_speedup == OTHER_EPOCHS
    assert other.accuracy_difference == pytest.approx(0.0)
    assert same.speedup == 1.0
    assert same.no_speedup is None
    assert OTHER_EPOCHS in html.render(comparison, [], [])
    assert texts(comparison, "Time") == ""  # of different work
    cells = groups(comparison)
    assert [cells[name]["Epochs"] for name in ("serial 1", "all_reduce 2")] == ["3", "2"]


def test_a_speedup_is_of_all_seeds_or_of_none() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.95], seed=0),
        learned("serial", [0.6, 0.95], seed=1),
        learned("all_reduce", [0.5, 0.95], nodes=2, transport="gloo", seed=0),
        learned("all_reduce", [0.5, 0.6, 0.95], nodes=2, transport="gloo", seed=1),
    )
    assert [row.no_speedup for row in comparison.rows] == [None, None, OTHER_EPOCHS, OTHER_EPOCHS]
    cells = groups(comparison)
    assert (cells["serial 1"]["Speedup"], cells["all_reduce 2"]["Speedup"]) == ("1.00", "–")
    assert cells["all_reduce 2"]["Epochs"] == "2.5 2–3"


def test_runs_with_and_without_a_target_are_different_work() -> None:
    comparison = a_comparison(
        learned("serial", [0.6, 0.7, 0.95]),
        learned("serial", [0.6, 0.7, 0.95, 0.96], target=None),
        learned("serial", [0.6, 0.95, 0.95], patience=2),
    )
    labels = [work.label for work in comparison.works]
    assert [label.partition("4 epochs")[2] for label in labels] == [
        " or until 90.0% accuracy",
        "",
        " or until 90.0% accuracy in 2 in a row",
    ]


# Learning rates


def test_strategies_are_told_apart_by_their_rates_where_these_differ() -> None:
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


def test_all_rates_have_one_serial_run() -> None:
    comparison = a_comparison(
        a_run("serial"),
        a_run("all_reduce", nodes=2, transport="gloo"),
        a_run("all_reduce", nodes=2, transport="gloo", lr_scaling="linear", accuracy=0.8),
    )
    assert len(comparison.works) == 1
    assert all(row.speedup for row in comparison.rows)
    told = texts(comparison, "Parameters")
    assert "with lr_scaling=none and 80.0% with lr_scaling=linear" in told


def test_rates_that_were_used_have_a_column_where_they_are_not_the_runs_lr() -> None:
    growing = a_comparison(learned("serial", [0.5, 0.6]), learned("serial", [0.5, 0.6], target=None))
    assert groups(growing)["serial 1"]["Learning rate"] == "0.1 from 0.05"
    assert csv_lines(growing)[0]["lr_first_epoch"] == "0.05"
    assert csv_lines(growing)[0]["lr_last_epoch"] == "0.1"
    plain = a_run("serial")
    points = [point.model_copy(update={"lr": 0.05}) for point in plain.epochs]
    constant = a_comparison(plain.model_copy(update={"epochs": points}))
    assert "Learning rate" not in groups(constant)["serial 1"]
    older = a_comparison(plain)  # has none recorded
    assert "Learning rate" not in groups(older)["serial 1"]
    assert csv_lines(older)[0]["lr_last_epoch"] == ""


# epochs.csv


def test_a_line_for_each_run_and_epoch() -> None:
    comparison = a_comparison(
        learned("serial", [0.5, 0.95]),
        learned("parameter_server", [0.4, 0.6, 0.92], nodes=3, transport="gloo"),
        a_run("gossip", nodes=2, status="failed", cause="odd", epochs=4, transport="gloo"),
    )
    lines = list(csv.DictReader(epochs_csv(comparison).splitlines()))
    measured = ["train_s", "lr", "loss", "accuracy", "test_loss", "images_per_s"]
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
    assert float(second["loss"]) == 2.0  # mean of the two workers', the server has none
    assert float(second["images_per_s"]) == pytest.approx(2 * 50 / 2.0)  # in this epoch, not so far
    assert float(lines[2]["images_per_s"]) == pytest.approx(2 * 50 / 2.2)


def test_the_whole_runs_images_per_s_are_in_the_table() -> None:
    comparison = a_comparison(a_run("all_reduce", nodes=2, transport="gloo", train_s=5.0))
    assert groups(comparison)["all_reduce 2"]["Samples per s"] == "40.0"

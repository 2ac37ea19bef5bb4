"""The CSV files beside a report, and their data dictionary."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from math import exp, sqrt
from typing import Any

import pytest

from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.render import columns
from orchestrator.report.render.csv_columns import CsvColumn
from orchestrator.report.render.csv_tables import (
    DICTIONARY,
    columns_csv,
    epochs_csv,
    results_csv,
    summary_csv,
)
from orchestrator.report.topics import asked_by
from tests.unit.orchestrator.report.test_report_golden import golden_comparison
from tests.unit.report_support import (
    a_comparison,
    a_run,
    around,
    cells,
    findings_of,
    in_cluster_time,
    repeated,
    verdicts_of,
)

WRITERS = {"summary.csv": summary_csv, "results.csv": results_csv, "epochs.csv": epochs_csv}
COMPARED_ONLY = {"averaging_gain"}
UNITS_IN_NAMES = {"_s": "s", "_mib": "MiB", "_bits": "bits", "_epochs": "epochs"}


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@pytest.fixture(scope="module")
def golden() -> Comparison:
    return golden_comparison()


@pytest.mark.parametrize("file", DICTIONARY)
def test_every_column_of_a_file_is_in_the_dictionary(file: str, golden: Comparison) -> None:
    header = next(csv.reader(StringIO(WRITERS[file](golden))))
    explained = [entry for entry in lines(columns_csv()) if entry["file"] == file]
    assert header == [entry["column"] for entry in explained]
    assert len(set(header)) == len(header)
    assert all(entry["meaning"] for entry in explained)


@pytest.mark.parametrize(
    "column", [each for columns in DICTIONARY.values() for each in columns], ids=lambda each: each.name
)
def test_units_are_those_of_the_name(column: CsvColumn[Any]) -> None:
    for ending, unit in UNITS_IN_NAMES.items():
        if column.name.endswith(ending) and not column.name.endswith(("per_s", "warm_up_epochs")):
            assert column.unit == unit
    assert "|" not in column.meaning


@pytest.mark.parametrize("file", DICTIONARY)
def test_columns_that_are_never_said_to_be_empty_are_filled_for_ok_runs(
    file: str, golden: Comparison
) -> None:
    columns: Sequence[CsvColumn[Any]] = DICTIONARY[file]
    always = [each.name for each in columns if not each.empty and not each.name.startswith("cluster_")]
    assert always
    for line in lines(WRITERS[file](golden)):
        if line.get("status", line.get("state", "ok")) == "ok":
            assert not [name for name in always if line[name] == ""]


def test_each_quantity_is_described_once() -> None:
    """Its entry makes its column in results.csv, those in tables, and its comparison."""
    tables = (
        columns.GROUPS,
        columns.CERTIFICATES,
        columns.MODEL_PARTITION,
        columns.CONTAINERS,
        columns.RUNS,
    )
    titles = {column.key: column.title for table in tables for column in table}
    described = {column.name: column for column in DICTIONARY["results.csv"]}
    for name, quantity in QUANTITIES.items():
        assert quantity.name == name
        assert name in described or name in titles or name in COMPARED_ONLY
        assert not quantity.meaning or described[name].meaning == quantity.meaning
        assert name not in titles or titles[name] == quantity.title


def test_summary_has_a_line_per_configuration() -> None:
    serial = repeated("serial", around(8.0, 0.1))
    fast = repeated("all_reduce", around(4.0, 0.1), nodes=2, processes_per_node=2, transport="gloo")
    failed = a_run("ddp", nodes=2, status="failed", cause="gone")
    some = [a_run("gossip", nodes=2), a_run("gossip", nodes=2, seed=1, status="failed", cause="gone")]
    first, second, third, fourth = lines(summary_csv(a_comparison(*serial, *fast, failed, *some)))
    assert [line["state"] for line in (first, second, third, fourth)] == ["ok", "ok", "failed", "partly"]
    assert [line["seeds"] for line in (first, second, third, fourth)] == ["5", "5", "0", "1"]
    assert (second["strategy"], second["transport"], second["partitioner"]) == (
        "all_reduce",
        "gloo",
        "random_partition",
    )
    assert (second["nodes"], second["ranks"]) == ("2", "4")
    for name in ("time_s", "speedup"):
        assert float(second[f"{name}_low"]) < float(second[name]) < float(second[f"{name}_high"])
    assert float(second["time_s"]) == pytest.approx(4.0, rel=1e-3)
    assert first["workload"] == second["workload"]
    assert {name for name, value in third.items() if value} == {
        *("workload", "strategy", "transport", "partitioner", "nodes", "ranks", "seeds", "clock", "state")
    }


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_speedup_has_one_interval(nodes: int) -> None:
    """That of the comparison with serial: in the findings, the verdict, the table and summary.csv."""
    runs = [
        *repeated("serial", around(8.0, 0.4)),
        *repeated("all_reduce", around(5.0, 0.2), nodes=2),
        *repeated("all_reduce", around(4.0, 0.2), nodes=4),
        *repeated("ddp", around(4.5, 0.2), nodes=4),
    ]
    comparison = a_comparison(*runs)
    claims = asked_by(comparison).decided()
    (group,) = [
        each for each in comparison.groups if (each.strategy, each.shape.nodes) == ("all_reduce", nodes)
    ]
    line = lines(summary_csv(comparison, claims))[comparison.groups.index(group)]
    low, high = float(line["speedup_low"]), float(line["speedup_high"])
    if nodes == 4:  # the only number of nodes at which findings compare with serial
        (found,) = findings_of(comparison, "fastest")
        assert found.data["speedup_interval"] == pytest.approx((low, high))
    # No narrower than what sessions alone make of it.
    assert high / low > exp(2 * 1.96 * sqrt(2) * BETWEEN_SESSIONS)
    shown = cells(columns.with_speedup_intervals(speedup_intervals(comparison, claims)), [group])
    assert shown[0]["speedup_interval"] == f"{low:.2f}–{high:.2f}"
    (verdict,) = verdicts_of(comparison)
    (option,) = [
        each for each in verdict.options if each.shape.split()[0] == f"{nodes}" and "all" in each.name
    ]
    assert f"({low:.2f}–{high:.2f})" in option.speedup


def test_summary_has_no_intervals_of_few_seeds() -> None:
    runs = [*repeated("serial", [8.0, 8.1]), *repeated("all_reduce", [4.0, 4.1], nodes=2)]
    for line in lines(summary_csv(a_comparison(*runs))):
        assert line["time_s"]
        assert not any(line[name] for name in line if name.endswith(("_low", "_high")))


def test_times_of_the_summary_are_on_the_named_clock() -> None:
    runs = [*repeated("serial", around(8.0), cores=2), *repeated("ddp", around(6.0), nodes=4, cores=2)]
    clusters = [in_cluster_time(run, 8.0 if run.run.nodes == 1 else 2.0) for run in runs]
    serial, fast = lines(summary_csv(a_comparison(*runs, clusters=clusters)))
    assert serial["clock"] == fast["clock"] == "cluster"
    assert (float(fast["time_s"]), float(fast["speedup"])) == pytest.approx((2.0, 4.0))

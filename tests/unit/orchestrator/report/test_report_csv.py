"""Mistakes in the CSV files: columns without a meaning, on which clock a time is, intervals of speedups."""

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
def test_every_column_is_explained_and_filled_unless_it_says_when_it_is_empty(
    file: str, golden: Comparison
) -> None:
    text = WRITERS[file](golden)
    header = next(csv.reader(StringIO(text)))
    explained = [entry for entry in lines(columns_csv()) if entry["file"] == file]
    assert header == [entry["column"] for entry in explained]
    assert len(set(header)) == len(header)
    described: Sequence[CsvColumn[Any]] = DICTIONARY[file]
    for column in described:
        assert column.meaning
        assert "|" not in column.meaning
        for ending, unit in UNITS_IN_NAMES.items():
            if column.name.endswith(ending) and not column.name.endswith(("per_s", "warm_up_epochs")):
                assert column.unit == unit
    always = [each.name for each in described if not each.empty and not each.name.startswith("cluster_")]
    for line in lines(text):
        if line.get("status", line.get("state", "ok")) == "ok":
            assert not [name for name in always if line[name] == ""]


def test_each_quantity_is_described_once() -> None:
    """Its entry makes its column in results.csv, those in tables, and its comparison."""
    names = ("GROUPS", "CERTIFICATES", "MODEL_PARTITION", "CONTAINERS", "RUNS")
    titles = {column.key: column.title for table in names for column in getattr(columns, table)}
    described = {column.name: column for column in DICTIONARY["results.csv"]}
    for name, quantity in QUANTITIES.items():
        assert quantity.name == name
        assert name in described or name in titles or name in COMPARED_ONLY
        assert not quantity.meaning or described[name].meaning == quantity.meaning
        assert name not in titles or titles[name] == quantity.title


def test_summary_has_a_line_per_configuration() -> None:
    fast = repeated("all_reduce", around(4.0, 0.1), nodes=2, processes_per_node=2, transport="gloo")
    gone: dict[str, Any] = {"nodes": 2, "status": "failed", "cause": "gone"}
    others = [a_run("ddp", **gone), a_run("gossip", nodes=2), a_run("gossip", seed=1, **gone)]
    found = lines(summary_csv(a_comparison(*repeated("serial", around(8.0, 0.1)), *fast, *others)))
    states = [(line["state"], line["seeds"], line["nodes"], line["ranks"]) for line in found]
    assert states == [
        ("ok", "5", "1", "1"),
        ("ok", "5", "2", "4"),
        ("failed", "0", "2", "2"),
        ("partly", "1", "2", "2"),
    ]
    for name in ("time_s", "speedup"):
        assert float(found[1][f"{name}_low"]) < float(found[1][name]) < float(found[1][f"{name}_high"])
    assert float(found[1]["time_s"]) == pytest.approx(4.0, rel=1e-3)
    assert not any(found[2][name] for name in found[2] if name.startswith(("time", "speed", "accuracy")))


@pytest.mark.parametrize(("nodes", "time"), [(2, 5.0), (4, 4.0)])
def test_a_speedup_has_one_interval(nodes: int, time: float) -> None:
    """That of the comparison with serial: in the findings, the verdict, the table and summary.csv."""
    comparison = a_comparison(
        *repeated("serial", around(8.0, 0.4)),
        *repeated("all_reduce", around(5.0, 0.2), nodes=2),
        *repeated("all_reduce", around(4.0, 0.2), nodes=4),
        *repeated("ddp", around(4.5, 0.2), nodes=4),
        *repeated("serial", around(50.0, 0.4), checkpoint_epochs=1),  # which takes longer
        *repeated("gossip", [4.0, 4.1], nodes=4),  # few seeds
    )
    claims = asked_by(comparison).decided()
    at, group = next(
        (at, each)
        for at, each in enumerate(comparison.groups)
        if (each.strategy, each.shape.nodes) == ("all_reduce", nodes)
    )
    summary = lines(summary_csv(comparison, claims))
    assert not any(summary[-1][name] for name in summary[-1] if name.endswith(("_low", "_high")))
    low, high = float(summary[at]["speedup_low"]), float(summary[at]["speedup_high"])
    assert low < 8.0 / time < high
    # No narrower than what sessions alone make of it.
    assert high / low > exp(2 * 1.96 * sqrt(2) * BETWEEN_SESSIONS)
    if nodes == 4:  # the only number of nodes at which findings compare with serial
        (found,) = findings_of(comparison, "fastest")
        assert found.data["speedup_interval"] == pytest.approx((low, high))
    shown = cells(columns.with_speedup_intervals(speedup_intervals(comparison, claims)), [group])
    assert shown[0]["speedup_interval"] == f"{low:.2f}–{high:.2f}"
    options = {(each.name, each.shape[0]): each.speedup for each in verdicts_of(comparison)[0].options}
    assert f"({low:.2f}–{high:.2f})" in options["all_reduce over mpi", str(nodes)]


def test_times_of_the_summary_are_on_the_named_clock_and_those_of_epochs_on_the_wall() -> None:
    runs = [*repeated("serial", around(8.0), cores=2), *repeated("ddp", around(6.0), nodes=4, cores=2)]
    clusters = [in_cluster_time(run, 8.0 if run.run.nodes == 1 else 2.0) for run in runs]
    comparison = a_comparison(*runs, clusters=clusters)
    serial, fast = lines(summary_csv(comparison))
    assert serial["clock"] == fast["clock"] == "cluster"
    assert (float(fast["time_s"]), float(fast["speedup"])) == pytest.approx((2.0, 4.0))
    assert float(lines(epochs_csv(comparison))[-1]["train_s"]) == pytest.approx(6.0, rel=1e-3)

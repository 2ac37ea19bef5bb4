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
    FAILED,
    a_comparison,
    a_run,
    around,
    cells,
    finding_of,
    in_cluster_time,
    repeated,
    verdicts_of,
)

WRITERS = {"summary.csv": summary_csv, "results.csv": results_csv, "epochs.csv": epochs_csv}
UNITS_IN_NAMES = {"_s": "s", "_mib": "MiB", "_bits": "bits", "_epochs": "epochs"}


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@pytest.mark.parametrize("file", DICTIONARY)
def test_every_column_is_explained_and_filled_unless_it_says_when_it_is_empty(file: str) -> None:
    text = WRITERS[file](golden_comparison())
    header = next(csv.reader(StringIO(text)))
    assert header == [entry["column"] for entry in lines(columns_csv()) if entry["file"] == file]
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
        assert name in described or name in titles or name == "averaging_gain"  # which is only compared
        assert not quantity.meaning or described[name].meaning == quantity.meaning
        assert name not in titles or titles[name] == quantity.title


def test_summary_has_a_line_per_configuration() -> None:
    serial = repeated("serial", around(8.0, 0.1), cores=1)
    fast = repeated("all_reduce", around(9.0, 0.1), nodes=2, processes_per_node=2, cores=1)
    lost = [a_run(name, nodes=2, seed=1, **FAILED) for name in ("ddp", "gossip")]
    others = [lost[0], a_run("gossip", nodes=2), lost[1]]
    clusters = [in_cluster_time(run, run.train_s) for run in serial]
    clusters += [in_cluster_time(run, run.train_s - 5) for run in fast]
    found = lines(summary_csv(a_comparison(*serial, *fast, *others, clusters=clusters)))
    assert [(line["state"], line["seeds"], line["nodes"], line["ranks"]) for line in found] == [
        ("ok", "5", "1", "1"),
        ("ok", "5", "2", "4"),
        ("failed", "0", "2", "2"),
        ("partly", "1", "2", "2"),
    ]
    assert [line["clock"] for line in found[:2]] == ["cluster"] * 2
    assert (float(found[1]["time_s"]), float(found[1]["speedup"])) == pytest.approx((4.0, 2.0), rel=1e-3)
    for name in ("time_s", "speedup"):
        assert float(found[1][f"{name}_low"]) < float(found[1][name]) < float(found[1][f"{name}_high"])
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
    group = comparison.groups[nodes // 2]
    assert (group.strategy, group.shape.nodes) == ("all_reduce", nodes)
    summary = lines(summary_csv(comparison, claims))
    assert not any(summary[-1][name] for name in summary[-1] if name.endswith(("_low", "_high")))
    low, high = (float(summary[nodes // 2][f"speedup_{end}"]) for end in ("low", "high"))
    assert low < 8.0 / time < high
    # No narrower than what sessions alone make of it.
    assert high / low > exp(2 * 1.96 * sqrt(2) * BETWEEN_SESSIONS)
    if nodes == 4:  # the only number of nodes at which findings compare with serial
        interval = finding_of(comparison, "fastest").data["speedup_interval"]
        assert interval == pytest.approx((low, high))
    shown = cells(columns.with_speedup_intervals(speedup_intervals(comparison, claims)), [group])
    assert shown[0]["speedup_interval"] == f"{low:.2f}–{high:.2f}"
    options = {(each.name, each.shape[0]): each.speedup for each in verdicts_of(comparison)[0].options}
    assert f"({low:.2f}–{high:.2f})" in options["all_reduce over mpi", str(nodes)]

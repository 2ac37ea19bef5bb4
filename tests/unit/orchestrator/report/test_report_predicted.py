"""What a report says of predictions that are stored beside the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.figures.kind import Subject
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.columns import PREDICTED
from orchestrator.report.topics import FIGURES
from orchestrator.results.predictions import (
    Asked,
    Prediction,
    Predictions,
    read_predictions,
    stops_paying,
    write_predictions,
)
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, UnusableFile
from tests.unit.report_support import a_comparison, a_run, finding_of, findings_of

ASKED = Asked(nodes=[8, 64], link=None, node_speed=1, price_per_h=None)
SERIAL = a_run("serial", train_s=16.0, cores=64)
ONE_SHOT = a_run("one_shot", nodes=2, train_s=8.0, transport="gloo", cores=64)
ALL_REDUCE = a_run("all_reduce", nodes=2, train_s=10.0, transport="gloo", cores=64)
MEASURED = [ONE_SHOT, ALL_REDUCE]


def prediction(run: RunResult, nodes: int, seconds: float, **changes: Any) -> Prediction:
    """What follows from a run for so many nodes."""
    return Prediction.model_validate(
        {
            "configuration": f"{run.run.name_of('strategy')} over gloo: digits",
            "runs": [run.key],
            "nodes": nodes,
            "measured_nodes": 2,
            "seconds": seconds,
            "low_s": seconds / 1.5,
            "high_s": seconds * 1.5,
            "communication": 0.5,
            "speedup": 16 / seconds,
            "efficiency": 16 / seconds / nodes,
            "bytes_sent": 1e6,
            "state_bytes": 5000,
            "cost": None,
            "low_cost": None,
            "high_cost": None,
            "to_target": None,
            "spec": {},
            **changes,
        }
    )


FOUND = [
    prediction(ONE_SHOT, 8, 2.0),
    prediction(ONE_SHOT, 64, 1.96),
    prediction(ALL_REDUCE, 8, 5.0),
    prediction(ALL_REDUCE, 64, 2.5),
]


def with_predictions(asked: Asked = ASKED) -> Comparison:
    predictions = Predictions(asked=asked, made_from={}, forecasts=FOUND, refused=[], unused=[])
    return replace(a_comparison(SERIAL, *MEASURED), predictions=predictions)


def drawn(comparison: Comparison) -> list[dict[str, Any]]:
    """The points of the figure."""
    (workload,) = comparison.workloads
    subject = Subject(comparison.view(workload), comparison, Style(comparison.groups))
    chart = FIGURES["predicted"].draw(subject)
    assert chart is not None
    return max(chart.spec["datasets"].values(), key=len)


def test_the_most_nodes_come_first_and_overlapping_intervals_are_named() -> None:
    found = finding_of(with_predictions(), "predicted")
    assert found.first_sentence.replace("\xa0", " ").startswith(
        "On 64 nodes, one_shot over gloo is predicted to be the fastest"
    )
    assert "The intervals of all_reduce over gloo overlap" in found.text
    assert "More than 8 nodes do not pay with one_shot over gloo." in found.text.replace("\xa0", " ")
    assert {row.key for row in found.rows} == {run.key for run in MEASURED}
    assert [each["nodes"] for each in found.data["predictions"]] == [[8, 64], [8, 64]]


def test_the_figure_continues_measured_lines() -> None:
    points = [
        (each["series"], each["nodes"], each["how"], round(each["mean"], 9))
        for each in drawn(with_predictions())
    ]
    assert sorted(points) == [
        ("all_reduce · gloo", 2, "measured", 10.0),
        ("all_reduce · gloo", 8, "predicted", 5.0),
        ("all_reduce · gloo", 64, "predicted", 2.5),
        ("one_shot · gloo", 2, "measured", 8.0),
        ("one_shot · gloo", 8, "predicted", 2.0),
        ("one_shot · gloo", 64, "predicted", 1.96),
    ]


@pytest.mark.parametrize("changes", [{"link": "1gbit/1ms"}, {"node_speed": 2.0}])
def test_measured_times_are_not_drawn_beside_those_of_another_cluster(changes: dict[str, Any]) -> None:
    comparison = with_predictions(ASKED.model_copy(update=changes))
    assert {each["how"] for each in drawn(comparison)} == {"predicted"}


def test_a_report_without_predictions_has_no_such_chapter() -> None:
    comparison = a_comparison(SERIAL, *MEASURED)
    assert not findings_of(comparison, "predicted")
    (workload,) = comparison.workloads
    subject = Subject(comparison.view(workload), comparison, Style(comparison.groups))
    assert FIGURES["predicted"].draw(subject) is None


def test_cells_have_the_interval_in_small_print() -> None:
    cells = {column.key: column.cell(FOUND[0]) for column in PREDICTED}
    assert (cells["configuration"].text, cells["configuration"].detail) == ("one_shot over gloo", "digits")
    assert (cells["time"].text, cells["time"].detail) == ("2.00\xa0s", "90%: 1.33–3.00\xa0s")
    assert cells["to_target"].text == cells["cost"].text


def test_predictions_of_other_runs_are_not_shown() -> None:
    comparison = replace(
        a_comparison(SERIAL, *MEASURED), predictions_unusable="they were made from other runs"
    )
    found = finding_of(comparison, "predictions_unusable")
    assert found.caution
    assert "other runs" in found.text


def test_stored_predictions_are_read_again(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    assert read_predictions(paths) is None
    predictions = Predictions(asked=ASKED, made_from={"a": 1.5}, forecasts=FOUND, refused=[], unused=[])
    write_predictions(paths, predictions)
    assert read_predictions(paths) == predictions
    assert not predictions.outdated({"a": 1.5})
    assert predictions.outdated({"a": 2.5})
    assert predictions.outdated({})


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 2}', '{"version": 1, "asked": {"nodes": [1e9]}}', "\udcff"]
)
def test_damaged_predictions_are_refused(content: str, tmp_path: Path) -> None:
    SweepPaths(tmp_path).predictions.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UnusableFile):
        read_predictions(SweepPaths(tmp_path))


def test_nodes_stop_paying_where_no_larger_number_is_faster() -> None:
    times = {2: 5.1, 4: 2.7, 8: 1.65, 16: 1.425, 32: 1.9125}
    found = [prediction(ONE_SHOT, nodes, seconds) for nodes, seconds in times.items()]
    assert stops_paying(found) == 16
    assert stops_paying(found[:3]) is None

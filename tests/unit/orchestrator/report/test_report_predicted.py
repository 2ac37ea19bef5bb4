"""Mistakes in predictions of a report: measured or predicted, intervals that overlap, what is outdated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.model.comparison import Comparison, read_comparison
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
from orchestrator.results.store import SweepPaths, UnusableFile, write_atomic
from tests.unit.report_support import (
    a_comparison,
    a_record,
    a_run,
    beside_load,
    finding_of,
    points,
    subject_of,
)

ASKED = Asked(nodes=[8, 64], link=None, node_speed=1, price_per_h=None)
SERIAL = a_run("serial", train_s=16.0, cores=64)
ONE_SHOT = a_run("one_shot", nodes=2, train_s=8.0, transport="gloo", cores=64)
ALL_REDUCE = a_run("all_reduce", nodes=2, train_s=10.0, transport="gloo", cores=64)


def prediction(run: RunResult, nodes: int, seconds: float, **changes: Any) -> Prediction:
    """What follows from a run for so many nodes."""
    fields = {
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
        **dict.fromkeys(("cost", "low_cost", "high_cost", "to_target")),
        "spec": {},
    }
    return Prediction.model_validate({**fields, **changes})


FOUND = [
    *(prediction(ONE_SHOT, nodes, seconds) for nodes, seconds in ((2, 7.0), (8, 2.0), (64, 1.96))),
    *(prediction(ALL_REDUCE, nodes, seconds) for nodes, seconds in ((8, 5.0), (64, 3.0))),
]


def with_predictions(made_from: dict[str, float] | None = None, **asked: Any) -> Predictions:
    request = ASKED.model_copy(update=asked)
    return Predictions(asked=request, made_from=made_from or {}, forecasts=FOUND, refused=[], unused=[])


def compared(predictions: Predictions) -> Comparison:
    return replace(a_comparison(SERIAL, ONE_SHOT, ALL_REDUCE), predictions=predictions)


def drawn(comparison: Comparison) -> list[tuple[str, int, str, float]]:
    """The points of the figure, in order."""
    chart = FIGURES["predicted"].draw(subject_of(comparison))
    return sorted((at["series"], at["nodes"], at["how"], round(at["mean"], 9)) for at in points(chart))


def test_the_most_nodes_come_first_and_overlapping_intervals_are_named() -> None:
    """Those on 64 nodes are 1.31 to 2.94 s, and 2.00 to 4.50 s; on 8, 1.33 to 3.00 s and 3.33 to 7.50 s."""
    text = finding_of(compared(with_predictions()), "predicted").text.replace("\xa0", " ")
    assert text.startswith("On 64 nodes, one_shot over gloo is predicted to be the fastest: 1.96 s")
    at_64, _, at_fewer = text.partition("On 8 nodes")
    assert "The intervals of all_reduce over gloo overlap" in at_64
    assert "overlap" not in at_fewer
    assert "More than 8 nodes do not pay with one_shot over gloo." in text


def test_the_figure_continues_lines_beyond_what_was_measured() -> None:
    shown = {"all_reduce": {2: 10.0, 8: 5.0, 64: 3.0}, "one_shot": {2: 8.0, 8: 2.0, 64: 1.96}}
    assert drawn(compared(with_predictions())) == [
        (f"{name} · gloo", nodes, "measured" if nodes == 2 else "predicted", seconds)
        for name, times in shown.items()
        for nodes, seconds in times.items()
    ]
    for asked in ({"link": "1gbit/1ms"}, {"node_speed": 2.0}):  # another cluster
        assert [how for _, _, how, _ in drawn(compared(with_predictions(**asked)))] == ["predicted"] * 5


def test_predictions_of_other_runs_are_not_shown_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    paths, runs = SweepPaths(tmp_path), [SERIAL, ONE_SHOT]
    write_atomic(paths.record, a_record(runs).model_dump_json())
    for run in runs:
        write_atomic(paths.run(run.key).result, run.model_dump_json())
    assert read_predictions(paths) is None
    made_from = {run.key: run.started_at for run in runs}
    for stored, shown in ((made_from, True), ({**made_from, SERIAL.key: 1.0}, False), ({}, False)):
        predictions = with_predictions(stored)
        write_predictions(paths, predictions)
        assert read_predictions(paths) == predictions
        found = read_comparison(paths)
        assert found.predictions == (predictions if shown else None)
        assert found.predictions_unusable == ("" if shown else "they were made from other runs")
    assert finding_of(found, "predictions_unusable").caution
    write_predictions(paths, with_predictions(made_from))
    write_atomic(paths.run(SERIAL.key).result, beside_load(SERIAL, 0.9).model_dump_json())
    assert read_comparison(paths).predictions is None
    for content in (b"{", b"[]", b'{"version": 2}', b"\xff"):
        paths.predictions.write_bytes(content)
        with pytest.raises(UnusableFile):
            read_predictions(paths)


def test_nodes_stop_paying_where_no_larger_number_is_faster() -> None:
    times = {2: 5.1, 4: 2.7, 8: 2.69, 16: 1.425, 32: 1.9125}  # 8 is hardly faster, and 16 is
    found = [prediction(ONE_SHOT, nodes, seconds) for nodes, seconds in times.items()]
    assert stops_paying(found[::-1]) == 16
    assert stops_paying(found[:2]) is None

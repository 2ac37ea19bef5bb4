"""Mistakes in the numbers of figures: a mark of another field, a value beside another name, a wrong sign,
reference, order or mean, tiles of several ranks, shades that begin elsewhere, and text too pale to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.report.figures import label_maps, maps, theme
from orchestrator.report.figures.chart import Chart
from orchestrator.report.formats import JOIN
from orchestrator.report.quantities.data_partition import partition_summary_of
from orchestrator.report.topics import FIGURES, stragglers
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_partitions import with_labels
from tests.unit.orchestrator.report.test_report_topics import waiting
from tests.unit.report_support import (
    a_comparison,
    a_pipeline,
    a_run,
    layers,
    records_of,
    repeated,
    subject_of,
)

approx = pytest.approx
POSITIONS = ("x", "x2", "y", "y2", "opacity", "text")


def figure(kind: str, *runs: RunResult) -> Chart:
    """The figure of the first workload."""
    comparison = a_comparison(*runs)
    chart = FIGURES[kind].draw(subject_of(comparison))
    assert chart is not None
    return chart


def marks(chart: Chart) -> set[str]:
    """Each mark with the fields that place it: `rule low high name`."""
    found = set()
    for layer in layers(chart.spec):
        channels = [layer.get("encoding", {}).get(channel, {}) for channel in POSITIONS]
        fields = [each["field"] for each in channels if isinstance(each, dict) and "field" in each]
        found.add(" ".join([layer["mark"]["type"], *fields]))
    return found


def over_link(strategy: str, mbit: int, train_s: float) -> RunResult:
    fields: dict[str, Any] = {"link": {"bandwidth_mbit": mbit}, "runtime": "docker", "transport": "gloo"}
    return a_run(strategy, nodes=2, train_s=train_s, **fields)


def split_in(strategy: str, partitioner: str, accuracy: float) -> RunResult:
    return a_run(strategy, nodes=2, accuracy=accuracy, partitioner=partitioner)


STRATEGIES = [("ddp", [2.0, 8.0], 0.7), ("gossip", [1.0, 9.0], 0.9), ("one_shot", [2.0, 4.5], 0.8)]
SEVERAL = [
    run for name, times, accuracy in STRATEGIES for run in repeated(name, times, nodes=2, accuracy=accuracy)
]
SPLITS = [("one_shot", "random_partition", 0.9), ("one_shot", "contiguous", 0.7)]
SPLITS += [("local_sgd", "random_partition", 0.8), ("local_sgd", "contiguous", 0.85)]
WAITED = [[0, 1, 4], [1, 0, 2], [3, 1, 0]]  # seconds of 10
FIGURE_NUMBERS: dict[str, tuple[list[RunResult], set[str], str, list[tuple[Any, ...]]]] = {
    # the runs, marks with their fields, and numbers of records in their order
    "bubbles": (
        [a_pipeline(more={"micro_batches": 8}), a_pipeline()],
        {"rule low high name", "tick beside name", "point mean name"},
        "mean low high beside",
        [(0.5, 0.5, 0.5, 1 / 9), (0.5, 0.5, 0.5, 1 / 5)],
    ),
    "split_points": (
        [a_pipeline(name, step_s=step) for name, step in (("conv2", 0.02), ("relu1", 0.03), ("fc2", 0.05))],
        {"rule low high name", "tick beside name", "point mean name"},
        "name mean beside",  # of the busy times of both stages
        [(name, 3 / 90, 1 / 90) for name in ("relu1", "conv2", "fc2")],
    ),
    "phases": (
        [a_run(), *SEVERAL[4:]],
        {"bar amount name shade", "text end name text"},
        "series end text",
        [("serial", 8, "8.00 s"), ("one_shot · mpi", 3, "3.00 s, 0%")],
    ),
    "strategies": (
        [*SEVERAL, a_run(bytes_sent=0.0)],
        {"rule low high name", "point mean name", "text name written"},
        "series mean written",
        [
            ("serial", 8, "8.00 s"),
            ("gossip · mpi", 3, "3.00 s"),
            ("one_shot · mpi", 3, "3.00 s"),
            ("ddp · gloo", 4, "4.00 s"),
        ],
    ),
    "partitioners": (
        [split_in(*of) for of in SPLITS],
        {"rect column row amount", "text column row written"},
        "series written amount change",
        [
            ("one_shot · mpi", "90.0%", 0, "±0.0 points"),
            ("one_shot · mpi", "70.0%", 0.2, "−20.0 points"),
            ("local_sgd · mpi", "80.0%", 0, "±0.0 points"),
            ("local_sgd · mpi", "85.0%", 0, "+5.0 points"),
        ],
    ),
    "links": (
        [
            a_run(train_s=0.5, runtime="docker"),
            *(over_link(*of) for of in (("ddp", 10, 4.0), ("gossip", 10, 8.0), ("ddp", 99, 2.0))),
        ],
        {"rect column row amount", "text column row written"},
        "row column written slower amount",
        [
            ("serial", "10 Mbit/s", "0.500 s", "0.125 times", 0),
            ("ddp · gloo", "10 Mbit/s", "4.00 s", "1.00 times", 0),
            ("gossip · gloo", "10 Mbit/s", "8.00 s", "2.00 times", np.log(2)),
            ("serial", "99 Mbit/s", "0.500 s", "0.250 times", 0),
            ("ddp · gloo", "99 Mbit/s", "2.00 s", "1.00 times", 0),
        ],
    ),
    "labels": (
        [with_labels(a_run("ddp", nodes=2), [[9, 1], [10, 20]])],
        {"rect column row amount", "text column row written"},
        "row column amount share",
        [("0", "0", 9, "90.0%"), ("0", "1", 1, "10.0%"), ("1", "0", 10, "33.3%"), ("1", "1", 20, "66.7%")],
    ),
    "accuracy_over_time": (
        [a_run("one_shot", nodes=2, train_s=4.0, accuracy=0.75, own=[0.8, 0.8])],
        {"line train_s mean", "point train_s mean"},
        "train_s mean",
        [(2, 0.4), (4, 0.8), (4, 0.75)],  # the last is the average of the local models
    ),
    "stragglers": (
        [waiting(WAITED)],
        {"rect column row amount"},
        "row column amount",
        # In a tile, all that a rank waited for, mean over the waiting ranks.
        [("0–1", "0–1", 0.1), ("0–1", "2", 0.3), ("2", "0–1", 0.4), ("2", "2", 0)],
    ),
}


def plain(each: Any) -> Any:
    """A number with six digits, a text with plain spaces."""
    return each.replace(JOIN, " ") if isinstance(each, str) else float(f"{each:.6g}")


@pytest.mark.parametrize("kind", FIGURE_NUMBERS)
def test_each_mark_is_at_the_number_of_its_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "MOST_ROWS", 2)
    runs, drawn, fields, expected = FIGURE_NUMBERS[kind]
    chart, names = figure(kind, *runs), fields.split()
    assert drawn <= marks(chart)
    tables = [
        [tuple(plain(record[name]) for name in names) for record in records]
        for records in chart.spec["datasets"].values()
        if {*names} <= {*records[0]}
    ]
    assert [tuple(map(plain, each)) for each in expected] in tables


@pytest.mark.parametrize(("most", "start"), [(8, 6.0), (16, 8.0)])
def test_cores_are_shaded_from_between_the_ranks_that_share_them_and_those_that_do_not(
    most: int, start: float
) -> None:
    """In the middle of 4 and 8 ranks, or on a logarithmic axis of 4 and 16."""
    alone = a_run(cores=4)
    runs = [alone, *(a_run("ddp", nodes=at, train_s=8 / at, cores=4) for at in (2, 4, most))]
    shades = [each["nodes"] for each in records_of(figure("time", *runs)) if not each["series"]]
    assert shades == [approx(start)]
    ideal = [each for each in records_of(figure("speedup", *runs)) if each["series"] == "ideal"]
    assert [(each["nodes"], each["mean"]) for each in ideal] == [(1, 1), (most, most)]


def test_a_configuration_that_was_dropped_is_named_and_hollow_or_pale() -> None:
    subject = subject_of(a_comparison(a_run(), *SEVERAL))
    groups = [replace(each, dropped="why" * (each.strategy == "ddp")) for each in subject.view.groups]
    subject = replace(subject, view=replace(subject.view, groups=groups))
    dots, bars = (records_of(FIGURES[kind].draw(subject)) for kind in ("strategies", "phases"))
    assert {each["name"] for each in dots if each["dropped"]} == {"ddp · gloo, dropped"}
    assert {each["name"] for each in bars if each["shade"] < 1} == {"ddp · gloo, dropped"}


def test_a_map_says_how_parts_are_skewed() -> None:
    (row,) = a_comparison(FIGURE_NUMBERS["labels"][0][0]).rows
    summary = partition_summary_of(row)
    assert summary is not None
    # Of the first class 9 of 10 and 10 of 30, instead of 19 of 40.
    assert label_maps.describe(summary) == [
        "10–30, mean 20 samples each",
        "coverage 100.0%, overlap 0.0%",
        "JS 0.005, max 0.010; EMD 0.57, max 0.85",
    ]


# Colours


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255


def contrast(*colours: np.ndarray) -> float:
    """Of WCAG 2."""
    linear = (np.where(each <= 0.04045, each / 12.92, ((each + 0.055) / 1.055) ** 2.4) for each in colours)
    darker, lighter = sorted(float(each @ [0.2126, 0.7152, 0.0722]) for each in linear)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_marks_can_be_told_from_the_page(mode: int) -> None:
    colours = {token: rgb(pair[mode]) for token, pair in theme.TOKENS.items()}
    ink, paper = colours["ink"], colours["paper"]
    for text in ("ink", "soft"):
        assert all(contrast(colours[text], colours[behind]) >= 4.5 for behind in ("paper", "shade")), text
    cells = ("map", "wait_map", "loss")
    for token in cells:  # which have numbers
        shaded = maps.OPACITY * colours[token] + (1 - maps.OPACITY) * paper
        assert contrast(ink, shaded) >= 4.5, token
    series = [f"s{at}" for at in range(theme.SERIES_COLOURS)]
    for token in (*series, *cells, "serial", "axis"):
        assert contrast(colours[token], paper) >= 3, token

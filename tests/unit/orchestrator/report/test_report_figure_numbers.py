"""Mistakes in figures beside the golden report: tiles of several ranks, where shades begin, pale text."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.report.figures import grid, maps, theme
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import Subject
from orchestrator.report.figures.style import Style
from orchestrator.report.topics import FIGURES, stragglers
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_topics import waiting
from tests.unit.report_support import a_comparison, a_run, records_of

approx = pytest.approx


def figure(kind: str, *runs: RunResult) -> Chart:
    """The figure of the first workload."""
    comparison = a_comparison(*runs)
    view = comparison.view(comparison.workloads[0])
    chart = FIGURES[kind].draw(Subject(view, comparison, Style(comparison.groups)))
    assert chart is not None
    return chart


def test_a_tile_of_several_ranks_has_the_mean_of_those_that_wait_for_all_that_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stragglers, "MOST_ROWS", 2)
    records = records_of(figure("stragglers", waiting([[0, 1, 4], [1, 0, 2], [3, 1, 0]])))  # of 10 s
    assert [(each["waiting_ranks"], each["for_ranks"], each["share"]) for each in records] == [
        ("0–1", "0–1", 0.1),
        ("0–1", "2", 0.3),
        ("2", "0–1", 0.4),
        ("2", "2", 0),
    ]


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
    cells = {"map": maps.NUMBERED_OPACITY, "wait_map": stragglers.NUMBERED_OPACITY, "loss": grid.OPACITY}
    for token, opacity in cells.items():  # which have numbers
        assert contrast(ink, opacity * colours[token] + (1 - opacity) * paper) >= 4.5, token
    series = [f"s{at}" for at in range(theme.SERIES_COLOURS)]
    for token in (*series, *cells, "serial", "axis"):
        assert contrast(colours[token], paper) >= 3, token

"""Mistakes in sentences beside numbers: what they say was not measured, is the most, or holds for all runs."""

from __future__ import annotations

import pytest

from orchestrator.report.figures.sentences import figure_sentence, measured
from orchestrator.report.quantities import Q
from orchestrator.report.topics import find
from tests.unit.report_support import a_comparison, a_run, on_360_images, only_view

# Figures


@pytest.mark.parametrize("learned", ["none", "one"])
def test_what_did_not_learn_was_measured_nevertheless(learned: str) -> None:
    """Of the one that learned, no staleness is known."""
    stale = a_run("async_parameter_server", nodes=3, accuracy=0.1, staleness=[(1.0, 2), (1.5, 3)])
    other = a_run("all_reduce", nodes=3, accuracy=0.1 if learned == "none" else 0.9)
    comparison = a_comparison(*map(on_360_images, [stale, other]))
    sentence = figure_sentence((), measured(Q.staleness_mean), only_view(comparison), find(comparison))
    assert not sentence.endswith("was measured.")
    assert "learned" in sentence

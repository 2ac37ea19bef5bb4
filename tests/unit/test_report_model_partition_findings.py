"""What the report finds in runs whose model several nodes hold, in sentences."""

from __future__ import annotations

from orchestrator.report.findings import find
from orchestrator.report.model.comparison import Comparison
from tests.unit.report_support import SERIAL, a_comparison, a_pipeline, a_run, in_parts, repeated

WHOLE = in_parts(a_run(), [1000], activations=[7000])


def told(comparison: Comparison, topic: str) -> list[str]:
    return [finding.text for finding in find(comparison) if finding.topic == topic]


def test_the_least_memory_has_its_price() -> None:
    all_reduce = in_parts(a_run("all_reduce", nodes=2, train_s=1.8), [1000] * 2, activations=[3000] * 2)
    (text,) = told(a_comparison(WHOLE, all_reduce, a_pipeline()), "Memory")
    assert "pipeline split_points=[flatten] over gloo asked least of a node" in text
    assert "12.2\N{NO-BREAK SPACE}kB of weights" in text
    assert "64.2% of serial's 19.0\N{NO-BREAK SPACE}kB" in text
    assert "A step took 0.0500\N{NO-BREAK SPACE}s, against 0.0200\N{NO-BREAK SPACE}s in all_reduce" in text
    assert text.endswith(
        "and 0.0889\N{NO-BREAK SPACE}s in serial (a difference not repeated often enough "
        "to tell from chance)."
    )
    assert told(a_comparison(WHOLE, all_reduce), "Memory") == []


def test_ranks_that_were_threads_have_no_price() -> None:
    (text,) = told(a_comparison(WHOLE, a_pipeline(transport="memory")), "Memory")
    assert "A step took" not in text
    assert told(a_comparison(WHOLE, a_pipeline(transport="memory")), "Bubble") == []


def test_the_bubble_is_held_against_the_formula() -> None:
    more = a_pipeline(more={"micro_batches": 8})
    (text,) = told(a_comparison(WHOLE, a_pipeline(), more), "Bubble")
    assert (
        "50.0% in pipeline micro_batches=8 split_points=[flatten] over gloo (11.1% by the formula)" in text
    )
    assert "and 50.0% in pipeline split_points=[flatten] over gloo (20.0% by the formula)" in text
    assert "shared cores" not in text
    (text,) = told(a_comparison(WHOLE, a_pipeline(cores=1)), "Bubble")
    assert "here they shared cores" in text
    assert told(a_comparison(WHOLE, *repeated("all_reduce", [5.0], nodes=2)), "Bubble") == []


def test_the_best_cut_is_named_with_the_default() -> None:
    steps = {"relu1": 0.03, "conv2": 0.02, "fc2": 0.05}
    runs = [a_pipeline(name, step_s=step_s) for name, step_s in steps.items()]
    (text,) = told(a_comparison(*runs, a_pipeline("flatten", named=False, step_s=0.04)), "Cut")
    assert text.startswith("Of 4 cuts of pipeline over gloo in two, the one before conv2 was the fastest")
    assert "The slowest was before fc2: 0.0500" in text
    assert "The default is before flatten: 0.0400" in text
    assert told(a_comparison(*runs[:2]), "Cut") == []


def test_cuts_and_schedules_are_not_told_as_variants_of_accuracy() -> None:
    runs = [a_pipeline(), a_pipeline(more={"micro_batches": 8}), a_run("gossip", nodes=2)]
    variant = a_run({"name": "gossip", "graph": "complete"}, nodes=2)
    assert len(told(a_comparison(SERIAL, *runs, variant), "Parameters")) == 1
    assert told(a_comparison(SERIAL, *runs), "Parameters") == []


def test_fewer_steps_are_those_of_the_strategies_that_lose() -> None:
    serial = a_run(accuracy=0.95, steps=180)
    losing = a_run("one_shot", nodes=2, accuracy=0.8, steps=90)
    equal = a_run("pipeline", nodes=2, accuracy=0.95, steps=180)
    _, text = told(a_comparison(serial, losing, equal), "Accuracy")
    assert "a rank took 90 optimiser steps" in text

"""Page: what a report says, for report.html and report.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Claims
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.plots import Plot
from orchestrator.report.render.chapters import Chapter, chapters_of, fault_table
from orchestrator.report.render.legend import Entry, legend
from orchestrator.report.render.line_columns import PREDICTED, PUBLISHED
from orchestrator.report.render.questions import Part, Question, parts, questions
from orchestrator.report.render.summary import disturbance, one_line, seeds_line
from orchestrator.report.render.tables import Table, table_of
from orchestrator.report.render.workloads import WorkloadNames, workload_names
from orchestrator.report.topics.faults import fault_costs
from orchestrator.report.verdict import Evidence, Verdict, evidence, verdicts
from orchestrator.results.predictions import Asked
from orchestrator.results.store import SweepRecord
from orchestrator.results.times import time_line


@dataclass(frozen=True)
class Page:
    """What a report says.

    Attributes:
        summary: runs, dates and nodes, in a line. seeds: what they vary.
        disturbance: a text that says that other processes used the machine; empty if they did not.
        predicted: what more nodes would do. predicted_for: what these assume, as sentences.
        differences: the differences of a lab from what was published, by name.
        chapters: the tables of each workload.
        times: the time that the runs took, as a sentence without its end.
    """

    record: SweepRecord
    summary: str
    seeds: str
    disturbance: str
    verdicts: Sequence[Verdict]
    evidence: Sequence[Evidence]
    names: WorkloadNames
    questions: Sequence[Question]
    cautions: Sequence[Part]
    predicted: Table | None
    predicted_for: str
    published: Table | None
    differences: Sequence[tuple[str, str]]
    chapters: Sequence[Chapter]
    fault_costs: Table | None
    legend: Sequence[Entry]
    times: str


def page_of(
    comparison: Comparison, findings: Sequence[Finding], claims: Claims, plots: Sequence[Plot]
) -> Page:
    """What a report says of a comparison. claims: decided, those of the findings."""
    names = workload_names(comparison.workloads)
    predictions = comparison.predictions
    published, costs = published_lines(comparison), fault_costs(comparison)
    return Page(
        record=comparison.record,
        summary=one_line(comparison),
        seeds=seeds_line(comparison),
        disturbance=disturbance(findings),
        verdicts=verdicts(comparison, claims),
        evidence=evidence(comparison, findings),
        names=names,
        questions=questions(comparison, findings, plots, names),
        cautions=parts([finding for finding in findings if finding.caution], names),
        predicted=table_of("Predictions", PREDICTED, predictions.forecasts) if predictions else None,
        predicted_for=_assumed(predictions.asked) if predictions else "",
        published=table_of("Published and measured", PUBLISHED, published) if published else None,
        differences=differences(comparison),
        chapters=chapters_of(comparison, claims),
        fault_costs=fault_table(costs) if costs else None,
        legend=legend(comparison.groups),
        times=time_line(row.wall_result for row in comparison.rows) if comparison.rows else "",
    )


def _assumed(asked: Asked) -> str:
    """What predictions assume."""
    links = f"links of {asked.link}" if asked.link else "the links of the measured runs"
    speed = f", nodes of {asked.node_speed:g} times their speed" if asked.node_speed != 1 else ""
    price = f", at a price of {asked.price_per_h:g} for a node in an hour" if asked.price_per_h else ""
    return (
        f"Predicted from the finished runs of this sweep, over {links}{speed}{price}, for the same number "
        "of epochs. Each time has a 90% interval: 9 of 10 such runs take a time in it, if the error model "
        "is right. docs/prediction.md reports how often it was."
    )

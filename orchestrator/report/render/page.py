"""The sections of a report, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Claims
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.plots import Plot
from orchestrator.report.render import tree
from orchestrator.report.render.answer import verdict_section
from orchestrator.report.render.appendix import environments, strategies
from orchestrator.report.render.columns import PREDICTED, PUBLISHED
from orchestrator.report.render.questions import question_sections
from orchestrator.report.render.results import result_sections
from orchestrator.report.render.runs import all_runs, missing_runs
from orchestrator.report.render.summary import one_line, seeds_line
from orchestrator.report.render.tables import table_of
from orchestrator.report.render.terms import TERMS
from orchestrator.report.render.tools import chips, filters
from orchestrator.report.verdict import evidence, verdicts
from orchestrator.results.predictions import Asked
from orchestrator.results.store import SweepRecord
from orchestrator.results.times import time_line


def page_of(
    comparison: Comparison, findings: Sequence[Finding], claims: Claims, plots: Sequence[Plot]
) -> tree.Page:
    """What a report says of a comparison. claims: decided, those of the findings."""
    found = verdicts(comparison, claims)
    # That other processes used the machine, if they did: without it, the verdict would mislead.
    disturbed = "".join(finding.text for finding in findings if finding.kind == "disturbed")
    summary = " ".join(filter(None, [one_line(comparison), seeds_line(comparison)]))
    marks = tree.Marks(evidence(comparison, findings), summary)
    sections = [
        verdict_section(comparison, found, disturbed),
        tree.Section("evidence", "What it rests on", [marks], first=True),
        *question_sections(comparison, findings, plots),
        *_predictions(comparison),
        *_published(comparison),
        *result_sections(comparison, claims),
        tree.Section("runs", "Runs", [*_runs(comparison)], listed=True),
        *_appendices(comparison),
    ]
    return tree.Page(
        "Shardyard report",
        comparison.record.name,
        sections,
        found[0].workload.label if len(found) == 1 else "",
        chips(comparison.groups),
        filters(comparison),
        disturbed,
        [each.headline for each in found],
    )


def _predictions(comparison: Comparison) -> Iterator[tree.Section]:
    if predictions := comparison.predictions:
        table = table_of("Predictions", PREDICTED, predictions.forecasts)
        blocks = [*tree.texts(_assumed(predictions.asked)), table]
        yield tree.Section("predictions", "Predictions", blocks, listed=True)


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


def _published(comparison: Comparison) -> Iterator[tree.Section]:
    lines, lab = published_lines(comparison), comparison.record.lab
    if not lines and not lab:
        return
    about = [f"{lab.title}. Source: {lab.source}."] if lab else []
    if any(line.published_speedup for line in lines):
        about.append("Speedups are relative to one node of the same block.")
    if not lines:
        about.append("The sweep file has no published figures.")
    blocks = tree.texts(" ".join(about))
    heading = "Published and measured" if lines else "The published experiment"
    blocks += [table_of(heading, PUBLISHED, lines)] if lines else []
    facts = [tree.Fact(name, fact) for name, fact in differences(comparison)]
    blocks += [tree.Facts(facts)] if facts else []
    yield tree.Section("published", heading, blocks, listed=True)


def _runs(comparison: Comparison) -> Iterator[tree.Block]:
    if comparison.rows:
        yield from tree.texts(f"{time_line(row.wall_result for row in comparison.rows)}.")
    yield tree.Only("html", all_runs(comparison))
    if missing := [*missing_runs(comparison)]:
        yield tree.Only("markdown", [*tree.texts("Failed and pending:"), tree.Items(missing)])


def _appendices(comparison: Comparison) -> Iterator[tree.Section]:
    if comparison.groups:
        yield tree.Section("strategies", "Strategies", [strategies(comparison.groups)])
    known = environments(comparison) or tree.texts("Nothing was recorded.")
    yield tree.Section("environment", "Environment", [tree.Only("html", known)])
    yield tree.Section("sweep-file", "Sweep file", [tree.Only("html", [*_sweep_file(comparison.record)])])
    terms = tree.Facts([tree.Fact(term.title, term.definition, term.key) for term in TERMS], "")
    title = f"{len(TERMS)} terms; the text explains them under the pointer"
    folded = tree.Fold(title, [terms], kind="terms")
    yield tree.Section("glossary", "Glossary", [tree.Only("html", [folded])], listed=True)


def _sweep_file(record: SweepRecord) -> Iterator[tree.Block]:
    if record.overrides:
        overrides = [part for text in record.overrides for part in (", ", tree.Span("code", text))]
        yield tree.Text(["Overridden by ", *overrides[1:], "."])
    yield tree.Source(record.source)

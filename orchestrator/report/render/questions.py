"""The sections that answer a question each, with figures and with the findings on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.report.figures.sentences import figure_sentence
from orchestrator.report.findings.base import QUESTIONS, Finding
from orchestrator.report.formats import count
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import Workload
from orchestrator.report.plots import Plot
from orchestrator.report.render.figure_data import figure_data
from orchestrator.report.render.tree import Block, Box, Drawing, Findings, Fold, Heading, Said, Section
from orchestrator.report.render.workloads import WorkloadNames, workload_names


def question_sections(
    comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]
) -> Iterator[Section]:
    """Those that the sweep says something about, in order, and its cautions."""
    names = workload_names(comparison.workloads)
    anchors: set[str] = set()
    for key, heading in QUESTIONS.items():
        blocks: list[Block] = []
        drawn = [plot for plot in plots if plot.kind.question == key]
        several = len({plot.workload for plot in drawn}) > 1
        for workload in comparison.workloads:
            figures: list[Drawing] = []
            for plot in (plot for plot in drawn if plot.workload == workload):
                figure = _drawing(plot, comparison, findings, names.of(workload) if several else "")
                repeated = any(figure.sentence == above.sentence for above in figures)
                figures.append(figure._replace(sentence="") if repeated else figure)
            if figures:
                blocks += [Heading(names.of(workload))] if several else []
                blocks.append(Box("figures", figures))
        about = [each for each in findings if not each.caution and _question_of(each, plots) == key]
        if about:
            said = said_of(about, names, anchors)
            blocks.append(Fold(count(len(about), "finding"), said, not drawn, "all-findings"))
        if blocks:
            yield Section(f"question-{key}", heading, blocks, listed=True)
    if cautions := [finding for finding in findings if finding.caution]:
        yield Section("cautions", "Cautions", said_of(cautions, names, anchors), listed=True)


def _question_of(finding: Finding, plots: Sequence[Plot]) -> str:
    """The key of the question that a finding answers; partitioners have one if they have a figure."""
    compared = finding.question != "partitioners" or any(plot.kind.name == "partitioners" for plot in plots)
    return finding.question if compared else "data"


def said_of(findings: Sequence[Finding], names: WorkloadNames, anchors: set[str]) -> list[Block]:
    """The findings by workload and topic. anchors: those that findings above have; added to."""
    found: dict[Workload | None, dict[str, list[Said]]] = {}
    for finding in findings:
        runs: dict[str, list[tuple[int, str]]] = {}
        for row in finding.rows:
            parts = [row.series, row.partitioner_label, row.shape.label, *row.conditions]
            runs.setdefault(" · ".join(filter(None, parts)), []).append((row.seed, row.key))
        said = Said(finding.text, "" if finding.anchor in anchors else finding.anchor, runs)
        anchors.add(finding.anchor)
        found.setdefault(finding.workload, {}).setdefault(finding.topic, []).append(said)
    blocks: list[Block] = []
    for workload, topics in found.items():
        name = names.of(workload) if workload else ""
        blocks += [*([Heading(name)] if name else []), Findings(topics)]
    return blocks


def _drawing(plot: Plot, comparison: Comparison, findings: Sequence[Finding], workload: str) -> Drawing:
    sentence = figure_sentence(
        plot.kind.shows, plot.kind.otherwise, comparison.view(plot.workload), findings
    )
    label = ", ".join(filter(None, [plot.heading, workload]))
    return Drawing(plot, sentence, figure_data(plot.chart.spec, label), workload)

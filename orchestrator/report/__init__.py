"""The report: a comparison of the runs of a sweep. It reads result files only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.renderer import Renderer
from orchestrator.results.store import SweepPaths, check_no_link, write_atomic


@dataclass(frozen=True)
class Written:
    """What a report says in short.

    Attributes:
        disturbed: a sentence that says that other processes used the machine; empty if they did not.
        verdicts: what to choose, a sentence for each workload.
        unequal: a line for each condition in which compared configurations differ.
    """

    disturbed: str
    verdicts: Sequence[str]
    unequal: Sequence[str]


def write_report(paths: SweepPaths) -> Written:
    """Write the report's files beside the sweep's results.

    These are summary.csv, results.csv, epochs.csv, columns.csv, findings.json, report.md, report.html,
    plots/*.svg, cluster.json beside the result of each run with a cluster time, and timeline.json beside
    those whose timelines are drawn. Runs without a result are listed as pending. Figures of an earlier
    report that this one does not have are removed.
    Raises InputError for invalid files.
    """
    with Renderer() as renderer:
        return _write(paths, renderer)


def _write(paths: SweepPaths, renderer: Renderer) -> Written:
    # Imported here: most commands that import this package write no report.
    from orchestrator.report.figures.vega import svg_file
    from orchestrator.report.findings.base import findings_json
    from orchestrator.report.metrics.fairness import unequal_conditions
    from orchestrator.report.model.comparison import read_comparison
    from orchestrator.report.model.timelines import with_timelines
    from orchestrator.report.plots import draw
    from orchestrator.report.render import html, markdown
    from orchestrator.report.render.csv_tables import column_lines, epoch_lines, result_lines, summary_lines
    from orchestrator.report.render.page import page_of
    from orchestrator.report.topics import asked_by
    from orchestrator.results.csv_text import csv_text

    check_no_link(paths.plots)
    comparison = with_timelines(paths, read_comparison(paths))
    asked = asked_by(comparison)
    claims = asked.decided()
    plots = draw(comparison, claims)
    drawn = renderer.draw([plot.spec for plot in plots])
    findings = asked.findings(claims)
    page = page_of(comparison, findings, claims, plots)
    for file, lines in (
        (paths.summary, summary_lines(comparison, claims)),
        (paths.csv, result_lines(comparison)),
        (paths.epochs_csv, epoch_lines(comparison)),
        (paths.columns, column_lines()),
    ):
        write_atomic(file, csv_text(*lines))
    write_atomic(paths.findings, findings_json(findings))
    write_atomic(paths.markdown, markdown.render(page))
    drawings = drawn.result()
    for plot, svg in zip(plots, drawings.svgs, strict=True):
        write_atomic(paths.plots / f"{plot.name}.svg", svg_file(svg, plot.heading))
    for file in set(paths.plots.glob("*.svg")) - {paths.plots / f"{plot.name}.svg" for plot in plots}:
        file.unlink()
    write_atomic(paths.html, html.render(page, plots, drawings))
    return Written(page.disturbed, page.headlines, unequal_conditions(comparison))

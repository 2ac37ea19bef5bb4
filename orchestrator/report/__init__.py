"""The report: what the runs of a sweep say when they are set against each other. Reads files only."""

from __future__ import annotations

from orchestrator.results.store import SweepPaths, write_atomic


def write_report(paths: SweepPaths) -> None:
    """Write results.csv, epochs.csv, report.md, report.html and plots/*.svg beside the sweep's results.

    Runs that have no result yet are listed as pending. Can be called again at any time; figures of an
    earlier report that this one does not have are removed. Raises InputError for files that are unfit.
    """
    # Imported here: matplotlib takes longest of all to load, and most commands draw nothing.
    from orchestrator.report.figures import draw
    from orchestrator.report.findings import find
    from orchestrator.report.model.comparison import read_comparison
    from orchestrator.report.render import html, markdown
    from orchestrator.report.render.epochs_csv import epochs_csv
    from orchestrator.report.render.results_csv import results_csv

    comparison = read_comparison(paths)
    findings, plots = find(comparison), draw(comparison)
    write_atomic(paths.csv, results_csv(comparison))
    write_atomic(paths.epochs_csv, epochs_csv(comparison))
    for plot in plots:
        write_atomic(paths.plots / f"{plot.name}.svg", plot.svg)
    for file in set(paths.plots.glob("*.svg")) - {paths.plots / f"{plot.name}.svg" for plot in plots}:
        file.unlink()
    write_atomic(paths.markdown, markdown.render(comparison, findings, plots))
    write_atomic(paths.html, html.render(comparison, findings, plots))

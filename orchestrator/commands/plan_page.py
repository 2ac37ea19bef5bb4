"""A plan as a page: the answer, the layouts, what a step consists of, and what changes the choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.commands.plan import Planner, answer, best_by_link, heading, named, reasons
from orchestrator.errors import output_error
from orchestrator.layouts.advice import Option
from orchestrator.report import formats
from orchestrator.report.figures.bars import Stack, stacked_bars
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.labels import Workload
from orchestrator.report.plots import Plot
from orchestrator.report.render import html
from orchestrator.report.render.figure_data import figure_data
from orchestrator.report.render.tables import Column, numbers, table_of, words
from orchestrator.report.render.tree import (
    Cell,
    Drawing,
    Head,
    Item,
    Items,
    Line,
    Page,
    Section,
    Table,
    texts,
)
from orchestrator.report.renderer import Renderer
from orchestrator.report.statistics.spread import span
from orchestrator.results.store import write_atomic

# What a step consists of, and the colour of each part.
PARTS = {"work": "compute", "bubble": "wait", "communication": "communicate"}
STEP = FigureKind(
    "step",
    "time",
    "By formula: the middle of each range, with the communication that no work hides. Of executed layouts, "
    "communication includes all waiting.",
    lambda _: None,
)
MOST_BARS = 12


def write_page(planner: Planner, file: Path) -> None:
    """Write the plan as a page. Raises InputError if the file cannot be written."""
    plots = plots_of(planner)
    with Renderer() as renderer:
        drawings = renderer.draw([plot.spec for plot in plots]).result()
    try:
        write_atomic(file, html.render(page_of(planner, plots), plots, drawings))
    except OSError as error:
        raise output_error(file, error, "--page") from error


def plots_of(planner: Planner) -> list[Plot]:
    """What a step of the fastest layouts consists of; empty if no layout fits."""
    shown = planner.plan.fitting[:MOST_BARS]
    return [Plot("step", STEP, "", Workload.of(planner.asked.serial), _bars(shown))] if shown else []


def page_of(planner: Planner, plots: Sequence[Plot]) -> Page:
    """The plan as sections. plots: its figures."""
    found = planner.plan
    sections = [Section("answer", "Answer", texts(answer(planner)), first=True)]
    if found.fitting:
        about = texts("Times are those of formulas; layouts with a * were executed on virtual nodes.")
        sections.append(
            Section("layouts", "Layouts", [*about, _table(planner, found.fitting)], listed=True)
        )
    for plot in plots:
        drawing = Drawing(plot, "", figure_data(plot.chart.spec, plot.heading))
        sections.append(Section("step", "What a step consists of", [drawing], listed=True))
    if found.fitting:
        about = texts(
            "The fastest layout by formula, for each link, and for each number of samples a step."
        )
        sections.append(Section("changes", "What changes the choice", [*about, _map(planner)], listed=True))
    if found.too_large:
        sections.append(Section("large", "Too large for a node", [_table(planner, found.too_large)]))
    if left_out := [Item([reason]) for reason in reasons(planner)]:
        sections.append(Section("others", "Not in the tables", [Items(left_out)]))
    title, subtitle = heading(planner)
    return Page("Shardyard plan", title, sections, subtitle)


def _table(planner: Planner, options: Sequence[Option]) -> Table:
    columns: list[Column[Option]] = [
        words("layout", "Layout", lambda each: named(each.run) + (" *" if each.executed else "")),
        numbers(
            "step",
            "Step",
            lambda each: each.step_s[0],
            formats.seconds,
            lambda each: span(*each.step_s[1:], formats.seconds),
        ),
        numbers("speedup", "Speedup", planner.plan.speedup, formats.ratio),
        numbers("sent", "Sent by a rank in a step", lambda each: each.sent_bytes, formats.size),
        numbers("held", "Memory of a rank", lambda each: each.held_bytes, formats.size),
        numbers("real", "Step for real", lambda each: each.real_step_s, formats.seconds),
    ]
    return table_of("Layouts, the fastest first", columns, options, most=len(columns))


def _bars(options: Sequence[Option]) -> Chart:
    found = [
        Stack(f"{at}: {named(each.run)}", _parts(each), formats.seconds(each.step_s[0]))
        for at, each in enumerate(options, start=1)
    ]
    scale = {"domain": [*PARTS], "range": [colour(token) for token in PARTS.values()]}
    return stacked_bars(found, scale, {"title": "s"}, formats.seconds, "Seconds of a step, by part")


def _parts(option: Option) -> dict[str, float]:
    """Seconds of each part of a step."""
    if trial := option.executed:
        return {"work": trial.work_s, "communication": trial.communication_s}
    parts = option.formula
    ranges = {"work": parts.work_s, "bubble": parts.bubble_s, "communication": parts.exchange_s}
    return {name: sum(of) / 2 for name, of in ranges.items()}


def _map(planner: Planner) -> Table:
    """The fastest layout by formula, over other links and with other batches."""
    batches, best = best_by_link(planner)
    heads = [Head("link", number=False), *(Head(f"{batch:,}", number=False) for batch in batches)]
    lines = [
        Line([Cell(link), *(Cell(named(planner.plan.fitting[at - 1].run)) for at in places)])
        for link, places in best.items()
    ]
    return Table("The fastest by formula, by link and samples a step", heads, lines)

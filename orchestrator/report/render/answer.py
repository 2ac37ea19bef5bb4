"""The verdict: what to choose, and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.report.formats import ABSENT, count
from orchestrator.report.metrics.clock import error_of_difference
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.render.tables import Column, T, table_of, words
from orchestrator.report.render.tree import Block, Box, Cell, Fold, Heading, Section, Table, texts
from orchestrator.report.render.workloads import AS_STATED, WorkloadNames, workload_names
from orchestrator.report.verdict import Option, Verdict

NO_OPTION = Option("none", "", ABSENT, ABSENT, ABSENT, ABSENT, ABSENT)


def verdict_section(comparison: Comparison, found: Sequence[Verdict], disturbed: str) -> Section:
    """The verdict on each workload. disturbed: a sentence; without it, they would mislead."""
    names = workload_names(comparison.workloads)
    blocks = texts(disturbed, kind="disturbed", marked=True)
    blocks += texts(f"All: {names.shared}" if names.shared else "", kind="shared")
    if not found:
        blocks += texts("Nothing to compare: no strategy finished training.", kind="headline")
    if len(found) > 1:
        said = [_said(each, comparison, names) for each in found]
        blocks += [
            _first_options(found, names),
            Fold("The verdict on each workload, in words", said, kind="reasons"),
        ]
    else:
        blocks += [_said(each, comparison, None) for each in found]
    return Section("verdict", "Verdict", blocks, first=True)


def _said(verdict: Verdict, comparison: Comparison, names: WorkloadNames | None) -> Box:
    """A verdict in words, with its options. names: None for the only one."""
    blocks: list[Block] = []
    if names:
        name = names.of(verdict.workload)
        known = name in verdict.headline or name == AS_STATED
        blocks.append(Heading(name, "unseen" if known else ""))
    blocks += texts(verdict.headline, kind=f"headline{_length(verdict.headline, 110, 220)}", marked=True)
    blocks += texts(verdict.certainty, kind=f"certainty{_length(verdict.certainty, 400)}", marked=True)
    if verdict.options:
        table = _options(verdict, comparison.view(verdict.workload))
        blocks.append(Fold("Options", [table]) if names else table)
    return Box("verdict" if verdict.decided else "verdict undecided", blocks)


def _length(text: str, *limits: int) -> str:
    """A CSS class for a long text."""
    return ["", " long", " longest"][sum(len(text) > limit for limit in limits)]


def _options(verdict: Verdict, view: WorkloadView) -> Table:
    """The options: the surest first, those that were dropped below, and the reference last."""
    options = verdict.options
    stepwise = len({each.samples for each in options}) > 1
    own_seeds = len({each.seeds for each in options}) > 1
    to_target = view.workload.target_accuracy is not None
    time = "Time to target" if to_target else f"{view.clock.capitalize()} time"

    def option(each: Option) -> Cell:
        parts = [
            "reference" if each.state == "reference" else "",
            each.shape,
            f"{each.samples} samples a step" if stepwise else "",
            f"dropped at {count(each.seeds, 'seed')}" if each.state == "dropped" else "",
            each.note,
        ]
        return Cell(each.name, ", ".join(filter(None, parts)))

    columns = [
        Column("option", "Option", option, number=False),
        _means("chance", "Sure", lambda each: each.chance),
        _means("accuracy", "Accuracy", lambda each: each.accuracy),
        _means("difference", "Accuracy to serial", lambda each: each.difference),
        _means("time", time, lambda each: each.time),
        _means("speedup", "Speedup", lambda each: each.speedup),
        _means("sent", "Sent per rank", lambda each: each.sent),
        _means("seeds", "Seeds", lambda each: str(each.seeds) if own_seeds else ABSENT),
    ]
    error = f" and of {error_of_difference(view):.1%} in cluster time" if view.clock == "cluster" else ""
    caption = (
        "Means with 95% intervals over seeds; times and speedups also have errors of "
        f"{BETWEEN_SESSIONS:.1%} between sessions{error}. Where a finding compares with serial, the "
        "intervals are those of its comparison."
    )
    if any(option.chance != ABSENT for option in options):
        caption += f" Sure: the probability that no option is {verdict.better}."
    table = table_of(caption, columns, options, kind_of=lambda each: each.state, most=len(columns))
    return table._replace(kind="options", label=f"Options, {verdict.workload.label}")


def _first_options(found: Sequence[Verdict], names: WorkloadNames) -> Table:
    def option(of: Verdict) -> Cell:
        first, sure = _first(of), of.shown or ("decided" if of.decided else "undecided")
        return Cell(f"{first.name}, {first.shape}", sure) if of.options else Cell(first.name)

    def accuracy(of: Verdict) -> Cell:
        first = _first(of)
        return _mean(first.accuracy)._replace(detail=first.difference.strip(ABSENT))

    columns: list[Column[Verdict]] = [
        words("workload", "Workload", lambda each: names.of(each.workload)),
        Column("option", "First option", option, number=False),
        Column("accuracy", "Accuracy", accuracy),
        _means("time", "Time", lambda each: _first(each).time),
        _means("speedup", "Speedup", lambda each: _first(each).speedup),
    ]
    label = "The first option of each workload"
    caption = (
        f"{label}, as measured. Below it: how sure it is; its accuracy minus serial's; 95% intervals of "
        "its time, and of its speedup as compared with serial, over seeds and sessions."
    )
    return table_of(caption, columns, found)._replace(kind="options", label=label)


def _first(verdict: Verdict) -> Option:
    """The option that the headline names first."""
    return next((each for each in verdict.options if each.first), [*verdict.options, NO_OPTION][0])


def _means(key: str, title: str, text: Callable[[T], str]) -> Column[T]:
    """A column of texts that are means, or other numbers."""
    return Column(key, title, lambda item: _mean(text(item)))


def _mean(text: str) -> Cell:
    """A mean, with its interval in small print."""
    value, _, interval = text.partition(" (")
    return Cell(value, f"({interval}" if interval else "")

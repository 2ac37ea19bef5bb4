"""The verdict: what to choose, and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.report.formats import ABSENT
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.tables import Column, table_of
from orchestrator.report.render.tree import Block, Box, Cell, Fold, Heading, Section, Table, texts
from orchestrator.report.render.workloads import AS_STATED, WorkloadNames, workload_names
from orchestrator.report.verdict import Option, Verdict


def verdict_section(comparison: Comparison, found: Sequence[Verdict], disturbed: str) -> Section:
    """The verdict on each workload. disturbed: a sentence; without it, they would mislead."""
    names = workload_names(comparison.workloads)
    blocks = texts(disturbed, kind="disturbed")
    blocks += texts(f"All: {names.shared}" if names.shared else "", kind="shared")
    if not found:
        blocks += texts("Nothing to compare: no strategy finished training.", kind="headline")
    if len(found) > 1:
        said = [_said(each, names) for each in found]
        blocks += [
            _first_options(found, names),
            Fold("The verdict on each workload, in words", said, kind="reasons"),
        ]
    else:
        blocks += [_said(each, None) for each in found]
    return Section("verdict", "Verdict", blocks, first=True)


def _said(verdict: Verdict, names: WorkloadNames | None) -> Box:
    """A verdict in words, with its options. names: None for the only one."""
    blocks: list[Block] = []
    if names:
        name = names.of(verdict.workload)
        known = name in verdict.headline or name == AS_STATED
        blocks.append(Heading(name, "unseen" if known else ""))
    blocks += texts(verdict.headline, kind=f"headline{_length(verdict.headline, 110, 220)}", marked=True)
    blocks += texts(verdict.certainty, kind=f"certainty{_length(verdict.certainty, 400)}", marked=True)
    if verdict.options:
        table = _options(verdict)
        blocks.append(Fold("Options", [table]) if names else table)
    return Box("verdict" if verdict.decided else "verdict undecided", blocks)


def _length(text: str, *limits: int) -> str:
    """A CSS class for a long text."""
    return ["", " long", " longest"][sum(len(text) > limit for limit in limits)]


def _column(key: str, title: str, cell: Callable[[Option], Cell], number: bool = True) -> Column[Option]:
    return Column(key, title, cell, number)


def _options(verdict: Verdict) -> Table:
    chances = any(option.chance != ABSENT for option in verdict.options)
    caption = (
        "Means with 95% intervals. Those of times and speedups include differences between sessions, and "
        "the error of cluster time. Those of “− serial” and of speedup are corrected for the number of "
        "comparisons if a finding makes the comparison."
    )
    if chances:
        caption += f" Chance: the probability that no option is {verdict.better}."
    columns = [
        _column("option", "Option", lambda each: Cell(each.name, each.shape), number=False),
        _column("accuracy", "Accuracy", lambda each: _mean(each.accuracy)),
        _column("difference", "− serial", lambda each: _mean(each.difference)),
        _column("time", "Time", lambda each: _mean(each.time)),
        _column("speedup", "Speedup", lambda each: _mean(each.speedup)),
        _column("chance", "Chance", lambda each: Cell(each.chance)),
        *([] if chances else [_column("sent", "Sent per rank", lambda each: Cell(each.sent))]),
    ]
    table = table_of(caption, columns, verdict.options)
    return table._replace(kind="options", label=f"Options, {verdict.workload.label}")


def _first_options(found: Sequence[Verdict], names: WorkloadNames) -> Table:
    def first(
        key: str, title: str, cell: Callable[[Verdict, Option], Cell], none: str = ABSENT
    ) -> Column[Verdict]:
        return Column(
            key,
            title,
            lambda each: cell(each, each.options[0]) if each.options else Cell(none),
            none == ABSENT,
        )

    columns = [
        Column[Verdict]("workload", "Workload", lambda each: Cell(names.of(each.workload)), number=False),
        first(
            "option", "First option", lambda of, each: Cell(f"{each.name}, {each.shape}", _sure(of)), "none"
        ),
        first(
            "accuracy",
            "Accuracy",
            lambda _, each: _mean(each.accuracy)._replace(detail=each.difference.strip(ABSENT)),
        ),
        first("time", "Time", lambda _, each: _mean(each.time)),
        first("speedup", "Speedup", lambda _, each: _mean(each.speedup)),
    ]
    label = "The first option of each workload"
    caption = (
        f"{label}, as measured. Below it: how sure it is; its accuracy minus serial's; 95% intervals of "
        "its time, and of its speedup as compared with serial, over seeds and sessions."
    )
    return table_of(caption, columns, found)._replace(kind="options", label=label)


def _sure(verdict: Verdict) -> str:
    return verdict.shown or ("decided" if verdict.decided else "undecided")


def _mean(text: str) -> Cell:
    """A mean, with its interval in small print."""
    value, _, interval = text.partition(" (")
    return Cell(value, f"({interval}" if interval else "")

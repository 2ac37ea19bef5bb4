"""The verdict: what to choose, and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.report.formats import ABSENT, count
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS, error_of_difference
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.render.tables import Column, table_of
from orchestrator.report.render.tree import Block, Box, Cell, Fold, Heading, Section, Table, texts
from orchestrator.report.render.workloads import AS_STATED, WorkloadNames, workload_names
from orchestrator.report.verdict import Option, Verdict


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
    cluster = view.clock == "cluster"
    time = (
        "Time to target" if view.workload.target_accuracy is not None else f"{view.clock.capitalize()} time"
    )

    def name(each: Option) -> Cell:
        parts = [
            "reference" if each.state == "reference" else "",
            each.shape,
            f"{each.samples} samples a step" if stepwise else "",
            f"dropped at {count(each.seeds, 'seed')}" if each.state == "dropped" else "",
            each.note,
        ]
        return Cell(each.name, ", ".join(filter(None, parts)))

    columns: dict[str, tuple[str, Callable[[Option], Cell]]] = {
        "option": ("Option", name),
        "chance": ("Sure", lambda each: Cell(each.chance)),
        "accuracy": ("Accuracy", lambda each: _mean(each.accuracy)),
        "difference": ("Accuracy to serial", lambda each: _mean(each.difference)),
        "time": (time, lambda each: _mean(each.time)),
        "speedup": ("Speedup", lambda each: _mean(each.speedup)),
        "sent": ("Sent per rank", lambda each: Cell(each.sent)),
        "seeds": ("Seeds", lambda each: Cell(str(each.seeds) if own_seeds else ABSENT)),
    }
    error = f" and of {error_of_difference(view):.1%} in cluster time" if cluster else ""
    caption = (
        "Means with 95% intervals over seeds; times and speedups also have errors of "
        f"{BETWEEN_SESSIONS:.1%} between sessions{error}. Where a finding compares with serial, the "
        "intervals are those of its comparison."
    )
    if any(option.chance != ABSENT for option in options):
        caption += f" Sure: the probability that no option is {verdict.better}."
    table = table_of(
        caption,
        [Column(key, *column, number=key != "option") for key, column in columns.items()],
        options,
        kind_of=lambda each: each.state,
        most=len(columns),
    )
    return table._replace(kind="options", label=f"Options, {verdict.workload.label}")


def _first_options(found: Sequence[Verdict], names: WorkloadNames) -> Table:
    def first(
        key: str, title: str, cell: Callable[[Verdict, Option], Cell], none: str = ABSENT
    ) -> Column[Verdict]:
        return Column(
            key, title, lambda of: cell(of, _first(of)) if of.options else Cell(none), none == ABSENT
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


def _first(verdict: Verdict) -> Option:
    """The option that the headline names first."""
    return next((each for each in verdict.options if each.first), verdict.options[0])


def _sure(verdict: Verdict) -> str:
    return verdict.shown or ("decided" if verdict.decided else "undecided")


def _mean(text: str) -> Cell:
    """A mean, with its interval in small print."""
    value, _, interval = text.partition(" (")
    return Cell(value, f"({interval}" if interval else "")

"""What the report records of strategies, machines and software."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import Any

from orchestrator.report import formats
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row, node_limits
from orchestrator.report.model.split_points import one_per_split
from orchestrator.report.render.tree import (
    Block,
    Fact,
    Facts,
    Fold,
    Heading,
    Inline,
    Item,
    Items,
    Span,
    texts,
)


def strategies(groups: Sequence[Group]) -> Items:
    """The colours of each strategy, a summary, and its docstring under the name of its file."""
    style, shown = Style(groups), dict[str, list[Group]]()
    for group in one_per_split(groups):
        shown.setdefault(group.strategy, []).append(group)
    entries = []
    for of in shown.values():
        strategy = type(of[0].first.run.strategy)
        summary = cleandoc(sys.modules[strategy.__module__].__doc__ or "").partition("\n")[0]
        labels: list[str | Span] = []
        for label, colour in dict.fromkeys((each.strategy_label, style.look(each).colour) for each in of):
            labels += [", "] if labels else []
            labels += [Span("swatch", colour), Span("strong", label)]
        about = [" ".join(each.split()) for each in cleandoc(strategy.__doc__ or "").split("\n\n")]
        file = f"{strategy.__module__.replace('.', '/')}.py"
        line: Inline = [*labels, f": {summary.partition(': ')[2] or summary}"]
        entries.append(Item(line, Fold(file, texts(*about), kind="code")))
    return Items(entries, "legend")


def environments(comparison: Comparison) -> list[Block]:
    """Machine, software and node limits of each location, with its name if there are several."""
    blocks: list[Block] = []
    for name, facts in facts_of(comparison).items():
        blocks += [*([Heading(name)] if name else []), Facts(facts)]
    return blocks


def facts_of(comparison: Comparison) -> dict[str, list[Fact]]:
    """What is known of machine, software and node limits, by location."""
    rows_at: dict[str, list[Row]] = {}
    for row in comparison.rows:
        rows_at.setdefault(row.location, []).append(row)
    if len(rows_at) < 2:  # then sweep.json describes all, also before the first result
        known = dict.fromkeys(rows_at or [""], comparison.record.environment)
    else:
        known = {location: rows[-1].result.environment for location, rows in rows_at.items()}
    found = {location: [*_facts(environment)] for location, environment in known.items()}
    for location, rows in rows_at.items():
        if limits := node_limits(rows):
            found[location].append(Fact("node limits", ", ".join(limits)))
    return {location: facts for location, facts in found.items() if facts}


def _facts(environment: Mapping[str, Any], prefix: str = "") -> Iterator[Fact]:
    """Names and values; nested mappings are flattened with dots."""
    for name, value in environment.items():
        if isinstance(value, dict):
            yield from _facts(value, f"{prefix}{name}.")
        else:
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield Fact(f"{prefix}{name}", formats.ABSENT if value is None else written)

"""The columns of predictions, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report import formats
from orchestrator.report.formats import percent, seconds
from orchestrator.report.render.tables import Cell, Column
from orchestrator.report.statistics.spread import span
from orchestrator.results.predictions import Prediction


def _number(
    key: str, title: str, of: Callable[[Prediction], float | None], write: Callable[[float], str]
) -> Column[Prediction]:
    return Column(key, title, lambda each: Cell.of(of(each), write))


def _configuration(each: Prediction) -> Cell:
    name, _, workload = each.configuration.partition(": ")
    return Cell(name, workload)


def _time(each: Prediction) -> Cell:
    return Cell.of(each.seconds, seconds, f"90%: {span(each.low_s, each.high_s, seconds)}")


def _to_target(each: Prediction) -> Cell:
    if (target := each.to_target) is None:
        return Cell(formats.ABSENT)
    between = span(target.low_s, target.high_s, seconds)
    return Cell.of(target.seconds, seconds, f"90%: {between}; to {percent(target.accuracy)}")


PREDICTED: tuple[Column[Prediction], ...] = (
    Column("configuration", "Configuration", _configuration, number=False),
    _number("nodes", "Nodes", lambda each: each.nodes, formats.whole),
    Column("time", "Time", _time),
    _number("speedup", "Speedup", lambda each: each.speedup, formats.ratio),
    _number("efficiency", "Efficiency", lambda each: each.efficiency, percent),
    _number("communication", "Communication", lambda each: each.communication, percent),
    Column("to_target", "Time to target", _to_target),
    _number("bytes_sent", "Sent per rank", lambda each: each.bytes_sent, formats.size),
    _number("state_bytes", "State per rank", lambda each: each.state_bytes, formats.size),
    _number("cost", "Cost", lambda each: each.cost, lambda cost: f"{cost:.2g}"),
)

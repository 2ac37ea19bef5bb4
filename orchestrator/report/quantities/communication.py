"""What ranks exchange per step, and how far their replicas are apart."""

from __future__ import annotations

from orchestrator.report.formats import ratio, seconds, size
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.times import exchange_s


def _bytes_per_step(row: Row) -> float | None:
    sent = row.result.bytes_sent_per_rank
    return sent / row.steps if sent and row.steps and row.run.strategy.exchanges_in_steps else None


def _most_stale(group: Group, span: str) -> str:
    """The maximum of any seed, since a bound applies to it."""
    largest = group.over(lambda row: row.result.staleness_max)
    return f"max {largest.high:,.0f}" if largest else ""


def _exchange_s_per_step(row: Row) -> float | None:
    if not row.timed or not row.steps or row.shape.ranks == 1 or not row.run.strategy.exchanges_in_steps:
        return None
    return exchange_s(row) / row.steps


class Communication:
    """Bytes, exchanges and staleness."""

    bytes_sent_per_rank = Quantity(size, lambda row: row.result.bytes_sent_per_rank, "Sent per rank")
    bytes_sent_per_rank_per_step = Quantity(size, _bytes_per_step, "Sent per rank and step")
    exchange_s_per_step = Quantity(
        seconds, _exchange_s_per_step, "Exchange per step", ratio=True, timed=True
    )
    staleness_mean = Quantity(ratio, lambda row: row.result.staleness, "Staleness", detail=_most_stale)
    staleness_max = Quantity(ratio, lambda row: row.result.staleness_max)
    consensus_distance = Quantity(
        ratio,
        lambda row: row.result.epochs[-1].consensus_distance if row.result.epochs else None,
        "Consensus distance",
    )

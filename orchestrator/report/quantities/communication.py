"""What ranks exchange per step, and how far their replicas are apart."""

from __future__ import annotations

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import BYTES, RATIO, SECONDS, Quantity, named
from orchestrator.report.quantities.times import exchange_s

NO_EXCHANGE_IN_STEPS = "there is one rank, or steps exchange nothing"
NEVER_STALE = "gradients are never stale"


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


COMMUNICATION = named(
    bytes_sent_per_rank=Quantity(
        BYTES,
        lambda row: row.result.bytes_sent_per_rank,
        "Sent per rank",
        "counted payload, mean over ranks",
    ),
    bytes_sent_per_rank_per_step=Quantity(
        BYTES,
        _bytes_per_step,
        "Sent per rank and step",
        "`bytes_sent_per_rank` / `steps`",
        NO_EXCHANGE_IN_STEPS,
    ),
    exchange_s_per_step=Quantity(
        SECONDS,
        _exchange_s_per_step,
        "Exchange per step",
        "(`communicate_s` + `wait_s`) / `steps`",
        NO_EXCHANGE_IN_STEPS,
        ratio=True,
        timed=True,
    ),
    staleness_mean=Quantity(
        RATIO,
        lambda row: row.result.staleness,
        "Staleness",
        "updates by other ranks between a rank's pull and its push, mean over gradients",
        NEVER_STALE,
        detail=_most_stale,
    ),
    staleness_max=Quantity(
        RATIO,
        lambda row: row.result.staleness_max,
        meaning="as `staleness_mean`, the largest",
        empty=NEVER_STALE,
    ),
    consensus_distance=Quantity(
        RATIO,
        lambda row: row.result.epochs[-1].consensus_distance if row.result.epochs else None,
        "Consensus distance",
        "root mean square distance of the replicas from their mean, after the last epoch",
        "replicas do not differ",
    ),
)

"""Communication per step, and the distance between replicas."""

from __future__ import annotations

from orchestrator.report.model.rows import Row


def bytes_per_step(row: Row) -> float | None:
    """Mean bytes sent per rank / steps of the rank that took most; None if steps exchange nothing."""
    sent, steps = row.bytes_sent_per_rank, row.steps
    return sent / steps if sent and steps and row.run.strategy.exchanges_in_steps else None


def exchange_s_per_step(row: Row) -> float | None:
    """Mean seconds of communication and waiting per rank / steps of the rank that took most.

    None for a single rank, and if steps exchange nothing.
    """
    if not row.steps or row.shape.ranks == 1 or not row.run.strategy.exchanges_in_steps:
        return None
    return (row.seconds.get("communicate", 0.0) + row.seconds.get("wait", 0.0)) / row.steps


def communicate_s(row: Row) -> float | None:
    """Seconds of communication without waiting, mean over ranks; None for a single rank."""
    return row.seconds.get("communicate") if row.shape.ranks > 1 else None


def wait_s(row: Row) -> float | None:
    """Seconds of waiting for other ranks, mean over ranks; None for a single rank."""
    return row.seconds.get("wait") if row.shape.ranks > 1 else None


def consensus_distance(row: Row) -> float | None:
    """Root mean square distance of the replicas from their mean after the last epoch."""
    epochs = row.result.epochs if row.ok else []
    return epochs[-1].consensus_distance if epochs else None

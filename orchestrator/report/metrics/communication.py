"""What keeping replicas together costs in each step, and how far apart they are all the same."""

from __future__ import annotations

from orchestrator.report.model.rows import Row


def bytes_per_step(row: Row) -> float | None:
    """Bytes that a rank sent on average for each step of the rank that took most."""
    sent, steps = row.bytes_sent_per_rank, row.steps
    return sent / steps if sent and steps else None


def exchange_s_per_step(row: Row) -> float | None:
    """Seconds of communicating and waiting for each such step, mean over ranks."""
    if not row.steps or row.shape.ranks == 1:
        return None
    return (row.seconds.get("communicate", 0.0) + row.seconds.get("wait", 0.0)) / row.steps


def communicate_s(row: Row) -> float | None:
    """Seconds of moving bytes, waiting apart, mean over ranks; None where there is only one."""
    return row.seconds.get("communicate") if row.shape.ranks > 1 else None


def wait_s(row: Row) -> float | None:
    """Seconds of waiting for other ranks, mean over ranks; None where there is only one."""
    return row.seconds.get("wait") if row.shape.ranks > 1 else None


def consensus_distance(row: Row) -> float | None:
    """How far replicas were apart after the last epoch, before they were averaged for good."""
    epochs = row.result.epochs if row.ok else []
    return epochs[-1].consensus_distance if epochs else None

"""Straggler attribution: how long each rank waited for each other rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orchestrator.report.formats import percent, short
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity


@dataclass(frozen=True)
class Straggler:
    """The rank that the other ranks waited for most.

    share_of_time: the share of wall time that another rank waited for it, mean over the other ranks.
    share_of_waiting: its share of all waiting of all ranks. ranks: their number.
    """

    rank: int
    share_of_time: float
    share_of_waiting: float
    ranks: int


def wait_shares(row: Row) -> np.ndarray | None:
    """The share of its wall time that each rank waited for each other, shape (ranks, ranks).

    Row i, column j: rank i waits for rank j. None unless all ranks recorded it, and on runtimes whose nodes
    share no clock, since the attribution compares times of different ranks.
    """
    if not row.result.runtime_info.one_clock:
        return None
    seconds = [rank.wait_s_by_rank for rank in row.result.ranks if row.ok]
    if len(seconds) < 2 or any(by_rank is None or len(by_rank) != len(seconds) for by_rank in seconds):
        return None
    times = [rank.train_s for rank in row.result.ranks]
    if min(times) <= 0:
        return None
    shares: np.ndarray = np.array(seconds, dtype=float) / np.array(times)[:, None]
    return shares


def mean_wait_shares(group: Group) -> np.ndarray | None:
    """The mean of `wait_shares` over the seeds that recorded it."""
    known = [shares for row in group.ok_rows if (shares := wait_shares(row)) is not None]
    return np.mean(known, axis=0) if known else None


def straggler_of(shares: np.ndarray | None) -> Straggler | None:
    """The straggler of a run or group; None if no rank waited, or waiting was not recorded."""
    if shares is None or not shares.any():
        return None
    by_rank = shares.sum(axis=0)
    rank, ranks = int(by_rank.argmax()), len(shares)
    return Straggler(rank, float(by_rank[rank] / (ranks - 1)), float(by_rank[rank] / by_rank.sum()), ranks)


def _of_straggler(write: Callable[[float], str], field: str) -> Quantity:
    """A field of a run's `Straggler`."""
    return Quantity(write, lambda row: getattr(straggler_of(wait_shares(row)), field, None))


class Stragglers:
    """Fields of a run's `Straggler`."""

    straggler_rank = _of_straggler(short, "rank")
    straggler_share_of_time = _of_straggler(percent, "share_of_time")
    straggler_share_of_waiting = _of_straggler(percent, "share_of_waiting")

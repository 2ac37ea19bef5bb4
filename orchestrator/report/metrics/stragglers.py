"""Who waited for whom, as the ranks have noted it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row


def shares_of(row: Row) -> np.ndarray | None:
    """Share of its training time that each rank waited for each other, shape (ranks, ranks).

    Rows are ranks that wait, columns those that they wait for. None where it is not known of all ranks.
    """
    told = [rank.wait_s_by_rank for rank in row.result.ranks if row.ok]
    if len(told) < 2 or any(seconds is None or len(seconds) != len(told) for seconds in told):
        return None
    times = [rank.train_s for rank in row.result.ranks]
    if min(times) <= 0:
        return None
    shares: np.ndarray = np.array(told, dtype=float) / np.array(times)[:, None]
    return shares


def mean_shares(group: Group) -> np.ndarray | None:
    """The same as a mean over the seeds that know it."""
    known = [shares for row in group.ok_rows if (shares := shares_of(row)) is not None]
    return np.mean(known, axis=0) if known else None


@dataclass(frozen=True)
class Waited:
    """The rank that was waited for most, of so many.

    of_time: the share of training time that another rank waited for it, mean over the others. of_waiting:
    its share of all waiting of all ranks.
    """

    rank: int
    of_time: float
    of_waiting: float
    ranks: int


def most_waited_for(shares: np.ndarray | None) -> Waited | None:
    """None where nobody waited, or nothing is known of it."""
    if shares is None or not shares.any():
        return None
    by_rank = shares.sum(axis=0)
    rank, ranks = int(by_rank.argmax()), len(shares)
    return Waited(rank, float(by_rank[rank] / (ranks - 1)), float(by_rank[rank] / by_rank.sum()), ranks)

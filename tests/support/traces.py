"""Traces written by hand, for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.core.trace import RECORD, WORK_PHASES, Kind, Trace, TraceHeader


class TraceBuilder:
    """One rank's trace, record by record. Wall times are those of a rank that never waits."""

    def __init__(
        self,
        rank: int,
        size: int,
        transport: str = "gloo",
        groups: Sequence[Sequence[int]] = (),
        run: str = "run",
    ) -> None:
        self.rank = rank
        self._header = TraceHeader(
            run=run,
            rank=rank,
            size=size,
            transport=transport,
            mode="full",
            groups=[list(range(size)), *map(list, groups)],
            started_s=0.0,
            count=0,
        )
        self._records: list[tuple[int, int, int, int, float, float, float]] = []
        self._now = 0.0

    def add(
        self, kind: Kind, nbytes: int = 0, peer: int = -1, group: int = 0, cpu_s: float = 0.0
    ) -> TraceBuilder:
        entered, self._now = self._now, self._now + cpu_s
        self._records.append((kind, group, peer, nbytes, cpu_s, entered, self._now))
        return self

    def timed(
        self,
        kind: Kind,
        entered: float,
        left: float,
        nbytes: int = 0,
        peer: int = -1,
        group: int = 0,
        cpu_s: float = 0.0,
    ) -> TraceBuilder:
        """A record with wall times of its own."""
        self._records.append((kind, group, peer, nbytes, cpu_s, entered, left))
        return self

    def work(self, cpu_s: float, phase: str = "compute") -> TraceBuilder:
        return self.add(Kind.WORK, peer=WORK_PHASES.index(phase), cpu_s=cpu_s)

    def send(self, to: int, nbytes: int, index: int, group: int = 0) -> TraceBuilder:
        """A send that is complete before the next record."""
        return self.add(Kind.SEND, nbytes, to, group).add(Kind.SEND_WAIT, index, to, group)

    def trace(self, **fields: object) -> Trace:
        """fields: of the header, to replace."""
        records = np.array(self._records, RECORD)
        update = {"count": len(records), **fields}
        return Trace(self._header.model_copy(update=update), records)


def builders(size: int, transport: str = "gloo", **options: object) -> list[TraceBuilder]:
    """One for each rank of a run."""
    return [TraceBuilder(rank, size, transport, **options) for rank in range(size)]  # type: ignore[arg-type]


def traces(ranks: Sequence[TraceBuilder]) -> list[Trace]:
    return [rank.trace() for rank in ranks]

"""Tracer: records what one rank does during training. `trace.py` defines the records. Imports no torch.

Work needs no calls of its own. The clock books CPU seconds by phase; before each exchange, the tracer takes
what the phases of work have gained since its last record. So the work in a trace adds up to the CPU time in
the rank's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from threading import get_ident
from typing import Literal

import numpy as np

from trainer.core.trace import RECORD, Kind, Trace, TraceHeader

# One call packs a record. Filling a row of a numpy array takes ten times as long.
_PACK = Struct("<BHiQddd").pack
_DATA, _COMPUTE, _OTHER = range(3)  # indices into WORK_PHASES
_WORK = int(Kind.WORK)


class Tracer:
    """Collects the records of one rank, about 1 µs each, in a buffer of 39 bytes per record.

    Times are in wall seconds of the rank's clock. The rank's own thread calls all methods; other threads
    may call `exchange`, which then records no work, since the clock belongs to the rank's thread.

    Attributes:
        full: whether each interval of work is a record. Otherwise consecutive ones are one record, whose
            phase is the one with the most CPU time.
        complete: whether everything since `started_s` was recorded.
    """

    def __init__(
        self,
        cpu_seconds: Mapping[str, float],
        started_s: float,
        mode: Literal["steps", "full"],
        ranks: Sequence[int],
        max_records: int,
        complete: bool = True,
    ) -> None:
        """
        Args:
            cpu_seconds: the CPU seconds of the clock, by phase. The clock keeps adding to them.
            started_s: the time on the clock.
            ranks: the ranks of the run.
            max_records: further ones are dropped, and the trace is not complete.
            complete: whether training starts now, and not from a checkpoint.
        """
        self.full = mode == "full"
        self.complete = complete
        self._mode = mode
        self._cpu_seconds = cpu_seconds
        self._started = self._left = started_s
        self._groups: dict[tuple[int, ...], Sequence[int]] = {(): ranks}  # by path, as they are
        self._content = bytearray()
        self._max_bytes = max_records * RECORD.itemsize
        self._thread = get_ident()
        self._data = self._compute = self._other = 0.0  # CPU seconds that are recorded
        self.skip_work()

    @property
    def count(self) -> int:
        """The number of records so far."""
        return len(self._content) // RECORD.itemsize

    def group(self, ranks: Sequence[int], path: tuple[int, ...] = ()) -> int:
        """The number of the communicator of these ranks of the run. path: the splits that made it."""
        if path not in self._groups:
            self._groups[path] = ranks
        return [*self._groups].index(path)

    def exchange(
        self,
        kind: Kind,
        group: int,
        entered: float,
        left: float,
        size: int = 0,
        peer: int = -1,
        cpu_s: float = 0.0,
    ) -> None:
        """Record an exchange, and the work before it. size: the bytes of `Kind`."""
        if get_ident() == self._thread:
            self.work_until(entered)
        self._add(kind, group, peer, size, cpu_s, entered, left)
        self._left = left

    def mark(self, kind: Literal[Kind.EPOCH, Kind.STEP], at: float, number: int = -1) -> None:
        """Record that an epoch begins or a step ends, and the work before that."""
        self.work_until(at)
        self._add(kind, 0, number, 0, 0.0, self._left, self._left)

    def work_until(self, at: float) -> None:
        """Record the work that the clock has booked since the last record of work."""
        seconds = self._cpu_seconds
        data, compute, other = seconds["data"], seconds["compute"], seconds["other"]
        in_data, in_compute, in_other = data - self._data, compute - self._compute, other - self._other
        if (cpu_s := in_data + in_compute + in_other) <= 0:
            return
        phase = _DATA if in_data > in_other else _OTHER
        if in_compute >= in_data and in_compute >= in_other:
            phase = _COMPUTE
        left = max(at, self._left)
        self._add(_WORK, 0, phase, 0, cpu_s, self._left, left)
        self._data, self._compute, self._other, self._left = data, compute, other, left

    def work_elsewhere(self, cpu_s: float, entered: float, left: float) -> None:
        """Record work of phase compute that the clock has not booked yet."""
        self._add(_WORK, 0, _COMPUTE, 0, cpu_s, entered, left)
        self._left = left

    def skip_work(self) -> None:
        """Take the work that the clock has booked as recorded, by `work_elsewhere`."""
        seconds = self._cpu_seconds
        self._data, self._compute, self._other = seconds["data"], seconds["compute"], seconds["other"]

    def finished(self, at: float, run: str, rank: int, transport: str) -> Trace:
        """The trace, once the clock has stopped at `at`."""
        self.work_until(at)
        records = np.frombuffer(self._content, RECORD)
        paths = sorted(self._groups)  # on all ranks in the same order
        if paths != [*self._groups]:
            records = records.copy()
            records["group"] = np.array([paths.index(path) for path in self._groups])[records["group"]]
        header = TraceHeader(
            run=run,
            rank=rank,
            size=len(self._groups[()]),
            transport=transport,
            mode=self._mode,
            groups=[None, *(list(self._groups[path]) for path in paths[1:])],
            started_s=self._started,
            count=len(records),
            complete=self.complete,
        )
        return Trace(header, records)

    def _add(
        self, kind: int, group: int, peer: int, size: int, cpu_s: float, entered: float, left: float
    ) -> None:
        content, started = self._content, self._started
        if len(content) >= self._max_bytes:
            self.complete = False
            return
        # In one piece, because libraries hand over all-reduces from threads of their own.
        content += _PACK(kind, group, peer, size, cpu_s, entered - started, left - started)

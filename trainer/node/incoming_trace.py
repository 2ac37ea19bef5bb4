"""Check a rank's trace while it arrives: its header, its records, and how many bytes it has."""

from __future__ import annotations

import numpy as np

from trainer.core.record import checked, parse_object
from trainer.core.trace import (
    CHECKSUM_BYTES,
    MAX_HEADER_BYTES,
    RECORD,
    TraceHeader,
    TraceLimits,
    wrong_record,
)


class IncomingTrace:
    """How much of the file has arrived, and how much has to. Its reader checks the checksum."""

    def __init__(self, run: str, rank: int, max_bytes: int, limits: TraceLimits) -> None:
        """max_bytes: the largest size of the file; 0 if the run has no traces."""
        self._run, self._rank, self._max_bytes, self._limits = run, rank, max_bytes, limits
        self._rest = b""  # of the header, until all of it has arrived; then of a record
        self._received = 0
        self._size = 0  # that the header states
        self._header: TraceHeader | None = None
        self._checked = 0  # records
        self.complete = False

    def add(self, data: bytes, last: bool) -> None:
        """Check the next part. Raises ValueError if it does not belong to such a file."""
        if self.complete:
            raise ValueError("trace: more after its end")
        self._received += len(data)
        if self._received > self._max_bytes:
            raise ValueError(f"trace: more than {self._max_bytes} bytes")
        self._rest += data
        if self._header is None:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._header, self._rest = self._checked_header(line), rest
                self._size = len(line) + 1 + self._header.count * RECORD.itemsize + CHECKSUM_BYTES
            elif len(line) > MAX_HEADER_BYTES:
                raise ValueError(f"trace: no header in its first {MAX_HEADER_BYTES} bytes")
        if last and (self._header is None or self._received != self._size):
            raise ValueError(f"trace: {self._received} bytes, not as many as its header states")
        if self._header:
            if self._received > self._size:
                raise ValueError(f"trace: more than the {self._size} bytes that its header states")
            self._check_records(self._header)
        self.complete = last

    def _checked_header(self, line: bytes) -> TraceHeader:
        header = checked(TraceHeader, parse_object(line, "trace"), "trace")
        if (header.run, header.rank) != (self._run, self._rank):
            raise ValueError("trace: of another rank or run")
        return header

    def _check_records(self, header: TraceHeader) -> None:
        """Check the records that have arrived as a whole."""
        count = min(len(self._rest) // RECORD.itemsize, header.count - self._checked)
        records = np.frombuffer(self._rest, RECORD, count)
        if reason := wrong_record(header, records, self._limits, self._checked):
            raise ValueError(f"trace: {reason}")
        self._checked += count
        self._rest = self._rest[count * RECORD.itemsize :]

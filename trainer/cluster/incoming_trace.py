"""Check a rank's trace while it arrives: its header, and as many bytes as the header states."""

from __future__ import annotations

from trainer.core.record import checked, parse_object
from trainer.core.trace import CHECKSUM_BYTES, MAX_HEADER_BYTES, RECORD, TraceHeader


class IncomingTrace:
    """How much of the file has arrived, and how much has to. Its reader checks the records."""

    def __init__(self, run: str, rank: int, max_bytes: int) -> None:
        """max_bytes: of the file; 0 if the run has no traces."""
        self._run, self._rank, self._max_bytes = run, rank, max_bytes
        self._line = b""  # of the header, until all of it has arrived
        self._received = 0
        self._size: int | None = None  # that the header states
        self.complete = False

    def add(self, data: bytes, last: bool) -> None:
        """Check the next part. Raises ValueError if it does not belong to such a file."""
        if self.complete:
            raise ValueError("trace: more after its end")
        self._received += len(data)
        if self._received > self._max_bytes:
            raise ValueError(f"trace: more than {self._max_bytes} bytes")
        if self._size is None:
            self._line += data
            line, newline, _ = self._line.partition(b"\n")
            if newline:
                self._size, self._line = len(line) + 1 + self._bytes_after(line), b""
            elif len(line) > MAX_HEADER_BYTES:
                raise ValueError(f"trace: no header in its first {MAX_HEADER_BYTES} bytes")
        if last and self._received != self._size:
            raise ValueError(f"trace: {self._received} bytes, not as many as its header states")
        if self._size is not None and self._received > self._size:
            raise ValueError(f"trace: more than the {self._size} bytes that its header states")
        self.complete = last

    def _bytes_after(self, line: bytes) -> int:
        """How many bytes follow the header."""
        header = checked(TraceHeader, parse_object(line, "trace"), "trace")
        if (header.run, header.rank) != (self._run, self._rank):
            raise ValueError("trace: of another rank or run")
        return header.count * RECORD.itemsize + CHECKSUM_BYTES

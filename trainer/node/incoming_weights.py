"""Check rank 0's weights while they arrive: an .npy file with a vector of float32 and nothing else."""

from __future__ import annotations

import re

HEADER_BYTES = 128  # numpy.save pads the header of every vector to this length
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00v\x00\{'descr': '<f4', 'fortran_order': False, 'shape': \(([0-9]{1,12}),\), \} *\n"
)


class IncomingWeights:
    """How much of the file has arrived, and how much has to."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: the largest size of the file."""
        self._max_bytes = max_bytes
        self._header = b""
        self._received = 0
        self._size: int | None = None  # that the header states
        self._complete = False

    def add(self, data: bytes, last: bool) -> None:
        """Check the next part. Raises ValueError if it does not belong to such a file."""
        if self._complete:
            raise ValueError("weights: more after their end")
        self._received += len(data)
        self._complete = last
        if self._received > self._max_bytes:
            raise ValueError(f"weights: more than {self._max_bytes} bytes")
        if self._size is None:
            self._header += data[: HEADER_BYTES - len(self._header)]
            if len(self._header) == HEADER_BYTES:
                self._size = self._stated_size()
        if last and self._received != self._size:
            raise ValueError(f"weights: {self._received} bytes, not as many as their header states")
        if self._size is not None and self._received > self._size:
            raise ValueError(f"weights: more than the {self._size} bytes that their header states")

    def _stated_size(self) -> int:
        header = HEADER.fullmatch(self._header)
        if not header:
            raise ValueError("weights: not a vector of float32, as numpy.save writes it")
        size = HEADER_BYTES + 4 * int(header[1])
        if size > self._max_bytes:
            raise ValueError(f"weights: {size} bytes; allowed: at most {self._max_bytes}")
        return size

"""What is raised when an exchange fails, or is used wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommunicationError(Exception):
    """The transport failed, most often because a peer has ended. The message names the operation."""


class ExchangeError(Exception):
    """A strategy breaks a rule of exchanges. The message names the exchange, with file and line."""


@contextmanager
def communication_errors(doing: str) -> Iterator[None]:
    """Re-raise torch's RuntimeError, a page of C++ frames, as one line: "all-reduce failed: reason"."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise CommunicationError(f"{doing} failed: {reason}") from error

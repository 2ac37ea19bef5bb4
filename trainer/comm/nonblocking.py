"""Requests: exchanges that go on beside the computation, in the words of MPI and torch.distributed."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from trainer.comm.errors import CommunicationError
from trainer.core.clock import Clock, Span
from trainer.core.user_code import name_in_code

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = Path(__file__).parent.parent
HERE = str(Path(__file__).parent)


class Operation(ABC):
    """An exchange that a transport has started.

    Attributes:
        completed_s: when it was complete, in wall seconds of the clock; None: not known.
    """

    completed_s: float | None = None

    @abstractmethod
    def finish(self) -> Any:
        """Block until the exchange is complete. Returns what it brings. Raises CommunicationError."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `finish` returns at once. True, too, if it raises at once."""

    def watch(self, wall: Callable[[], float]) -> None:  # noqa: B027  (where a transport knows)
        """Note when the exchange is complete, in seconds of `wall`."""


class Finished(Operation):
    """An exchange that is complete. outcome: what it brings."""

    def __init__(self, outcome: Any = None) -> None:
        self._outcome = outcome

    def finish(self) -> Any:
        return self._outcome

    def done(self) -> bool:
        return True


class Posted(Operation):
    """A receive from a channel whose messages arrive in the order in which they were sent.

    Receives take messages in the order in which they were posted, whichever is waited for first.
    """

    def __init__(
        self, posted: deque[Posted], buffer: Tensor, take: Callable[[], Tensor], arrived: Callable[[], int]
    ) -> None:
        """
        Args:
            posted: The receives that have not taken their message yet, first to last.
            take: Blocks until there is a message, and returns it.
            arrived: The number of messages that `take` returns at once.
        """
        self._posted, self._buffer, self._take, self._arrived = posted, buffer, take, arrived
        posted.append(self)

    def finish(self) -> Tensor:
        while self in self._posted:
            self._posted[0]._buffer.copy_(self._take())
            self._posted.popleft()
        return self._buffer

    def done(self) -> bool:
        return self not in self._posted or self._posted.index(self) < self._arrived()


class Starter(Protocol):
    """What a request needs of its communicator."""

    clock: Clock
    outstanding: dict[int, Request]


class Request:
    """An exchange in progress.

    From the start to `wait`, the caller neither reads nor writes a buffer that receives, and does not write
    one that is sent. What `wait` returns belongs to the caller.
    """

    def __init__(
        self,
        comm: Starter,
        operation: Operation,
        kind: str,
        buffer: Tensor,
        then: Callable[[Any], Any] | None = None,
        record: Callable[[Span, float | None], None] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            kind: The method of the communicator; `send` and `recv` of messages.
            buffer: The transport uses its memory until the exchange is complete.
            then: Makes the result out of what the operation brings.
            record: Called with the span of the wait, and when the exchange was complete, if that is known.
            details: The other arguments of the method.
        """
        self.comm, self.kind, self.details = comm, kind, details or {}
        self.buffer: Tensor | None = buffer
        self._operation, self._then, self._record = operation, then, record
        self._result: Any = None
        self._started_at = _caller()
        comm.outstanding[id(self)] = self

    def wait(self) -> Any:
        """Block until the exchange is complete.

        Returns:
            What the exchange brings; the same tensor each time.

        Raises:
            CommunicationError: It failed. The message has the file and line of its start.
        """
        if self.comm.outstanding.pop(id(self), None) is None:
            return self._result
        with self.comm.clock.phase("communicate") as span:
            try:
                found = self._operation.finish()
            except CommunicationError as error:
                raise CommunicationError(f"{self}: {error}") from error
            self._result = self._then(found) if self._then else found
        if span.counted and self._record:
            self._record(span, self._operation.completed_s)
        self.buffer = self._then = self._record = None
        return self._result

    def done(self) -> bool:
        """Whether `wait` returns at once."""
        return id(self) not in self.comm.outstanding or self._operation.done()

    def __str__(self) -> str:
        """`iall_reduce started at mine.py:12`."""
        file, line = self._started_at
        return f"{self.kind} started at {_short(Path(file))}:{line}"


class Together(Operation):
    """Several requests as one. outcome: what they bring."""

    def __init__(self, requests: Sequence[Request], outcome: Any) -> None:
        self._requests, self._outcome = requests, outcome

    def finish(self) -> Any:
        wait_all(self._requests)
        return self._outcome

    def done(self) -> bool:
        return all(request.done() for request in self._requests)


def wait_all(requests: Iterable[Request]) -> list[Any]:
    """Wait for all of them. Returns their results."""
    return [request.wait() for request in requests]


def _caller() -> tuple[str, int]:
    """File and line of the code that uses the communicator."""
    frame: FrameType = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _short(path: Path) -> str:
    """The name of a file of a user, or of one in the package."""
    if found := name_in_code(path):
        return str(found)
    return str(path.relative_to(PACKAGE.parent)) if path.is_relative_to(PACKAGE) else path.name

"""Connections to the page: other users of the machine may open any number, and send nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 5.0  # for a whole header, from the start of a connection
MAX_WAITING = 64  # connections without a whole request; of more, the oldest is closed


class Connection(H11Protocol):
    """A connection that is closed if its request takes too long, or if too many others wait for one.

    uvicorn has no such limit. It answers with 503 if there are too many connections, whoever holds them.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._began = 0.0
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        waiting = [each for each in self.connections if isinstance(each, Connection) and not each.cycle]
        if len(waiting) >= MAX_WAITING:
            oldest = min(waiting, key=lambda each: each._began)
            self.connections.discard(oldest)  # now: uvicorn hears of its end after many others have begun
            oldest.transport.abort()
        super().connection_made(transport)
        self._began = self.loop.time()
        self._limit = self.loop.call_later(REQUEST_S, self._end_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit:
            self._limit.cancel()
        super().connection_lost(exc)

    def _end_waiting(self) -> None:
        if not self.cycle:  # no request has arrived
            self.transport.abort()

"""The line between a member and the head: one JSON object per line, each with its `kind`."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

PORT = 29400  # of the head; the run's own network is the only one that reaches it
LIMIT = 2**20  # bytes of a line, in memory while it arrives

Message = dict[str, Any]


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def peer(self) -> str:
        """The other end's address; empty when it has hung up already."""
        return str((self._writer.get_extra_info("peername") or [""])[0])

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message; to someone who is gone it is lost."""
        with suppress(ConnectionError):
            self._writer.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message, or None when the other end is gone."""
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except (ConnectionError, ValueError):  # cut off, too long, or not ours
            return None
        return message if isinstance(message, dict) and "kind" in message else None

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

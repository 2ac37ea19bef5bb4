"""The protocol between agent and coordinator: one JSON object per line, each with its `kind`.

| kind | from | fields |
| --- | --- | --- |
| hello | agent | public_keys |
| assignment | coordinator | spec, agents, index (of the receiver) |
| rejected | coordinator | cause |
| event | agent | line |
| weights | agent | chunk (base64), last |
| exit | agent | codes (by rank), cause, usage |
| shutdown | coordinator | finished (torchrun need not restart ranks any more) |
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

PORT = 29400  # the coordinator's; only the run's own network reaches it
MAX_LINE_BYTES = 2**20  # buffered in memory while a line arrives

Message = dict[str, Any]


class Connection:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def peer(self) -> str:
        """The other end's address; empty if it has disconnected already."""
        return str((self._writer.get_extra_info("peername") or [""])[0])

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message. It is lost if the other end has disconnected."""
        with suppress(ConnectionError):
            self._writer.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message, or None if the other end has disconnected or sent no valid message."""
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except (ConnectionError, ValueError):  # disconnected, too long, or not JSON
            return None
        return message if isinstance(message, dict) and "kind" in message else None

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

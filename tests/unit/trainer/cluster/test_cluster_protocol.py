"""Mistakes in the connection of agent and coordinator: messages that change, arrive in part, or block."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from trainer.cluster.protocol import FROM_AGENT, MAX_LINE_BYTES, Connection, Message

USAGE = {"cpu_s": 0.5, "throttled_s": None, "out_of_memory": 0}
MESSAGES: list[Message] = [
    {"kind": "hello", "public_keys": {"key": f"ssh-ed25519 {'A' * 68}"}, "replaced": "it was killed"},
    {"kind": "event", "line": 'newline\n and "quotes" and \u2028 and 漢字'},
    {"kind": "exit", "codes": {"0": -9}, "cause": None, "usage": USAGE},
    {"kind": "weights", "chunk": "x" * (MAX_LINE_BYTES - 100), "last": False},
]


def test_only_whole_messages_arrive() -> None:
    async def talk() -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        writer: Any = SimpleNamespace(write=reader.feed_data, drain=lambda: asyncio.sleep(0))
        connection = Connection(reader, writer, FROM_AGENT)
        for message in MESSAGES:
            await connection.send(**message)
        writer.write(b'{"kind": "hello"}')  # is cut off
        reader.feed_eof()
        assert [await connection.receive() for _ in range(5)] == [*MESSAGES, None]
        assert connection.error is None

    asyncio.run(talk())

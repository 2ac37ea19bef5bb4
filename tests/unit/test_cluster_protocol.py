"""The line between a member and the head: whole messages or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trainer.cluster.protocol import LIMIT, Message, Wire


def received(send: Callable[[Wire, asyncio.StreamWriter], Awaitable[None]]) -> list[Message | None]:
    """What arrives at the other end, up to its first None."""
    heard: list[Message | None] = []

    async def talk() -> None:
        over = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            wire = Wire(reader, writer)
            heard.append(await wire.receive())
            while heard[-1] is not None:
                heard.append(await wire.receive())
            assert wire.peer == "127.0.0.1"
            await wire.close()
            over.set()

        server = await asyncio.start_server(listen, "127.0.0.1", 0, limit=LIMIT)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        wire = Wire(reader, writer)
        await send(wire, writer)
        await wire.close()
        await over.wait()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), 10))
    return heard


FIELDS: list[dict[str, Any]] = [
    {},
    {"line": 'newline\n and "quotes" and \u2028 and 漢字'},
    {"codes": {"0": -9}, "cause": None, "usage": {"cpu_s": 0.5}},
    {"piece": "x" * (LIMIT - 100)},
]


@pytest.mark.parametrize("fields", FIELDS, ids=range(len(FIELDS)))
def test_a_message_arrives_as_it_was_sent(fields: dict[str, Any]) -> None:
    async def send(wire: Wire, _: asyncio.StreamWriter) -> None:
        await wire.send("first", **fields)
        await wire.send("second")

    assert received(send) == [{"kind": "first", **fields}, {"kind": "second"}, None]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"kind": "cut off"}',
        b"not json\n",
        b"\xff\n",
        b"[]\n",
        b'{"no": "kind"}\n',
        b'{"kind": "' + b"x" * LIMIT + b'"}\n',
    ],
    ids=["nothing", "no end", "no json", "no text", "a list", "no kind", "too long"],
)
def test_what_is_no_message_ends_the_conversation(line: bytes) -> None:
    async def send(_: Wire, writer: asyncio.StreamWriter) -> None:
        writer.write(line)

    assert received(send) == [None]


def test_a_message_to_someone_who_is_gone_is_lost_without_a_word() -> None:
    async def talk() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        wire = Wire(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
        assert await wire.receive() is None
        for _ in range(20):
            await wire.send("event", line="x" * 10_000)
        await wire.close()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), 10))

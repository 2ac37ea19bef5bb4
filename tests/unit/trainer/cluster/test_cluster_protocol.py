"""The connection between agent and coordinator: whole messages or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trainer.cluster.protocol import FROM_AGENT, FROM_COORDINATOR, MAX_LINE_BYTES, Connection, Message


def received(send: Callable[[Connection, asyncio.StreamWriter], Awaitable[None]]) -> list[Message | None]:
    """The messages that arrive at the other end, up to the first None."""
    received: list[Message | None] = []

    async def talk() -> None:
        over = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(reader, writer, FROM_AGENT)
            received.append(await connection.receive())
            while received[-1] is not None:
                received.append(await connection.receive())
            assert connection.peer == "127.0.0.1"
            await connection.close()
            over.set()

        server = await asyncio.start_server(listen, "127.0.0.1", 0, limit=MAX_LINE_BYTES)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = Connection(reader, writer, {})
        await send(connection, writer)
        await connection.close()
        await over.wait()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), 10))
    return received


USAGE = {"cpu_s": 0.5, "throttled_s": None, "out_of_memory": 0}
MESSAGES: list[Message] = [
    {"kind": "hello"},
    {"kind": "hello", "public_keys": {"key": f"ssh-ed25519 {'A' * 68}"}, "replaced": "it was killed"},
    {"kind": "event", "line": 'newline\n and "quotes" and \u2028 and 漢字'},
    {"kind": "exit", "codes": {"0": -9}, "cause": None, "usage": USAGE},
    {"kind": "weights", "chunk": "x" * (MAX_LINE_BYTES - 100), "last": False},
]


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
def test_message_round_trip(message: Message) -> None:
    async def send(connection: Connection, _: asyncio.StreamWriter) -> None:
        await connection.send(**message)
        await connection.send("hello")

    assert received(send) == [message, {"kind": "hello"}, None]


def test_agents_receive_who_is_alive() -> None:
    """Each message from the coordinator is checked, and one about an unknown field is refused."""
    member = {"rank": 3, "incarnation": 1, "state": "waiting", "joined": 0, "address": "10.0.0.4"}
    alive = {"generation": 2, "view": 1, "ranks": [member]}

    async def receive(fields: dict[str, Any]) -> tuple[Message | None, str | None]:
        reader = asyncio.StreamReader()
        reader.feed_data(json.dumps({"kind": "membership", **fields}).encode() + b"\n")
        connection = Connection(reader, None, FROM_COORDINATOR)  # type: ignore[arg-type]
        return await connection.receive(), connection.error

    assert asyncio.run(receive(alive)) == ({"kind": "membership", **alive}, None)
    for wrong in (
        {"generation": -1},
        {"view": "1"},
        {"ranks": [{"rank": 3}]},
        {"ranks": [{**member, "state": "asleep"}]},
        {"extra": 1},
    ):
        message, error = asyncio.run(receive({**alive, **wrong}))
        assert message is None
        assert next(iter(wrong)) in str(error)
    assert "membership" not in FROM_AGENT


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"kind": "cut off"}',
        b"not json\n",
        b"\xff\n",
        b"[]\n",
        b'{"no": "kind"}\n',
        b'{"kind": "' + b"x" * MAX_LINE_BYTES + b'"}\n',
    ],
    ids=["nothing", "no end", "no json", "no text", "a list", "no kind", "too long"],
)
def test_invalid_line_ends_the_connection(line: bytes) -> None:
    async def send(_: Connection, writer: asyncio.StreamWriter) -> None:
        writer.write(line)

    assert received(send) == [None]


def test_send_after_disconnect_is_ignored() -> None:
    async def talk() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        streams = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        connection = Connection(*streams, FROM_AGENT)
        assert await connection.receive() is None
        for _ in range(20):
            await connection.send("event", line="x" * 10_000)
        await connection.close()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), 10))


def test_connection_closes_when_the_other_end_reads_late() -> None:
    """What is left to send arrives, and a second disconnect changes nothing."""
    sent = 64 * 2**20  # more than the buffers of both sockets hold
    received: list[int] = []

    async def talk() -> None:
        over = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.1)  # until the sender's buffer is full
            received.append(len(await reader.read(-1)))
            writer.close()
            over.set()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        connection = Connection(reader, writer, {})
        writer.write(bytes(sent))
        await connection.close()
        connection.abort()
        await over.wait()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), 10))
    assert received == [sent]

"""Mistakes in the connection of agent and coordinator: messages that change, arrive in part, or block."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trainer.cluster.protocol import FROM_AGENT, MAX_LINE_BYTES, Connection, Message

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
USAGE = {"cpu_s": 0.5, "throttled_s": None, "out_of_memory": 0}
MESSAGES: list[Message] = [
    {"kind": "hello", "public_keys": {"key": f"ssh-ed25519 {'A' * 68}"}, "replaced": "it was killed"},
    {"kind": "event", "line": 'newline\n and "quotes" and \u2028 and 漢字'},
    {"kind": "exit", "codes": {"0": -9}, "cause": None, "usage": USAGE},
    {"kind": "weights", "chunk": "x" * (MAX_LINE_BYTES - 100), "last": False},
]


def connected(
    listen: Callable[[Streams], Awaitable[None]], talk: Callable[[Streams], Awaitable[None]]
) -> None:
    """Connect these two ends, and wait for both."""

    async def play() -> None:
        accepted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            lambda *streams: accepted.set_result(streams), "127.0.0.1", 0, limit=MAX_LINE_BYTES
        )
        port = server.sockets[0].getsockname()[1]
        streams = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(talk(streams), listen(await accepted))
        server.close()

    asyncio.run(asyncio.wait_for(play(), 10))


def test_only_whole_messages_arrive() -> None:
    async def talk(streams: Streams) -> None:
        connection = Connection(*streams, {})
        for message in MESSAGES:
            await connection.send(**message)
        streams[1].write(b'{"kind": "hello"}')  # is cut off
        await connection.close()

    async def listen(streams: Streams) -> None:
        connection = Connection(*streams, FROM_AGENT)
        assert [await connection.receive() for _ in range(5)] == [*MESSAGES, None]
        assert (connection.error, connection.peer) == (None, "127.0.0.1")
        await connection.close()

    connected(listen, talk)


def test_connection_closes_when_the_other_end_reads_late() -> None:
    """What is left to send arrives, and a second disconnect changes nothing."""
    sent = 32 * 2**20  # more than the buffers of both sockets hold

    async def talk(streams: Streams) -> None:
        connection = Connection(*streams, {})
        streams[1].write(bytes(sent))
        await connection.close()
        connection.abort()

    async def listen(streams: Streams) -> None:
        await asyncio.sleep(0.1)  # until the sender's buffer is full
        assert len(await streams[0].read(-1)) == sent
        streams[1].close()

    connected(listen, talk)

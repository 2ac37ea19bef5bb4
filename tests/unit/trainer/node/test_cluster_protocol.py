"""Mistakes in the connection of agent and coordinator: messages that change, arrive in part, are odd."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from trainer.node.protocol import (
    FROM_AGENT,
    FROM_COORDINATOR,
    MAX_BODY_BYTES,
    MAX_LINE_BYTES,
    Connection,
    Message,
)

KEY = "ssh-ed25519 " + 68 * "A"
USAGE = {"cpu_s": 0.5, "throttled_s": None, "out_of_memory": 0}
MESSAGES: list[Message] = [
    {"kind": "hello", "public_keys": {"key": KEY}, "replaced": "it was killed"},
    {"kind": "events", "body": 'newline\n and "quotes" and \u2028 and 漢字'.encode(), "rank": 0},
    {"kind": "exit", "codes": {"0": -9}, "cause": None, "usage": USAGE},
    {"kind": "exit", "codes": {}, "cause": "odd", "usage": None, "full": "/run/shardyard"},
    {"kind": "weights", "body": b"\n" * MAX_BODY_BYTES, "last": False},
    {"kind": "trace", "body": b"", "last": True, "rank": 0},
]


def test_only_whole_messages_arrive() -> None:
    async def talk() -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        writer: Any = SimpleNamespace(write=reader.feed_data, drain=lambda: asyncio.sleep(0))
        connection = Connection(reader, writer, FROM_AGENT)
        for message in MESSAGES:
            await connection.send(**message)
        writer.write(b'{"kind": "weights", "size": 3, "last": true}\nxy')  # is cut off
        reader.feed_eof()
        assert [await connection.receive() for _ in range(len(MESSAGES) + 1)] == [*MESSAGES, None]
        assert connection.error is None

    asyncio.run(talk())


def receive(line: bytes) -> tuple[Message | None, str | None]:
    """The message in a line from an agent or the coordinator, or what is wrong with it."""

    async def read() -> tuple[Message | None, str | None]:
        reader, writer = asyncio.StreamReader(limit=MAX_LINE_BYTES), SimpleNamespace()
        reader.feed_data(line)
        reader.feed_eof()
        connection = Connection(reader, writer, {**FROM_COORDINATOR, **FROM_AGENT})  # type: ignore[arg-type]
        return await connection.receive(), connection.error

    return asyncio.run(read())


KEYS = [{"key": KEY, "host_key": f"{KEY[:52]}=="}, {"key": f"{KEY[:12]}{100 * '/'}"}, {}]
ODD_KEYS = [f"{KEY}\n", f"{KEY}\n{KEY}", f"{KEY} x", f"x{KEY}", f"{KEY}===", KEY[:51], KEY + 33 * "A", ""]
EXIT = {"codes": {}, "cause": None, "usage": USAGE}
# Other fields, and values of one field that are accepted, and that are not.
VALUES: list[tuple[str, dict[str, Any], str, list[Any], list[Any]]] = [
    ("exit", EXIT, "codes", [{"0": -255, "65535": 255}], [{"0": -256}, {"0": 256}, {"0": True}]),
    ("exit", EXIT, "codes", [], [{each: 0} for each in ("", "123456", "1\n", "-1", "\u0663")]),
    ("exit", EXIT, "mpirun", [-255, 255], [-256, 256, "1"]),
    ("weights", {"last": True}, "size", [], [-1, MAX_BODY_BYTES + 1, "1"]),
    ("alive", {}, "mpirun", [1, 2**31 - 1, None], [0, 2**31]),
    ("alive", {}, "suspended", [[], [0, 2**16 - 1]], [[-1], [2**16], [0.0], 1]),
    ("hello", {}, "port", [1, 2**16 - 1], [0, 2**16]),
    ("hello", {}, "address", ["", "fe80::1%eth0", "h" * 256], ["h" * 257, "a b", "a\n", "$(a)"]),
    ("hello", {}, "public_keys", KEYS, [*({"key": each} for each in ODD_KEYS), {"other": KEY}]),
]


def test_values_of_a_message_include_the_ends_of_their_ranges_and_no_more() -> None:
    for kind, others, field, accepted, refused in VALUES:
        for value in accepted:
            message = {"kind": kind, **others, field: value}
            assert receive(json.dumps(message).encode() + b"\n") == (message, None)
        for value in refused:
            found, error = receive(json.dumps({"kind": kind, **others, field: value}).encode() + b"\n")
            assert found is None
            assert str(error).startswith(f"message {kind}: {field}"), value


def test_a_body_ends_where_its_size_says() -> None:
    """And with a newline, since what starts an agent may forward whole lines."""
    head = b'{"kind": "weights", "size": 2, "last": true}\n'
    assert receive(head + b"ab\n") == ({"kind": "weights", "last": True, "body": b"ab"}, None)
    found, error = receive(head + b"abc\n")
    assert (found, "size" in str(error)) == (None, True)

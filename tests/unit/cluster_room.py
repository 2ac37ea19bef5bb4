"""A head on loopback, and members that speak to it by hand: no container, no process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import FIELDS
from tests.unit.conftest import event, rank_fields
from trainer.cluster import coordinator as module
from trainer.cluster.coordinator import Head
from trainer.cluster.protocol import LIMIT, Message, Wire
from trainer.cluster.rank_assignment import RankAssignment

USAGE = {"cpu_s": 1.0, "throttled_s": None, "out_of_memory": 0}
HELLO = b'{"kind": "hello", "hello": {"key": "K", "host_key": "H"}}\n'
PATIENCE_S = 10.0  # a test that hangs fails


@dataclass
class Seat:
    """A member's end of the line. heard: what the head has said, in order."""

    wire: Wire
    heard: list[str] = field(default_factory=list)
    assignment: RankAssignment | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        assert self.assignment
        return self.assignment.me.ranks

    async def hear(self) -> Message | None:
        message = await self.wire.receive()
        self.heard.append(message["kind"] if message else "")
        return message

    async def take_place(self) -> RankAssignment:
        message = await self.hear()
        assert message is not None
        assert message["kind"] == "assignment"
        self.assignment = RankAssignment.from_message(message)
        return self.assignment

    async def tell(self, kind: str, *ranks: int, **fields: Any) -> None:
        """An event, of each of its ranks unless it is said of which."""
        for rank in ranks or self.ranks:
            await self.wire.send("event", line=event(kind, rank, **fields).to_line())

    async def train(self) -> None:
        """All that ranks say that are well."""
        await self.tell("start", pid=1)
        await self.tell("result", **rank_fields())
        await self.tell("done")

    async def exit(self, code: int = 0, cause: str | None = None, out_of_memory: int = 0) -> None:
        usage = {**USAGE, "out_of_memory": out_of_memory}
        codes = {str(rank): code for rank in self.ranks}
        await self.wire.send("exit", codes=codes, cause=cause, usage=usage)

    async def leave(self) -> None:
        """Wait to be sent away, and go."""
        while message := await self.hear():
            if message["kind"] == "bye":
                break
        await self.wire.close()


Part = Callable[[Seat], Awaitable[None]]


async def well(seat: Seat) -> None:
    """The part of a member where nothing goes wrong."""
    await seat.take_place()
    await seat.train()
    await seat.exit()
    await seat.leave()


async def stays(seat: Seat) -> None:
    """The part of a member whose ranks train until it is sent away."""
    await seat.take_place()
    await seat.tell("start", pid=1)
    await seat.leave()


class Room:
    """Where one run takes place. Members are told apart by their addresses, as containers are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.port = _free_port()
        self.directory = directory / "live"
        self.seats: dict[str, Seat] = {}
        self.summary: list[str] = []
        self.over = asyncio.Event()  # set when the head has ended
        self.codes: list[int] = []  # exit codes of members that do not speak by hand
        self.expected: dict[str, tuple[str, int]] = {}
        for name, value in {"PORT": self.port, "ROLL_CALL_S": 5.0, "GRACE_S": 0.1, "LEAVE_S": 1.0}.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(module, "expected_members", lambda topology: self.expected)

    def lead(self, parts: Mapping[str, Part], *more: Part, topology: str = "ddp", **fields: Any) -> int:
        """Lead a run with these members, `node-1` at 127.0.0.1 and so on; the head's exit code.

        more: parts of who is not expected; they connect themselves.
        """
        addresses = {name: f"127.0.0.{number}" for number, name in enumerate(parts, start=1)}
        self.expected = {address: _role(name) for name, address in addresses.items()}

        async def play() -> int:
            head = Head(topology, {**FIELDS[topology], **fields}, self.directory, {})
            self.over = asyncio.Event()
            leading = asyncio.create_task(head.lead())
            leading.add_done_callback(lambda _: self.over.set())
            acting = [self.act(name, addresses[name], part) for name, part in parts.items()]
            await asyncio.gather(*acting, *(self.act("", "127.0.0.99", part) for part in more))
            code, self.summary = await leading
            return code

        return asyncio.run(asyncio.wait_for(play(), PATIENCE_S))

    async def act(self, name: str, address: str, part: Part) -> None:
        seat = self.seats[name] = await self.connect(address)
        await part(seat)
        await seat.wire.close()

    async def connect(self, address: str, hello: bytes = HELLO) -> Seat:
        """A seat whose member has said this, as soon as the head is there."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, local_addr=(address, 0), limit=LIMIT
                )
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.005)
        writer.write(hello)
        return Seat(Wire(reader, writer))

    @property
    def causes(self) -> dict[str, str]:
        """Of a run that failed, by member."""
        assert self.summary[0].startswith("FAILED: ")
        lines = [line.strip().partition(": ") for line in self.summary[1:]]
        return {name: cause for name, _, cause in lines}

    def kinds(self, rank: int) -> list[str]:
        """The kinds of the events that were kept of a rank."""
        lines = (self.directory / f"rank-{rank}.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]


def _free_port() -> int:
    """One that the kernel gives to nobody by itself, or a connection may have it before the head."""
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("", port)):
            return port


def _role(name: str) -> tuple[str, int]:
    role, _, number = name.partition("-")
    return role, int(number or 1)


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def unharmed() -> Iterator[None]:
    """Let no SIGTERM that nobody handles end the tests themselves."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)

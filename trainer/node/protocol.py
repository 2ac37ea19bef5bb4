"""The protocol between agent and coordinator: one JSON object per line, each with its `kind`.

What ranks have written follows some lines as it is, and a newline. Nodes run code that is not trusted. So
each end checks every message against a table of kinds, and limits its length.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.core.cgroup import Usage
from trainer.core.membership import Membership
from trainer.core.processes import own_streams
from trainer.core.record import Rank, Record, Text, checked, parse_object
from trainer.node.rank_assignment import RENDEZVOUS_PORT

PORT = 29400  # the coordinator's; only the run's own network reaches it
# Twice as much is buffered in memory while a line arrives.
MAX_ASSIGNMENT_BYTES = 2**20  # a line from the coordinator: it lists all agents
MAX_LINE_BYTES = 2**16  # a line from an agent, of which there are up to 1025
MAX_HELLO_BYTES = 2**12
MAX_BODY_BYTES = 2**16  # that follow a line
SEND_S = 15.0  # for the other end to read, unless it is cut off the network

Message = dict[str, Any]
PublicKey = Annotated[str, Field(pattern=r"\Assh-ed25519 [A-Za-z0-9+/]{40,100}={0,2}\z")]
ExitCode = Annotated[int, Field(ge=-255, le=255)]  # negative: a signal


class Hello(Record):
    """An agent registers.

    Attributes:
        public_keys: for Open MPI over ssh.
        replaced: why its warm parent was replaced before the run.
        address, port: where rank 0 listens, if the agent has it; a container's are known.
        sources: the digest of its trainer's, if it may differ from the coordinator's.
        refusal: why it can take no run.
    """

    public_keys: dict[Literal["key", "host_key"], PublicKey] = Field(default_factory=dict)
    replaced: Text | None = None
    address: Annotated[str, Field(pattern=r"\A[0-9A-Za-z:.%_-]{0,256}\z")] = ""
    port: Annotated[int, Field(ge=1, lt=2**16)] = RENDEZVOUS_PORT
    sources: Text | None = None
    refusal: Text | None = None


class WithBody(Record):
    """A message that bytes follow. size: their number."""

    size: Annotated[int, Field(ge=0, le=MAX_BODY_BYTES)]


class EventLines(WithBody):
    """Whole lines that one of the agent's ranks has written as its events."""

    rank: Rank


class WeightsPart(WithBody):
    """A part of rank 0's final weights."""

    last: bool


class TracePart(WithBody):
    """A part of the trace of one of the agent's ranks."""

    rank: Rank
    last: bool


class Exit(Record):
    """The agent's processes have ended.

    Attributes:
        codes: the exit codes by rank.
        cause: why the agent has failed, if its exit codes do not say so.
        usage: the usage of its container; None if it has none.
        lost: how its warm parent has failed.
        full: the directory that has no space left for its ranks' events; None if there is some.
        mpirun: exit code of mpirun, in the launcher.
    """

    codes: dict[Annotated[str, Field(pattern=r"\A[0-9]{1,5}\z")], ExitCode]
    cause: Text | None
    usage: Usage | None
    lost: Text | None = None
    full: Text | None = None
    mpirun: ExitCode = 0


class Clean(Record):
    """The agent has cleaned its warm container after the run. left: what it could not remove."""

    left: Text | None


class Alive(Record):
    """The coordinator's heartbeat."""


class AgentAlive(Record):
    """An agent's heartbeat.

    suspended: its ranks that are stopped by a signal. mpirun: the PID of mpirun, if it is.
    """

    suspended: list[Rank] = Field(default_factory=list)
    mpirun: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class Begin(Record):
    """A run begins; the agent, which stays connected, registers for it. warm: with a warm parent."""

    warm: bool


class Assignment(Record):
    """The agent gets ranks. index: the index of the receiver among the agents. site: see `Site`."""

    spec: dict[str, Any]
    agents: list[dict[str, Any]]
    index: int
    site: dict[str, Any]


class Rejected(Record):
    """The agent gets no ranks."""

    cause: Text


class Shutdown(Record):
    """The agent ends its processes. finished: torchrun need not restart ranks any more."""

    finished: bool = False


Kinds = Mapping[str, type[Record]]
FROM_AGENT: Kinds = {
    "hello": Hello,
    "alive": AgentAlive,
    "events": EventLines,
    "weights": WeightsPart,
    "trace": TracePart,
    "exit": Exit,
    "clean": Clean,
}
FROM_COORDINATOR: Kinds = {
    "begin": Begin,
    "assignment": Assignment,
    "alive": Alive,
    "membership": Membership,
    "rejected": Rejected,
    "shutdown": Shutdown,
}


class Connection:
    """One end of a connection.

    Attributes:
        error: what is wrong with the last line, which was not a message; None if there was none.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kinds: Kinds) -> None:
        """kinds: what the other end may send."""
        self._reader, self._writer, self._kinds = reader, writer, kinds
        self._closed = False
        self.error: str | None = None

    @property
    def peer(self) -> str:
        """The other end's address; empty if it has none, or has disconnected already."""
        return str((self._writer.get_extra_info("peername") or [""])[0])

    async def send(self, kind: str, body: bytes | None = None, **fields: Any) -> None:
        """Send a message, and the bytes that belong to it. It is lost if the other end has disconnected.

        If the other end does not read, return after SEND_S, and leave the message in memory.
        """
        with suppress(ConnectionError, TimeoutError):
            sized = fields if body is None else {**fields, "size": len(body)}
            data = json.dumps({"kind": kind, **sized}).encode() + b"\n"
            if body is not None:
                data += body + b"\n"  # srun forwards whole lines
            self._writer.write(data)
            async with asyncio.timeout(SEND_S):
                await self._writer.drain()

    async def receive(self, max_bytes: int | None = None) -> Message | None:
        """The next message, with its bytes as `body`. None: the other end has disconnected, or sent junk.

        max_bytes: the largest size of the line, if it is less than the reader's limit.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        except ValueError:
            self.error = "a message without an end"
            return None
        if max_bytes and len(line) > max_bytes:
            self.error = f"a message of {len(line)} bytes; allowed: at most {max_bytes}"
            return None
        if not line.endswith(b"\n"):
            return None
        try:
            message = self._message(line)
            if "size" in message:
                body = await self._reader.readexactly(message.pop("size") + 1)
                if body[-1:] != b"\n":
                    raise ValueError(f"message {message['kind']}: size: not that of what follows")
                message["body"] = body[:-1]
            return message
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        except ValueError as error:
            self.error = str(error)
            return None

    def _message(self, line: bytes) -> Message:
        """The message in a line. Raises ValueError; the message names kind and field."""
        fields = parse_object(line, "message")
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in self._kinds:
            raise ValueError(f"message: kind: none of {', '.join(self._kinds)}")
        found = checked(self._kinds[kind], fields, f"message {kind}")
        return {"kind": kind, **found.model_dump(exclude_unset=True)}

    async def close(self) -> None:
        """Send what is left, and disconnect."""
        self._writer.close()
        try:
            async with asyncio.timeout(SEND_S):
                await self._writer.wait_closed()
        except ConnectionError:
            pass
        except TimeoutError:
            self.abort()
        self._closed = True

    def abort(self) -> None:
        """Disconnect at once, also from an end that is cut off the network."""
        if not self._closed:  # asyncio's transport fails if it closed after sending what was left
            self._writer.transport.abort()


async def over_stdio(kinds: Kinds) -> Connection:
    """A connection over this process's standard streams. Whatever else it prints goes to standard error."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=MAX_ASSIGNMENT_BYTES)
    source, sink = own_streams()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(), os.fdopen(sink, "wb")
    )
    return Connection(reader, asyncio.StreamWriter(transport, protocol, None, loop), kinds)

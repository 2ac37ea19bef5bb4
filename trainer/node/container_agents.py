"""The agents of containers: who may connect to the coordinator, who is missing, and who is cut off."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from trainer.node.heartbeat import AGENT_SILENCE_S, BEAT_S
from trainer.node.members import REGISTRATION_S, Host, Members
from trainer.node.protocol import FROM_AGENT, MAX_HELLO_BYTES, MAX_LINE_BYTES, PORT, Connection, Message
from trainer.node.rank_assignment import ROLES, AgentInfo, AssignmentError, container_name

HELLO_S = 20.0  # from an agent's connection until it must have registered
MAX_CONNECTIONS = 64  # of one container during a run; it needs one
BACKLOG = 1024  # of warm agents that wait for the next run
REJECTED = "rejected: the run has started, or ended, without this container"


class ContainerAgents(Members):
    """The containers of a topology, as the engine's DNS names them. One is made for each run."""

    stay = False

    def __init__(self, listener: socket.socket | None = None) -> None:
        """listener: agents of warm containers connect to it early, and wait there for the next run."""
        self._listener = listener
        self._expected: dict[str, tuple[str, int]] = {}  # address: role, ordinal
        self._connections: Counter[str] = Counter()  # by address, those that have ended included
        self._connected: set[str] = set()  # addresses
        self._unreachable: set[str] = set()  # addresses, before ranks are assigned
        self._closed = self._over = False  # no agent registers any more; the run has ended
        self._server: asyncio.Server | None = None

    async def register(self, host: Host, topology: str, warm: bool) -> None:
        self._host, self._topology = host, topology
        self._server = await self._bind()
        # First: only the run's containers are listened to.
        self._expected = expected_agents(topology)
        await self._server.start_serving()
        probing = asyncio.create_task(self._probe())
        try:
            await self._until_all_registered()
        finally:
            probing.cancel()
            self._closed = True

    async def _bind(self) -> asyncio.Server:
        """The server, which does not accept connections yet."""
        options: dict[str, Any] = {"limit": MAX_LINE_BYTES, "start_serving": False}
        if self._listener is None:
            return await asyncio.start_server(self._serve, port=PORT, **options)
        return await asyncio.start_server(self._serve, sock=self._listener.dup(), **options)

    async def _until_all_registered(self) -> None:
        """Raises AssignmentError if an agent exits first, does not register in time, or sends junk."""
        host, deadline = self._host, time.monotonic() + REGISTRATION_S
        while missing := self._missing:
            if reason := host.interruption or host.refused:
                raise AssignmentError(reason)
            if time.monotonic() > deadline:
                raise self._cut_off(self._names(missing), f"did not register in {REGISTRATION_S:g} s")
            await host.until(self._is_over, 1.0)
            if self._unreachable:
                # All of several: not each node has lost its network, but this container.
                alone = len(self._expected) > 1 and self._unreachable == self._expected.keys()
                name = "coordinator" if alone else self._names(self._unreachable)
                raise self._cut_off(
                    name, f"was cut off the network: not reachable for {AGENT_SILENCE_S:g} s"
                )
            # The engine's DNS drops the name of a container that has exited.
            if gone := self._expected.keys() - self._started():
                raise AssignmentError(f"{self._names(gone)} exited before it registered; its log says why")
        if host.refused:
            raise AssignmentError(host.refused)

    def _is_over(self) -> bool:
        """Whether all have registered, or the run cannot start."""
        host = self._host
        return not self._missing or bool(host.interruption or host.refused or self._unreachable)

    @property
    def _missing(self) -> set[str]:
        """Addresses of the containers that have not registered."""
        found = self._expected.items()
        return {address for address, key in found if container_name(*key) not in self._host.agents}

    def _started(self) -> set[str]:
        """Addresses of the containers that have not ended; all if one has no name at this moment."""
        try:
            return {*expected_agents(self._topology)}
        except OSError:
            return {*self._expected}

    def _cut_off(self, name: str, what: str) -> AssignmentError:
        """The error that a container is not there. Warm containers take no other run then."""
        self._host.cut_off = f"the warm container {name} {what}"
        return AssignmentError(f"{name} {what}")

    def _names(self, addresses: Iterable[str]) -> str:
        keys = sorted(self._expected[address] for address in addresses)
        return ", ".join(self._host.name(*key) for key in keys)

    async def _probe(self) -> None:
        """Find containers that are cut off the network.

        An agent that has not registered may be one that waits for a message over a broken connection.
        """
        failed: Counter[str] = Counter()
        while not self._unreachable:
            probes = asyncio.gather(*map(is_reachable, self._expected))
            _, answers = await asyncio.gather(asyncio.sleep(BEAT_S), probes)
            for address, answer in zip(self._expected, answers, strict=True):
                failed[address] = 0 if answer else failed[address] + 1
            self._unreachable = {each for each in failed if failed[each] * BEAT_S >= AGENT_SILENCE_S}
        self._host.changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from its `hello` to its end. Reads nothing from strangers."""
        connection = Connection(reader, writer, FROM_AGENT)
        address = connection.peer
        if not self._admits(address):
            await connection.send("rejected", cause=REJECTED)
            await connection.close()
            return
        self._connected.add(address)
        try:
            if agent := await self._registered(address, connection):
                await self._host.listen(agent, connection)
        finally:
            self._connected.discard(address)
            await connection.close()

    def _admits(self, address: str) -> bool:
        """Whether a new connection may register an agent."""
        self._connections[address] += 1
        if address not in self._expected:
            return False
        if self._connections[address] > MAX_CONNECTIONS:
            self._refuse(address, f"more than {MAX_CONNECTIONS} connections")
        return not (address in self._connected or self._closed or self._host.refused)

    def _refuse(self, address: str, reason: str) -> None:
        self._host.refuse(container_name(*self._expected[address]), reason)

    async def _registered(self, address: str, connection: Connection) -> AgentInfo | None:
        """The agent that registers with its `hello`; fail the run if it is not valid."""
        try:
            hello = await asyncio.wait_for(connection.receive(MAX_HELLO_BYTES), HELLO_S)
            reason = connection.error
        except TimeoutError:
            hello, reason = None, f"no hello within {HELLO_S:g} s"
        if self._over:
            await connection.send("rejected", cause=REJECTED)
            return None
        role, ordinal = self._expected[address]
        if hello and not (reason := self._fault_of(hello, role)):
            keys, replaced = hello.get("public_keys", {}), hello.get("replaced")
            agent = AgentInfo(role, ordinal, address, public_keys=keys, replaced=replaced)
            self._host.agents[agent.name] = (agent, connection)
            self._host.changed.set()
            return agent
        if reason:
            self._refuse(address, reason)
            await connection.send("rejected", cause=f"rejected: {reason}")
        return None

    def _fault_of(self, hello: Message, role: str) -> str | None:
        """What is wrong with the first message of an agent, or None."""
        if hello["kind"] != "hello":
            return f"message {hello['kind']} before hello"
        needed = "key" if role == "launcher" else "host_key"
        if self._topology == "mpi" and needed not in hello.get("public_keys", {}):
            return f"message hello: public_keys: {needed}: missing"
        return None

    async def end_run(self) -> None:
        if self._over:  # who connects now does so for the next run
            return
        self._over = self._closed = True
        if self._server:
            self._server.close()  # wait_closed would wait for an agent that does not disconnect
        if self._listener:
            reject_waiting(self._listener)


def reject_waiting(listener: socket.socket) -> None:
    """Reject the connections that are not accepted yet."""
    listener.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(BACKLOG):
            waiting, _ = listener.accept()
            with waiting, suppress(OSError):
                waiting.send(json.dumps({"kind": "rejected", "cause": REJECTED}).encode() + b"\n")


def expected_agents(topology: str) -> dict[str, tuple[str, int]]:
    """Role and ordinal of every started container with an agent, by address, from the engine's DNS."""
    found: dict[str, tuple[str, int]] = {}
    for role in ROLES[topology]:
        try:
            addresses = socket.gethostbyname_ex(role)[2]
        except OSError:
            raise AssignmentError(f"no container of service {role} is running") from None
        found |= {address: (role, ordinal_of(address)) for address in addresses}
    return found


async def is_reachable(address: str) -> bool:
    """Whether a container is on the network: it refuses a connection, since it does not listen."""
    try:
        async with asyncio.timeout(BEAT_S):
            _, writer = await asyncio.open_connection(address, PORT)
    except ConnectionRefusedError:
        return True
    except OSError:  # no route, or no answer in time
        return False
    writer.close()
    return True


def ordinal_of(address: str) -> int:
    """The number of a container: 3 for run-node-3.network. Raises OSError if the address has no name."""
    name = socket.gethostbyaddr(address)[0].partition(".")[0]
    return int(name.rpartition("-")[2])

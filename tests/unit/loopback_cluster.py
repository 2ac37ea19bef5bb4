"""A coordinator on loopback with scripted agents: no container, no other process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cluster_support import FIELDS
from tests.unit.conftest import event, rank_fields
from trainer.core.trace import RECORD, Kind, Trace, TraceHeader, encode_trace
from trainer.launch.launchers import free_port
from trainer.node import container_agents, coordinator
from trainer.node.channel import SPEC, Answer, Ending, Request, file_channel
from trainer.node.container_agents import ContainerAgents
from trainer.node.coordinator import Coordinator
from trainer.node.protocol import FROM_COORDINATOR, MAX_ASSIGNMENT_BYTES, Connection, Message
from trainer.node.rank_assignment import RankAssignment, container_name
from trainer.node.site import CONTAINERS

USAGE = {"cpu_s": 1.0, "throttled_s": None, "out_of_memory": 0}
KEYS = {"key": f"ssh-ed25519 {'K' * 68}", "host_key": f"ssh-ed25519 {'H' * 68}"}
HELLO = json.dumps({"kind": "hello", "public_keys": KEYS}).encode() + b"\n"
TIMEOUT_S = 10.0  # for a whole test


def weights_file(parameters: int) -> bytes:
    """What numpy.save writes for this many weights."""
    file = io.BytesIO()
    np.save(file, np.arange(parameters, dtype=np.float32))
    return file.getvalue()


def trace_file(run: str, rank: int, records: int = 3) -> bytes:
    """What a rank writes as its trace."""
    fields: dict[str, Any] = {"transport": "gloo", "mode": "steps", "groups": [[0, 1]], "started_s": 1.0}
    header = TraceHeader(run=run, rank=rank, size=2, count=records, **fields)
    barrier = (Kind.BARRIER, 0, -1, 0, 0.0, 0.0, 1.0)
    return encode_trace(Trace(header, np.array([barrier] * records, RECORD)))


@dataclass
class FakeAgent:
    """An agent's end of the connection. received: kinds of the coordinator's messages, in order."""

    connection: Connection
    received: list[str] = field(default_factory=list)
    assignment: RankAssignment | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        assert self.assignment
        return self.assignment.agent.ranks

    async def receive(self) -> Message | None:
        message = await self.connection.receive()
        self.received.append(message["kind"] if message else "")
        return message

    async def receive_assignment(self) -> RankAssignment:
        message = await self.receive()
        assert message is not None
        assert message["kind"] == "assignment"
        self.assignment = RankAssignment.from_message(message)
        return self.assignment

    async def send_event(self, kind: str, *ranks: int, **fields: Any) -> None:
        """Send an event of each given rank, or of each rank of this agent."""
        for rank in ranks or self.ranks:
            line = event(kind, rank, **fields).to_line().encode()
            await self.connection.send("events", line + b"\n", rank=rank)

    async def report_success(self) -> None:
        """Send the events of ranks that train and finish."""
        await self.send_event("start", pid=1)
        await self.send_event("result", **rank_fields())
        await self.send_event("done")

    async def send_weights(self, *parts: bytes, complete: bool = True) -> None:
        """Send the weights in these parts."""
        await self._send_file("weights", parts, complete)

    async def send_trace(self, rank: int, *parts: bytes, complete: bool = True) -> None:
        """Send the trace of a rank in these parts; none: a valid one in one part."""
        assert self.assignment
        parts = parts or (trace_file(self.assignment.spec.key, rank),)
        await self._send_file("trace", parts, complete, rank=rank)

    async def _send_file(self, kind: str, parts: Sequence[bytes], complete: bool, **fields: int) -> None:
        for number, part in enumerate(parts, start=1):
            fields["last"] = complete and number == len(parts)
            await self.connection.send(kind, part, **fields)

    async def exit(self, code: int = 0, out_of_memory: int = 0, **fields: Any) -> None:
        """Send the exit message, with this code for each rank."""
        usage = {**USAGE, "out_of_memory": out_of_memory}
        codes = {str(rank): code for rank in self.ranks}
        await self.connection.send("exit", **{"codes": codes, "cause": None, "usage": usage, **fields})

    async def wait_for_shutdown(self) -> None:
        """Wait for `shutdown`, then leave."""
        while message := await self.receive():
            if message["kind"] == "shutdown":
                break
        await self.leave()

    async def leave(self, left: str | None = None) -> None:
        """Disconnect when the coordinator has ended the run, as agents of warm containers do."""
        await self.connection.send("clean", left=left)
        while await self.connection.receive():
            pass
        await self.connection.close()


Script = Callable[[FakeAgent], Awaitable[Any]]  # all that an agent does, or one step of it

receive, wait_for_shutdown = FakeAgent.receive, FakeAgent.wait_for_shutdown


def plays(*steps: Script) -> Script:
    """Script of an agent that takes these steps once it has ranks."""

    async def script(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        for step in steps:
            await step(agent)

    return script


def sends(kind: str, *ranks: int, **fields: Any) -> Script:
    """Step: send an event of each given rank, or of each rank of the agent."""
    return lambda agent: agent.send_event(kind, *ranks, **fields)


def exits(code: int = 0, **fields: Any) -> Script:
    """Step: see `FakeAgent.exit`."""
    return lambda agent: agent.exit(code, **fields)


def pauses(seconds: float = 0.05) -> Script:
    """Step: give the others time."""
    return lambda _: asyncio.sleep(seconds)


disconnect: Script = lambda agent: agent.connection.close()  # noqa: E731
STARTS = sends("start", pid=7)
RESULT = sends("result", **rank_fields())
FINISHES = (RESULT, sends("done"), exits(), wait_for_shutdown)
succeeds = plays(STARTS, *FINISHES)
succeeds_later = plays(pauses(0.1), STARTS, *FINISHES)
keeps_training = plays(STARTS, wait_for_shutdown)


async def is_surplus(agent: FakeAgent) -> None:
    """Script of an agent that the run does not need, or whose run does not start."""
    assert await agent.receive() == {"kind": "shutdown"}
    await agent.leave()


class LoopbackCluster:
    """A coordinator and its agents, which have different loopback addresses, as containers have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory / "live"
        self.agents: dict[str, FakeAgent] = {}
        self.summary: list[str] = []
        self.ended = asyncio.Event()  # set when the coordinator exits
        self.site = CONTAINERS
        self.connections: dict[str, list[FakeAgent]] = {}  # of the agents of a warm coordinator
        self.answers: list[Answer] = []  # of a warm coordinator
        self.expected: dict[str, tuple[str, int]] = {}
        self.unreachable: set[str] = set()  # names of containers
        self.delays: dict[str, Callable[[], Awaitable[Any]]] = {}  # by address, before agents connect first
        self.hellos: dict[str, bytes] = {}  # by address, other first messages
        for owner, name, value in (
            (coordinator, "GRACE_S", 0.1),
            (coordinator, "SHUTDOWN_S", 1.0),
            (coordinator, "PORT", self.port),
            (container_agents, "PORT", self.port),
            (container_agents, "REGISTRATION_S", 5.0),
            (container_agents, "expected_agents", lambda topology: self.expected),
            (container_agents, "is_reachable", self._is_reachable),
        ):
            monkeypatch.setattr(owner, name, value)

    def _expect(self, names: Iterable[str]) -> dict[str, str]:
        """Let the coordinator expect these agents. Returns their addresses, 127.0.0.1 and so on."""
        addresses = {name: f"127.0.0.{number}" for number, name in enumerate(names, start=1)}
        roles = {address: name.partition("-") for name, address in addresses.items()}
        self.expected = {address: (role, int(n or 1)) for address, (role, _, n) in roles.items()}
        return addresses

    def run(self, scripts: Mapping[str, Script], topology: str = "ddp", **fields: Any) -> int:
        """Run the coordinator with these agents. Returns its exit code."""
        addresses, spec = self._expect(scripts), {**FIELDS[topology], **fields}

        async def play() -> int:
            self.ended = asyncio.Event()
            one = Coordinator(ContainerAgents(), topology, spec, self.directory, site=self.site)
            running = asyncio.create_task(one.run())
            running.add_done_callback(lambda _: self.ended.set())
            agents = (self.run_agent(name, addresses[name], scripts[name]) for name in scripts)
            await asyncio.gather(*agents)
            code, self.summary = await running
            return code

        return asyncio.run(asyncio.wait_for(play(), TIMEOUT_S))

    def serve(
        self,
        scripts: Mapping[str, Sequence[Script]],
        *runs: Mapping[str, Any],
        topology: str = "ddp",
        before_run: Callable[[int], None] = lambda number: None,
    ) -> list[Ending]:
        """Let a warm coordinator take runs with these fields, in `run-1` and so on. Returns their endings.

        scripts: of every agent, one for each of its connections. before_run: called with the run's number.
        """
        addresses = self._expect(scripts)
        self.connections = {name: [] for name in scripts}
        self.directory.mkdir()
        self._channel = file_channel(self.directory)
        nodes = sum(role in ("node", "master") for role, _ in self.expected.values())

        async def orchestrate() -> None:
            for number, changed in enumerate(runs, start=1):
                await asyncio.to_thread(before_run, number)
                run = self.run_directory(number)
                run.mkdir()
                (run / SPEC).write_text(json.dumps({**FIELDS[topology], "nodes": nodes, **changed}))
                site = self.site.model_dump(exclude_defaults=True)
                named = {"name": run.name, "directory": run.name}
                self._channel.post(Request(kind="run", run=number, **named, site=site))
                while not self.has_ended(number):
                    await asyncio.sleep(0.005)
                    self.answers += self._channel.new()

        async def play(name: str) -> None:
            for script in scripts[name]:
                agent = await self.connect(addresses[name])
                self.connections[name].append(agent)
                try:
                    await script(agent)
                finally:
                    await agent.connection.close()

        async def play_all() -> None:
            try:
                async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
                    group.create_task(orchestrate())
                    for name in scripts:
                        group.create_task(play(name))
            finally:
                self._channel.post(Request(kind="end"))

        # The coordinator handles a signal, so it needs the main thread.
        with ThreadPoolExecutor(1) as executor:
            agents = executor.submit(lambda: asyncio.run(play_all()))
            code = coordinator.serve_containers(topology, self.directory)
        agents.result()
        assert code == 0
        return [each.ending for each in self.answers if each.ending]

    def has_ended(self, number: int) -> bool:
        """Whether a warm coordinator has ended its run of this number, from 1."""
        return any((each.kind, each.run) == ("ended", number) for each in self.answers)

    def cancel(self, number: int) -> None:
        """Ask a warm coordinator to end a run."""
        self._channel.post(Request(kind="cancel", run=number))

    async def until_assigned(self, name: str) -> None:
        """Wait until an agent of a warm coordinator has its ranks."""
        while not any(each.assignment for each in self.connections[name]):
            await asyncio.sleep(0.005)

    def run_directory(self, number: int) -> Path:
        """The directory of a warm coordinator's run, from 1."""
        return self.directory / f"run-{number}"

    async def _is_reachable(self, address: str) -> bool:
        return container_name(*self.expected[address]) not in self.unreachable

    async def run_agent(self, name: str, address: str, script: Script) -> None:
        agent = self.agents[name] = await self.connect(address, self.hellos.get(address, HELLO))
        await script(agent)
        await agent.connection.close()

    async def connect(self, address: str, hello: bytes = HELLO) -> FakeAgent:
        """Connect as soon as the coordinator listens, and send the first message."""
        if address in self.delays:
            await self.delays.pop(address)()
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, local_addr=(address, 0), limit=MAX_ASSIGNMENT_BYTES
                )
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.005)
        writer.write(hello)
        return FakeAgent(Connection(reader, writer, FROM_COORDINATOR))

    @property
    def causes(self) -> dict[str, str]:
        """Causes of a failed run, by agent."""
        assert self.summary[0].startswith("FAILED: ")
        lines = (line.strip().partition(": ") for line in self.summary[1:])
        return {name: cause for name, _, cause in lines}

    def kinds(self, rank: int) -> list[str]:
        """The kinds of the recorded events of a rank."""
        lines = (self.directory / f"rank-{rank}.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]


def terminate_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ignore_sigterm() -> Iterator[None]:
    """Ignore a SIGTERM that the code under test does not handle."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)

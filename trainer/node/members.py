"""The agents of a cluster, and how the coordinator of a run reaches them.

Coordinators differ in nothing else. Agents of containers connect to the coordinator (container_agents.py).
Here are those that it starts.
"""

from __future__ import annotations

import asyncio
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trainer.core.events import how_ended
from trainer.core.sources import own_digest
from trainer.node.protocol import FROM_AGENT, MAX_LINE_BYTES, Connection
from trainer.node.rank_assignment import AgentInfo, AssignmentError
from trainer.node.site import Plan

REGISTRATION_S = 600.0  # until every agent must have registered, also on a busy machine
END_S = 3.0  # for an agent to end once its streams are closed


class Host(Protocol):
    """The run for which agents register.

    Attributes:
        agents: those that have registered, and have not disconnected, by name.
        changed: set when one has registered, or when the run is interrupted.
        interruption: why the run ends early; empty if it does not.
        refused: why it cannot start; None if it can.
        cut_off: which container was silent, or did not register; None if none was.
    """

    agents: dict[str, tuple[AgentInfo, Connection]]
    changed: asyncio.Event
    interruption: str
    refused: str | None
    cut_off: str | None

    def name(self, role: str, ordinal: int) -> str: ...
    def refuse(self, name: str, reason: str) -> None: ...
    async def listen(self, agent: AgentInfo, connection: Connection) -> None: ...
    async def until(self, reached: Callable[[], bool], timeout_s: float) -> None: ...
    def wait_for(self, reason: str) -> None: ...


class Members(ABC):
    """The agents of a cluster.

    Attributes:
        stay: whether they stay connected after a run.
    """

    stay: bool

    @abstractmethod
    async def register(self, host: Host, topology: str, warm: bool) -> None:
        """Return once all have registered. Raises AssignmentError.

        host: the run. topology: of the run. warm: whether warm parents fork its ranks.
        """

    @abstractmethod
    async def end_run(self) -> None:
        """Let none register for this run any more. Idempotent."""


Key = tuple[str, int]  # role and ordinal


class Attached(Members):
    """Agents that stay connected, and register again for each run."""

    stay = True

    def __init__(self) -> None:
        self._listening: list[asyncio.Task[None]] = []

    @abstractmethod
    async def attach(self, host: Host, topology: str) -> Mapping[Key, Connection]:
        """The connections to the agents of a run, which are started if need be. Raises AssignmentError."""

    @abstractmethod
    async def how_ended(self, key: Key) -> str:
        """How an agent has ended."""

    async def register(self, host: Host, topology: str, warm: bool) -> None:
        connections = await self.attach(host, topology)
        tasks = [
            asyncio.create_task(self._register(host, key, each, warm)) for key, each in connections.items()
        ]

        def errors() -> list[BaseException]:
            return [error for task in tasks if task.done() and (error := task.exception())]

        def are_over() -> bool:
            return all(task.done() for task in tasks) or bool(errors() or host.interruption)

        for task in tasks:
            task.add_done_callback(lambda _: host.changed.set())
        await host.until(are_over, REGISTRATION_S)
        failed, missing = errors(), not all(task.done() for task in tasks)
        if not (failed or missing):
            return
        for task in tasks:
            task.cancel()
        # What others have not sent yet must not be taken for what they send in the next run.
        late = host.interruption or f"not every node registered in {REGISTRATION_S:g} s"
        host.cut_off = str(failed[0]) if failed else late
        raise AssignmentError(host.cut_off)

    async def _register(self, host: Host, key: Key, connection: Connection, warm: bool) -> None:
        name = host.name(*key)
        await connection.send("begin", warm=warm)
        hello = await connection.receive()
        if hello is None or hello["kind"] != "hello":
            wrong = f"sent invalid data: {connection.error or 'no hello'}"
            ended = hello is None and not connection.error
            how = await self.how_ended(key) if ended else wrong
            raise AssignmentError(f"{name} {how}, before it registered")
        if refusal := hello.get("refusal"):
            raise AssignmentError(f"{name}: {refusal}")
        if (sources := hello.get("sources")) != (own := own_digest()):
            raise AssignmentError(f"{name} has a trainer of sources {sources}, and not {own}")
        found = {field: hello[field] for field in ("address", "port", "replaced") if field in hello}
        agent = AgentInfo(*key, **found)
        host.agents[agent.name] = (agent, connection)
        self._listening.append(asyncio.create_task(host.listen(agent, connection)))

    async def end_run(self) -> None:
        for task in self._listening:
            task.cancel()
        self._listening.clear()


class Started(Attached):
    """Processes that the coordinator starts, or that a command starts elsewhere for it.

    Their standard streams are the connections.
    """

    def __init__(self, plan: Plan) -> None:
        """plan: the commands of the agents. What these print goes to standard error."""
        super().__init__()
        self._commands: dict[Key, Sequence[str]] = {
            ("node", number + 1): [part.replace("{number}", str(number)) for part in plan.agent]
            for number in range(plan.count)
        }
        if plan.launcher:
            self._commands["launcher", 1] = plan.launcher
        self._processes: dict[Key, asyncio.subprocess.Process] = {}
        self._connections: dict[Key, Connection] = {}

    async def attach(self, host: Host, topology: str) -> Mapping[Key, Connection]:
        taking_part = [key for key in self._commands if key[0] == "node" or topology == "mpi"]
        for key in taking_part:
            if key not in self._connections:
                await self._start(key)
        return {key: self._connections[key] for key in taking_part}

    async def _start(self, key: Key) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._commands[key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # only the coordinator handles signals
        )
        self._processes[key] = process
        if process.stdin and process.stdout:  # as they were asked for
            self._connections[key] = Connection(process.stdout, process.stdin, FROM_AGENT)

    async def how_ended(self, key: Key) -> str:
        try:
            async with asyncio.timeout(END_S):
                return how_ended(await self._processes[key].wait())
        except TimeoutError:
            return "closed its connection"

    async def close(self) -> None:
        """End the agents, and their ranks with them."""
        for connection in self._connections.values():
            await connection.close()
        for process in self._processes.values():
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

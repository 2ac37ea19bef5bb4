"""The coordinator: registers agents, assigns ranks, records events, and ends the run."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.node.commands import CHECKPOINTS
from trainer.node.hand_over import ALIVE, CANCEL, ENDED, SPEC, Ending, log_marks, take_over
from trainer.node.heartbeat import AGENT_SILENCE_S, BEAT_S, LOOK_S, SUSPECT_S, Silence
from trainer.node.protocol import FROM_AGENT, MAX_HELLO_BYTES, MAX_LINE_BYTES, PORT, Connection, Message
from trainer.node.rank_assignment import (
    ROLES,
    AgentInfo,
    AssignmentError,
    RankAssignment,
    assign_ranks,
    container_name,
    needed_agents,
    node_name,
    read_spec,
)
from trainer.node.run_record import RunRecord

REGISTRATION_S = 600.0  # until every agent must have registered, also on a busy machine
HELLO_S = 20.0  # from an agent's connection until it must have registered
MAX_CONNECTIONS = 64  # of one container during a run; it needs one
GRACE_S = 2.0  # after one agent has failed, the others have this long to report failures of their own
CANCEL_POLL_S = 0.2
ANNOUNCE_S = 0.1  # between looks at who is alive
BACKLOG = 1024  # of warm agents that wait for the next run
SHUTDOWN_S = 5.0  # after `shutdown`: longest silence of all agents before the coordinator exits
REJECTED = "rejected: the run has started, or ended, without this container"
COORDINATOR_CUT_OFF = f"cut off the network: no heartbeat of any node for {AGENT_SILENCE_S:g} s"
LOST = "killed together with its container, or disconnected from the coordinator"
CUT_OFF = f"cut off the network, or its container hangs: no heartbeat for {AGENT_SILENCE_S:g} s"


class Coordinator:
    """Coordinates one run. `run` is its whole life."""

    def __init__(
        self,
        topology: str,
        fields: Mapping[str, Any] | AssignmentError,
        directory: Path,
        limits: Mapping[str, float],
        listener: socket.socket | None = None,
    ) -> None:
        """
        Args:
            topology: the topology of the containers.
            fields: the fields of the run's spec, or why it cannot be read.
            directory: the directory of the run record.
            limits: see `assign_ranks`.
            listener: the socket of a warm coordinator. Agents that connect to it early wait there for the
                next run.
        """
        self._listener = listener
        self._topology, self._directory = topology, directory
        self._fields, self._limits = fields, limits
        self._expected: dict[str, tuple[str, int]] = {}  # address: role, ordinal
        self._agents: dict[str, tuple[AgentInfo, Connection]] = {}  # by address
        self._connections: Counter[str] = Counter()  # by address, those that have ended included
        self._connected: set[str] = set()  # addresses
        self._refused: str | None = None  # why a container cannot register
        self._unreachable: set[str] = set()  # addresses, before ranks are assigned
        self._changed = asyncio.Event()  # an agent registered, reported, exited or was lost
        self._interrupted = asyncio.Event()
        self._interruption = ""  # its cause
        self._over = False  # no agent can register any more
        self._clean: set[str] = set()  # addresses of warm agents that have cleaned up after the run
        self._running: set[str] = set()  # addresses of agents whose processes have not ended
        self._exited: set[str] = set()  # addresses of agents that have sent exit codes or are cut off
        self._silences: dict[str, Silence] = {}  # by address, of agents that the run needs
        self._last_message_at = 0.0
        self._run_record: RunRecord | None = None
        self.exits: dict[str, int] = {}  # codes of agents, as their containers have them, and of mpirun
        self.lost: str | None = None  # how a warm parent has failed
        self.untrusted: str | None = None  # which container has sent invalid data, and what
        self.cut_off: str | None = None  # which container has been silent, or has not registered

    @property
    def failures(self) -> Mapping[str, str]:
        """The first known cause, by agent."""
        return self._run_record.failures if self._run_record else {}

    @property
    def unreported(self) -> Mapping[str, str]:
        """The causes that no event reports, by agent."""
        return self._run_record.unreported if self._run_record else {}

    async def run(self) -> tuple[int, list[str]]:
        """Coordinate from registration to the last agent's exit. Returns exit code and summary."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._interrupt, "stopped by SIGTERM")
        cancelling = asyncio.create_task(self._until_cancelled()) if self._listener else None
        beating = asyncio.create_task(self._beat())
        server = await self._bind()
        try:
            # First: only the run's containers are listened to.
            self._expected = expected_agents(self._topology)
            await server.start_serving()
            fields = await self._register()
            run_record = self._run_record = await self._start_run(fields)
            watching = asyncio.create_task(self._watch_agents(run_record))
            announcing = asyncio.create_task(self._announce(run_record))
            ended = asyncio.create_task(self._until_run_ended(run_record))
            stopped = asyncio.create_task(self._interrupted.wait())
            both, first = {ended, stopped}, asyncio.FIRST_COMPLETED
            # Of warm containers, the orchestrator keeps the time, which includes what precedes this.
            timeout_s = None if self._listener else run_record.timeout_s
            done, _ = await asyncio.wait(both, timeout=timeout_s, return_when=first)
            for task in (watching, announcing, ended, stopped):
                task.cancel()
            if self._interrupted.is_set():
                run_record.failures.setdefault("the run", self._interruption)
            elif not done:
                run_record.failures.setdefault("the run", f"stopped after {run_record.timeout_s:g} s")
                run_record.fail_suspended()
            await self._shut_down(server)
            run_record.fail_untraced()
        except AssignmentError as error:
            await self._shut_down(server)
            return 1, [f"FAILED: {error}"]
        finally:
            if cancelling:
                cancelling.cancel()
            beating.cancel()
            with suppress(OSError):  # as when it was created
                (self._directory / ALIVE).unlink()
            server.close()  # wait_closed would wait for an agent that does not disconnect
        if not run_record.complete or run_record.failures:
            return 1, run_record.summary()
        shutil.rmtree(CHECKPOINTS / run_record.key, ignore_errors=True)  # no longer needed
        return 0, run_record.summary()

    async def _bind(self) -> asyncio.Server:
        """The server, which does not accept connections yet."""
        options: dict[str, Any] = {"limit": MAX_LINE_BYTES, "start_serving": False}
        if self._listener is None:
            return await asyncio.start_server(self._serve, port=PORT, **options)
        return await asyncio.start_server(self._serve, sock=self._listener.dup(), **options)

    async def _beat(self) -> None:
        """Show the orchestrator that this process goes on."""
        with suppress(OSError):  # the run record names what cannot be written
            self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            with suppress(OSError):
                (self._directory / ALIVE).touch()
            await asyncio.sleep(BEAT_S)

    async def _until_cancelled(self) -> None:
        """Watch for the file by which the orchestrator cancels a run in warm containers."""
        while not (self._directory / CANCEL).exists():
            await asyncio.sleep(CANCEL_POLL_S)
        self._interrupt("cancelled by the orchestrator")

    def _interrupt(self, cause: str) -> None:
        """End the run early."""
        self._interruption = cause
        self._interrupted.set()

    async def _register(self) -> Mapping[str, Any]:
        """Wait until every container's agent has registered. Returns the fields of the run's spec."""
        probing = asyncio.create_task(self._probe())
        try:
            await self._until_all_registered()
        finally:
            probing.cancel()
        # Only now: an agent that registered later would find no coordinator and wait for one.
        if isinstance(self._fields, AssignmentError):
            raise self._fields
        return self._fields

    async def _start_run(self, fields: Mapping[str, Any]) -> RunRecord:
        """Send all agents their ranks. Warm containers that the run does not need get no message."""
        registered = [agent for agent, _ in self._agents.values()]
        if self._listener:
            registered = needed_agents(self._topology, fields, registered)
        assignment = assign_ranks(self._topology, fields, registered, self._limits)
        run_record = RunRecord(self._directory, assignment)
        connections = [self._agents[agent.address][1] for agent in assignment.agents]
        for agent, connection in zip(assignment.agents, connections, strict=True):
            self._agents[agent.address] = (agent, connection)
            if runs_processes(assignment, agent):
                self._running.add(agent.address)
        self._run_record = run_record
        for index, connection in enumerate(connections):
            await connection.send("assignment", **assignment.to_message(index))
        print(f"{assignment.spec.key}: {_rank_list(assignment)}", flush=True)
        return run_record

    async def _until_all_registered(self) -> None:
        """Raises AssignmentError if an agent exits first, does not register in time, or sends junk."""
        deadline = time.monotonic() + REGISTRATION_S
        while missing := self._expected.keys() - self._agents.keys():
            if self._interrupted.is_set():
                raise AssignmentError(self._interruption)
            if time.monotonic() > deadline:
                raise self._missing(self._names(missing), f"did not register in {REGISTRATION_S:g} s")
            await self._until(self._registration_over, 1.0)
            if self._refused:
                break
            if self._unreachable:
                # All of several: not each node has lost its network, but this container.
                alone = len(self._expected) > 1 and self._unreachable == self._expected.keys()
                name = "coordinator" if alone else self._names(self._unreachable)
                raise self._missing(
                    name, f"was cut off the network: not reachable for {AGENT_SILENCE_S:g} s"
                )
            # The engine's DNS drops the name of a container that has exited.
            if gone := self._expected.keys() - self._started():
                raise AssignmentError(f"{self._names(gone)} exited before it registered; its log says why")
        if self._refused:
            raise AssignmentError(self._refused)

    def _started(self) -> set[str]:
        """Addresses of the containers that have not ended; all if one has no name at this moment."""
        try:
            return {*expected_agents(self._topology)}
        except OSError:
            return {*self._expected}

    def _missing(self, name: str, what: str) -> AssignmentError:
        """The error that a container is not there. Warm containers take no other run then."""
        self.cut_off = f"the warm container {name} {what}"
        return AssignmentError(f"{name} {what}")

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
        self._changed.set()

    def _registration_over(self) -> bool:
        all_registered = self._agents.keys() >= self._expected.keys()
        return all_registered or self._interrupted.is_set() or bool(self._refused or self._unreachable)

    def _names(self, addresses: Iterable[str]) -> str:
        found = sorted(self._expected[address] for address in addresses)
        return ", ".join(self._name(role, ordinal) for role, ordinal in found)

    def _name(self, role: str, ordinal: int) -> str:
        """A container as the orchestrator names it in rows, or as a bare `docker compose up` shows it."""
        if self._limits:
            return container_name(role, ordinal)
        agents = self._run_record.assignment.agents if self._run_record else ()
        return node_name(role, ordinal, agents, self._topology)

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
            if await self._has_registered(address, connection):
                await self._listen_to(address, connection)
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
        closed = self._over or self._run_record or self._refused
        return address not in self._connected and not closed

    def _refuse(self, address: str, reason: str) -> None:
        """Fail the run because of what one of its containers has sent."""
        cause = f"{self._names([address])} sent invalid data: {reason}"
        self.untrusted = self.untrusted or cause
        if self._run_record is None:
            self._refused = self._refused or cause
        elif address in self._agents and self._is_needed(address):
            self._run_record.reject(self._agents[address][0], reason)
        self._changed.set()

    def _is_needed(self, address: str) -> bool:
        """Whether the run has assigned something to the agent."""
        agents = self._run_record.assignment.agents if self._run_record else ()
        return any(address == agent.address for agent in agents)

    async def _has_registered(self, address: str, connection: Connection) -> bool:
        """Register the agent with its `hello`; fail the run if it is not valid."""
        try:
            hello = await asyncio.wait_for(connection.receive(MAX_HELLO_BYTES), HELLO_S)
            reason = connection.error
        except TimeoutError:
            hello, reason = None, f"no hello within {HELLO_S:g} s"
        if self._over:
            await connection.send("rejected", cause=REJECTED)
            return False
        role, ordinal = self._expected[address]
        if hello and not (reason := self._fault_of(hello, role)):
            keys, replaced = hello.get("public_keys", {}), hello.get("replaced")
            agent = AgentInfo(role, ordinal, address, public_keys=keys, replaced=replaced)
            self._agents[address] = (agent, connection)
            self._changed.set()
            return True
        if reason:
            self._refuse(address, reason)
            await connection.send("rejected", cause=f"rejected: {reason}")
        return False

    def _fault_of(self, hello: Message, role: str) -> str | None:
        """What is wrong with the first message of an agent, or None."""
        if hello["kind"] != "hello":
            return f"message {hello['kind']} before hello"
        needed = "key" if role == "launcher" else "host_key"
        if self._topology == "mpi" and needed not in hello.get("public_keys", {}):
            return f"message hello: public_keys: {needed}: missing"
        return None

    async def _listen_to(self, address: str, connection: Connection) -> None:
        """Handle a registered agent's messages until it disconnects or one is not valid."""
        try:
            while message := await connection.receive():
                if address in self._silences:
                    self._silences[address].end()
                if message["kind"] == "alive":
                    self._note_suspended(address, message.get("suspended", []), message.get("mpirun"))
                    await connection.send("alive")
                elif message["kind"] == "clean" and (self._over or address in self._exited):
                    self._note_clean(address, message["left"])
                else:
                    self._handle(address, message)
            if connection.error:
                self._refuse(address, connection.error)
        except ValueError as error:
            self._refuse(address, str(error))
        finally:
            self._disconnect(address)

    def _note_clean(self, address: str, left: str | None) -> None:
        """Note that a container has been cleaned, and what of the run is still there."""
        if left:
            cause = f"{self._names([address])} could not be cleaned after a run: {left}"
            self.untrusted = self.untrusted or cause
        self._clean.add(address)
        self._changed.set()

    def _handle(self, address: str, message: Message) -> None:
        """Raises ValueError if the agent may not send this message now."""
        self._last_message_at = time.monotonic()
        agent, _ = self._agents[address]
        run_record = self._run_record
        if run_record is None:
            raise ValueError(f"message {message['kind']} before the assignment")
        if "rank" in message and message["rank"] not in agent.ranks:
            raise ValueError(f"message {message['kind']}: rank: {message['rank']} is not this agent's")
        match message["kind"]:
            case "events":
                run_record.receive_events(message["rank"], message["body"])
            case "weights" if 0 in agent.ranks:
                run_record.add_weights(message["body"], message["last"])
            case "trace":
                run_record.add_trace(message["rank"], message["body"], message["last"])
            case "exit" if address not in self._exited:
                self._handle_exit(run_record, agent, message)
            case kind:
                raise ValueError(f"message {kind} is not expected from this agent")
        self._changed.set()  # also by an event: a rank that has failed may hang, and its process never end

    def _note_suspended(self, address: str, ranks: Sequence[int], mpirun: int | None) -> None:
        """Raises ValueError if an agent reports processes that it does not have."""
        agent, _ = self._agents[address]
        if mpirun and agent.role != "launcher":
            raise ValueError("message alive: mpirun: not from the launcher")
        if not {*ranks} <= {*agent.ranks}:
            raise ValueError("message alive: suspended: a rank that is not this agent's")
        if self._run_record:
            self._run_record.note_suspended(agent, ranks, mpirun)

    def _handle_exit(self, run_record: RunRecord, agent: AgentInfo, message: Message) -> None:
        codes = {int(rank): code for rank, code in message["codes"].items()}
        if not codes.keys() <= {*agent.ranks}:
            raise ValueError("message exit: codes: of a rank that is not this agent's")
        out_of_memory = bool(message["usage"].get("out_of_memory"))
        run_record.record_exit(agent, codes, out_of_memory, message.get("full", False))
        run_record.add_usage(agent, message["usage"])
        cause = message["cause"] or run_record.exit_cause(agent, codes)
        if cause and not run_record.shutting_down:
            run_record.fail(agent, cause)
        self.exits[agent.name] = 1 if cause else 0
        if agent.role == "launcher" and (mpirun := message.get("mpirun")):
            self.exits["mpirun"] = mpirun
        if lost := message.get("lost"):
            self.lost = f"of {self._names([agent.address])} {lost}"
        self._exited.add(agent.address)
        self._running.discard(agent.address)

    def _disconnect(self, address: str) -> None:
        """Handle a closed connection. An agent that has sent no exit codes was killed."""
        if address not in self._agents:
            return
        agent, _ = self._agents.pop(address)
        run_record = self._run_record
        # mpirun may exit with code 0, and be heard, before the node that it lost is: that shows here.
        if (
            run_record
            and self._is_needed(address)
            and address not in self._exited
            and not (run_record.shutting_down and run_record.failures)
        ):
            run_record.record_loss(agent, LOST)
        if run_record:
            run_record.note_suspended(agent, [])
        self._running.discard(address)
        self._changed.set()

    async def _watch_agents(self, run_record: RunRecord) -> None:
        """Fail the run when an agent that it needs is silent for too long."""
        needed = [each for each in run_record.assignment.agents if each.ranks or each.role == "launcher"]
        self._silences = {agent.address: Silence() for agent in needed}
        while True:
            await asyncio.sleep(LOOK_S)
            for address in self._silences.keys() - (self._agents.keys() - self._exited):
                del self._silences[address]  # its exit or the end of its connection says more
            silent_s = {address: silence.look() for address, silence in self._silences.items()}
            late = [address for address, seconds in silent_s.items() if seconds > AGENT_SILENCE_S]
            # All within two heartbeats: not each node has lost its network, but this container.
            alone = len(silent_s) > 1 and min(silent_s.values()) > AGENT_SILENCE_S - 2 * BEAT_S
            if late and alone:
                run_record.fail_here(COORDINATOR_CUT_OFF)
                self.cut_off = f"the warm container coordinator was {COORDINATOR_CUT_OFF}"
                late = list(silent_s)
            for address in late:
                agent, connection = self._agents[address]
                if not alone:
                    run_record.record_loss(agent, CUT_OFF, reported=bool(agent.ranks))
                    name = self._names([address])
                    self.cut_off = self.cut_off or f"the warm container {name} was {CUT_OFF}"
                self._exited.add(address)
                connection.abort()  # nothing waits for it any more
                self._disconnect(address)

    def _is_suspect(self) -> bool:
        """Whether an agent that the run needs may be cut off the network."""
        return any(silence.seconds > SUSPECT_S for silence in self._silences.values())

    async def _announce(self, run_record: RunRecord) -> None:
        """Let agents know which ranks are alive, whenever that has changed."""
        announced = 0
        while membership := run_record.membership:
            if (current := membership.current).generation > announced:
                announced = current.generation
                for _, connection in [*self._agents.values()]:
                    await connection.send("membership", **current.model_dump())
            await asyncio.sleep(ANNOUNCE_S)

    def _must_wait(self, run_record: RunRecord) -> bool:
        """Whether processes run whose end the run needs: not those of ranks that were left behind."""
        membership, running = run_record.membership, self._running
        if membership is None or not membership.over:
            return bool(running)
        agents = (self._agents[address][0] for address in running if address in self._agents)
        return any({*agent.ranks} - membership.without_work for agent in agents)

    async def _until_run_ended(self, run_record: RunRecord) -> None:
        """Wait until all processes have ended, or one has failed and the grace period is over."""
        while self._must_wait(run_record) and not run_record.failures and not run_record.finished:
            self._changed.clear()
            await self._changed.wait()
        if self._must_wait(run_record):
            await self._until(lambda: not self._running, GRACE_S)
        if run_record.failures.keys() == {"launcher"}:
            # mpirun exits when it loses a node, often before that node's connection breaks.
            await self._until(lambda: len(run_record.failures) > 1, GRACE_S)
        # Peers of a node that is cut off may report errors before its silence is long enough to name it.
        await self._until(lambda: not self._is_suspect(), AGENT_SILENCE_S)

    async def _shut_down(self, server: asyncio.Server) -> None:
        """Tell all agents to exit, and wait for their last events, and until they have cleaned up.

        The coordinator exits last, or compose would stop the agents. Warm agents connect for the next run
        only when this one has ended, so no connection of this run is taken for one of the next.
        """
        self._over = True
        if self._run_record:
            self._run_record.shutting_down = True
        self._last_message_at = time.monotonic()
        fields: dict[str, Any] = (
            {"finished": True} if self._run_record and self._run_record.finished else {}
        )
        for _, connection in [*self._agents.values()]:
            await connection.send("shutdown", **fields)
        # 100 MB of weights take a while from a node with a tenth of a core.
        while self._staying and time.monotonic() - self._last_message_at < SHUTDOWN_S:
            await self._until(lambda: not self._staying, 0.5)
        server.close()
        if self._listener:
            if self._staying:
                self.untrusted = self.untrusted or f"{self._names(self._staying)} did not end the run"
            reject_waiting(self._listener)
        await asyncio.gather(*(connection.close() for _, connection in self._agents.values()))

    @property
    def _staying(self) -> set[str]:
        """Addresses of agents that are still at work for this run."""
        return {*self._agents} - self._clean

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(left, 0.2))
            except TimeoutError:
                continue


def reject_waiting(listener: socket.socket) -> None:
    """Reject the connections that are not accepted yet."""
    listener.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(BACKLOG):
            waiting, _ = listener.accept()
            with waiting, suppress(OSError):
                waiting.send(json.dumps({"kind": "rejected", "cause": REJECTED}).encode() + b"\n")


def runs_processes(assignment: RankAssignment, agent: AgentInfo) -> bool:
    """Whether the agent starts processes that end by themselves; Open MPI's nodes only run sshd."""
    return agent.role == "launcher" or (assignment.spec.topology != "mpi" and bool(agent.ranks))


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


def _rank_list(assignment: RankAssignment) -> str:
    """Which agent has which ranks."""
    found = [
        f"{agent.name} has rank{'s' if len(agent.ranks) > 1 else ''} {', '.join(map(str, agent.ranks))}"
        for agent in assignment.agents
        if agent.ranks
    ]
    return "; ".join(found[:16]) + (f"; and {len(found) - 16} more" if len(found) > 16 else "")


def main(topology: str, spec: Path, directory: Path, limits: Mapping[str, float]) -> tuple[int, list[str]]:
    """Coordinate the run that the file `spec` describes, and write its summary beside the events.

    Args:
        topology: the topology of the containers.
        spec: the run, a JSON file.
        directory: where the run's files go.
        limits: the limits of the containers after a bare `docker compose up`, else empty.

    Returns:
        The exit code, and the lines of the summary.
    """
    coordinator = Coordinator(topology, _fields(spec), directory, limits)
    code, lines = _coordinate(coordinator, directory)
    with suppress(OSError):  # as in `_coordinate`
        _write_ending(coordinator, code, directory)
    return code, lines


def serve(topology: str, directory: Path) -> int:
    """Coordinate one run after the other, as the orchestrator hands them over. Returns the exit code."""
    with socket.create_server(("", PORT), backlog=BACKLOG) as listener:
        while run := take_over(directory):
            fields = _fields(run / SPEC)
            begin, end = log_marks(run.name)
            print(begin, flush=True)
            coordinator = Coordinator(topology, fields, run, {}, listener)
            code, lines = _coordinate(coordinator, run)
            print("\n".join([*lines, end]), flush=True)
            _write_ending(coordinator, code, run)
    return 0


def _write_ending(coordinator: Coordinator, code: int, run: Path) -> None:
    """Let the orchestrator know how the run in this directory has ended."""
    ending = Ending(
        exits={**coordinator.exits, "coordinator": code},
        failures=dict(coordinator.failures),
        unreported=dict(coordinator.unreported),
        lost=coordinator.lost,
        cut_off=coordinator.cut_off,
        untrusted=coordinator.untrusted,
    )
    draft = run / f".{ENDED}"
    draft.write_text(ending.model_dump_json())
    draft.replace(run / ENDED)


def _fields(spec: Path) -> Mapping[str, Any] | AssignmentError:
    try:
        return read_spec(spec)
    except AssignmentError as error:
        return error


def _coordinate(coordinator: Coordinator, directory: Path) -> tuple[int, list[str]]:
    """Coordinate a run and write its summary. Returns the exit code and the summary."""
    code, lines = asyncio.run(coordinator.run())
    with suppress(OSError):  # a full disk is already in the summary
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "summary.txt").write_text("\n".join(lines) + "\n")
    return code, lines

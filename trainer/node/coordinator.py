"""The coordinator: registers agents, assigns ranks, records events, and ends the run."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.core.processes import Suspended
from trainer.node.channel import SPEC, Answer, Channel, Ending, Request, coordinators_channel, log_marks
from trainer.node.container_agents import BACKLOG, ContainerAgents
from trainer.node.heartbeat import BEAT_S, LOOK_S, SUSPECT_S, Silence
from trainer.node.members import Members
from trainer.node.protocol import PORT, Connection, Message
from trainer.node.rank_assignment import (
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
from trainer.node.site import CONTAINERS, Site
from trainer.spec.run_spec import RunSpec

GRACE_S = 2.0  # after one agent has failed, the others have this long to report failures of their own
ANNOUNCE_S = 0.1  # between looks at who is alive
SHUTDOWN_S = 5.0  # after `shutdown`: longest silence of all agents before the coordinator exits
CANCEL_POLL_S = 0.05
IDLE_S = 300.0  # without a run, after which containers exit; less than a warm parent's limit
LOST = "disconnected from the coordinator"


class Coordinator:
    """Coordinates one run. `run` is its whole life. It is the `Host` of its agents."""

    def __init__(
        self,
        members: Members,
        topology: str,
        fields: Mapping[str, Any] | AssignmentError,
        directory: Path,
        limits: Mapping[str, float] | None = None,
        site: Site | None = None,
        tell: Callable[..., None] | None = None,
        warm: bool = False,
    ) -> None:
        """
        Args:
            members: the agents.
            topology: the topology of the containers.
            fields: the fields of the run's spec, or why it cannot be read.
            directory: the directory of the run record.
            limits: see `assign_ranks`. Of a bare `docker compose up` alone.
            site: the machines of the nodes.
            tell: tells the orchestrator what has happened, with the fields of an `Answer`. None without
                one, as after a bare `docker compose up`.
            warm: whether warm parents fork the ranks.
        """
        self._members, self._topology, self._directory = members, topology, directory
        self._fields, self._limits, self._site = fields, limits or {}, site or CONTAINERS
        self._tell, self._warm = tell, warm
        self.agents: dict[str, tuple[AgentInfo, Connection]] = {}  # by name
        self.refused: str | None = None  # why an agent cannot register
        self.changed = asyncio.Event()  # an agent registered, reported, exited or was lost
        self._interrupted = asyncio.Event()
        self.interruption = ""  # its cause
        self._over = False  # agents have been told to end the run
        self._clean: set[str] = set()  # names of agents that have cleaned up after the run
        self._running: set[str] = set()  # names of agents whose processes have not ended
        self._exited: set[str] = set()  # names of agents that have sent exit codes or are cut off
        self._silences: dict[str, Silence] = {}  # by name, of agents that the run needs
        self._last_message_at = 0.0
        self._run_record: RunRecord | None = None
        self.exits: dict[str, int] = {}  # codes of agents, as their containers have them, and of mpirun
        self.lost: str | None = None  # how a warm parent has failed
        self.untrusted: str | None = None  # which agent has sent invalid data, and what
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
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.interrupt, "stopped by SIGTERM")
        beating = asyncio.create_task(self._beat())
        try:
            # The spec may be invalid, but an agent that registered later would find no coordinator.
            await self._members.register(self, self._topology, self._warm)
            if isinstance(self._fields, AssignmentError):
                raise self._fields
            if self.interruption:
                raise AssignmentError(self.interruption)
            run_record = self._run_record = await self._start_run(self._fields)
            watching = asyncio.create_task(self._watch_agents(run_record))
            announcing = asyncio.create_task(self._announce(run_record))
            ended = asyncio.create_task(self._until_run_ended(run_record))
            stopped = asyncio.create_task(self._interrupted.wait())
            both, first = {ended, stopped}, asyncio.FIRST_COMPLETED
            # The orchestrator keeps the time, which includes what precedes this.
            timeout_s = None if self._tell else run_record.timeout_s
            done, _ = await asyncio.wait(both, timeout=timeout_s, return_when=first)
            for task in (watching, announcing, ended, stopped):
                task.cancel()
            if self._interrupted.is_set():
                run_record.failures.setdefault("the run", self.interruption)
            elif not done:
                run_record.failures.setdefault("the run", f"stopped after {run_record.timeout_s:g} s")
                run_record.fail_suspended()
            await self._shut_down()
            run_record.fail_untraced()
        except AssignmentError as error:
            await self._shut_down()
            return 1, [f"FAILED: {error}"]
        finally:
            beating.cancel()
            await self._members.end_run()
        if not run_record.complete or run_record.failures:
            return 1, run_record.summary()
        # No longer needed.
        shutil.rmtree(Path(self._site.checkpoints) / run_record.key, ignore_errors=True)
        return 0, run_record.summary()

    async def _beat(self) -> None:
        """Show the orchestrator that this process goes on."""
        while self._tell:
            self._tell("alive")
            await asyncio.sleep(BEAT_S)

    def wait_for(self, reason: str) -> None:
        """Say what the run waits for, which does not count towards its time limit; empty: nothing more."""
        if self._tell:
            self._tell("waiting", reason=reason)

    def _tell_suspended(self, found: Suspended) -> None:
        if self._tell:
            self._tell("suspended", suspended={str(name): pid for name, pid in found.items()})

    def interrupt(self, cause: str) -> None:
        """End the run early."""
        self.interruption = cause
        self._interrupted.set()
        self.changed.set()

    async def _start_run(self, fields: Mapping[str, Any]) -> RunRecord:
        """Send all agents their ranks. Those that the run does not need get no message."""
        registered = [agent for agent, _ in self.agents.values()]
        if self._tell:
            registered = needed_agents(self._topology, fields, registered)
        assignment = assign_ranks(self._topology, fields, registered, self._limits)
        assignment = replace(assignment, site=self._site)
        run_record = RunRecord(self._directory, assignment, self._tell_suspended)
        connections = [self.agents[agent.name][1] for agent in assignment.agents]
        for agent, connection in zip(assignment.agents, connections, strict=True):
            self.agents[agent.name] = (agent, connection)
            if runs_processes(assignment, agent):
                self._running.add(agent.name)
        self._run_record = run_record
        for index, connection in enumerate(connections):
            await connection.send("assignment", **assignment.to_message(index))
        print(f"{assignment.spec.key}: {_rank_list(assignment)}", flush=True)
        return run_record

    def name(self, role: str, ordinal: int) -> str:
        """A node as the orchestrator names it in rows, or as a bare `docker compose up` shows it."""
        if self._limits:
            return container_name(role, ordinal)
        agents = self._run_record.assignment.agents if self._run_record else ()
        topology = "" if self._members.stay else self._topology  # no node is a master
        return node_name(role, ordinal, agents, topology)

    def refuse(self, name: str, reason: str) -> None:
        """Fail the run because of what one of its agents has sent."""
        cause = f"{self._names([name])} sent invalid data: {reason}"
        self.untrusted = self.untrusted or cause
        if self._run_record is None:
            self.refused = self.refused or cause
        elif name in self.agents and self._is_needed(name):
            self._run_record.reject(self.agents[name][0], reason)
        self.changed.set()

    def _names(self, names: Iterable[str]) -> str:
        """Agents as `name` calls them."""
        keys = (name.partition("-") for name in names)
        found = sorted((role, int(ordinal or 1)) for role, _, ordinal in keys)
        return ", ".join(self.name(role, ordinal) for role, ordinal in found)

    def _is_needed(self, name: str) -> bool:
        """Whether the run has assigned something to the agent."""
        agents = self._run_record.assignment.agents if self._run_record else ()
        return any(name == agent.name for agent in agents)

    async def listen(self, agent: AgentInfo, connection: Connection) -> None:
        """Handle a registered agent's messages until it disconnects, or has ended the run and stays."""
        name = agent.name
        try:
            while message := await connection.receive():
                if name in self._silences:
                    self._silences[name].end()
                if message["kind"] == "alive":
                    self._note_suspended(name, message.get("suspended", []), message.get("mpirun"))
                    await connection.send("alive")
                elif message["kind"] == "clean" and (self._over or name in self._exited):
                    self._note_clean(name, message["left"])
                    if self._members.stay:
                        return
                else:
                    self._handle(name, message)
            if connection.error:
                self.refuse(name, connection.error)
        except ValueError as error:
            self.refuse(name, str(error))
        finally:
            if not (self._members.stay and name in self._clean):
                self._disconnect(name)

    def _note_clean(self, name: str, left: str | None) -> None:
        """Note that a node has been cleaned, and what of the run is still there."""
        if left:
            cause = f"{self._names([name])} could not be cleaned after a run: {left}"
            self.untrusted = self.untrusted or cause
        self._clean.add(name)
        self.changed.set()

    def _handle(self, name: str, message: Message) -> None:
        """Raises ValueError if the agent may not send this message now."""
        self._last_message_at = time.monotonic()
        agent, _ = self.agents[name]
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
            case "exit" if name not in self._exited:
                self._handle_exit(run_record, agent, message)
            case kind:
                raise ValueError(f"message {kind} is not expected from this agent")
        self.changed.set()  # also by an event: a rank that has failed may hang, and its process never end

    def _note_suspended(self, name: str, ranks: Sequence[int], mpirun: int | None) -> None:
        """Raises ValueError if an agent reports processes that it does not have."""
        agent, _ = self.agents[name]
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
        usage = message["usage"] or {}  # of a container
        run_record.record_exit(agent, codes, bool(usage.get("out_of_memory")), message.get("full"))
        if usage:
            run_record.add_usage(agent, usage)
        cause = message["cause"] or run_record.exit_cause(agent, codes)
        if cause and not run_record.shutting_down:
            run_record.fail(agent, cause)
        self.exits[agent.name] = 1 if cause else 0
        if agent.role == "launcher" and (mpirun := message.get("mpirun")):
            self.exits["mpirun"] = mpirun
        if lost := message.get("lost"):
            self.lost = f"of {self._names([agent.name])} {lost}"
        self._exited.add(agent.name)
        self._running.discard(agent.name)

    def _disconnect(self, name: str) -> None:
        """Handle a closed connection. An agent that has sent no exit codes was killed."""
        if name not in self.agents:
            return
        agent, _ = self.agents.pop(name)
        run_record = self._run_record
        # mpirun may exit with code 0, and be heard, before the node that it lost is: that shows here.
        if (
            run_record
            and self._is_needed(name)
            and name not in self._exited
            and not (run_record.shutting_down and run_record.failures)
        ):
            cause = f"killed together with its {self._site.place}, or {LOST}"
            if self._members.stay:  # of containers, the engine knows more
                self.cut_off = self.cut_off or f"{self._names([name])} was {cause}"
            run_record.record_loss(agent, cause, reported=bool(agent.ranks))
        if run_record:
            run_record.note_suspended(agent, [])
        self._running.discard(name)
        self.changed.set()

    async def _watch_agents(self, run_record: RunRecord) -> None:
        """Fail the run when an agent that it needs is silent for too long."""
        needed = [each for each in run_record.assignment.agents if each.ranks or each.role == "launcher"]
        self._silences = {agent.name: Silence() for agent in needed}
        longest_s = self._site.silence_s
        while True:
            await asyncio.sleep(LOOK_S)
            for name in self._silences.keys() - (self.agents.keys() - self._exited):
                del self._silences[name]  # its exit or the end of its connection says more
            silent_s = {name: silence.look() for name, silence in self._silences.items()}
            late = [name for name, seconds in silent_s.items() if seconds > longest_s]
            # All within two heartbeats: not each node has lost its network, but this one.
            alone = len(silent_s) > 1 and min(silent_s.values()) > longest_s - 2 * BEAT_S
            if late and alone:
                cause = f"cut off the network: no heartbeat of any node for {longest_s:g} s"
                run_record.fail_here(cause)
                self.cut_off = f"the coordinator was {cause}"
                late = list(silent_s)
            for name in late:
                agent, connection = self.agents[name]
                if not alone:
                    cause = f"cut off the network, or its {self._site.place} hangs"
                    cause = f"{cause}: no heartbeat for {longest_s:g} s"
                    run_record.record_loss(agent, cause, reported=bool(agent.ranks))
                    self.cut_off = self.cut_off or f"{self._names([name])} was {cause}"
                self._exited.add(name)
                connection.abort()  # nothing waits for it any more
                self._disconnect(name)

    def _is_suspect(self) -> bool:
        """Whether an agent that the run needs may be cut off the network."""
        return any(silence.seconds > SUSPECT_S for silence in self._silences.values())

    async def _announce(self, run_record: RunRecord) -> None:
        """Let agents know which ranks are alive, whenever that has changed."""
        announced = 0
        while membership := run_record.membership:
            if (current := membership.current).generation > announced:
                announced = current.generation
                for _, connection in [*self.agents.values()]:
                    await connection.send("membership", **current.model_dump())
            await asyncio.sleep(ANNOUNCE_S)

    def _must_wait(self, run_record: RunRecord) -> bool:
        """Whether processes run whose end the run needs: not those of ranks that were left behind."""
        membership, running = run_record.membership, self._running
        if membership is None or not membership.over:
            return bool(running)
        agents = (self.agents[name][0] for name in running if name in self.agents)
        return any({*agent.ranks} - membership.without_work for agent in agents)

    async def _until_run_ended(self, run_record: RunRecord) -> None:
        """Wait until all processes have ended, or one has failed and the grace period is over."""
        while self._must_wait(run_record) and not run_record.failures and not run_record.finished:
            self.changed.clear()
            await self.changed.wait()
        if self._must_wait(run_record):
            await self.until(lambda: not self._running, GRACE_S)
        if run_record.failures.keys() == {"launcher"}:
            # mpirun exits when it loses a node, often before that node's connection breaks.
            await self.until(lambda: len(run_record.failures) > 1, GRACE_S)
        # Peers of a node that is cut off may report errors before its silence is long enough to name it.
        await self.until(lambda: not self._is_suspect(), self._site.silence_s)

    async def _shut_down(self) -> None:
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
        for _, connection in [*self.agents.values()]:
            await connection.send("shutdown", **fields)
        # 100 MB of weights take a while from a node with a tenth of a core.
        while self._staying and time.monotonic() - self._last_message_at < SHUTDOWN_S:
            await self.until(lambda: not self._staying, 0.5)
        if self._tell and self._staying:
            self.untrusted = self.untrusted or f"{self._names(self._staying)} did not end the run"
        await self._members.end_run()
        if not self._members.stay:
            await asyncio.gather(*(connection.close() for _, connection in self.agents.values()))

    @property
    def _staying(self) -> set[str]:
        """Names of agents that are still at work for this run."""
        return {*self.agents} - self._clean

    async def until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached() and (left := deadline - time.monotonic()) > 0:
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), min(left, 0.2))
            except TimeoutError:
                continue


def runs_processes(assignment: RankAssignment, agent: AgentInfo) -> bool:
    """Whether the agent starts processes that end by themselves; Open MPI's nodes only run sshd."""
    return agent.role == "launcher" or (assignment.spec.topology != "mpi" and bool(agent.ranks))


def _rank_list(assignment: RankAssignment) -> str:
    """Which agent has which ranks."""
    found = [
        f"{agent.name} has rank{'s' if len(agent.ranks) > 1 else ''} {', '.join(map(str, agent.ranks))}"
        for agent in assignment.agents
        if agent.ranks
    ]
    return "; ".join(found[:16]) + (f"; and {len(found) - 16} more" if len(found) > 16 else "")


def main(topology: str, spec: Path, directory: Path, limits: Mapping[str, float]) -> tuple[int, list[str]]:
    """Coordinate the run that the file `spec` describes, after a bare `docker compose up`.

    Args:
        topology: the topology of the containers.
        spec: the run, a JSON file.
        directory: where the run's files go, and its summary.
        limits: the limits of the containers.

    Returns:
        The exit code, and the lines of the summary.
    """
    coordinator = Coordinator(ContainerAgents(), topology, _fields(spec), directory, limits)
    code, lines = asyncio.run(coordinator.run())
    _write_summary(directory, lines)
    return code, lines


def serve_containers(topology: str, directory: Path) -> int:
    """Coordinate the runs of containers, one after the other. Returns the exit code.

    directory: mounted; the orchestrator's requests and the runs are in it.
    """
    with socket.create_server(("", PORT), backlog=BACKLOG) as listener:
        channel = coordinators_channel(directory)
        return asyncio.run(serve(channel, directory, lambda: ContainerAgents(listener), topology))


async def serve(
    channel: Channel[Request],
    directory: Path,
    members: Callable[[], Members],
    topology: str = "",
    idle_s: float = IDLE_S,
    silence_s: float = inf,
    facts: Callable[[], Mapping[str, float | str]] = dict,
) -> int:
    """Coordinate one run after the other, as the orchestrator asks for them. Returns the exit code.

    Args:
        channel: connects it to the orchestrator.
        directory: the directories of runs are relative to it.
        members: the agents of a run.
        topology: the topology of the containers; elsewhere empty, since agents suit each.
        idle_s: seconds without a request between runs, after which it ends.
        silence_s: the same, during a run.
        facts: of the cluster, in the answer to a heartbeat.
    """
    requests = Requests(channel, facts)
    while request := await requests.next_run(idle_s):
        run = directory / request.directory
        fields = _fields(run / SPEC)
        begin, end = log_marks(request.name)
        print(begin, flush=True)
        coordinator = Coordinator(
            members(),
            topology or _topology_of(fields),
            fields,
            run,
            site=Site.model_validate(request.site),
            tell=partial(_tell, channel, request.run),
            warm=request.warm,
        )
        following = asyncio.create_task(requests.follow(request.run, coordinator, silence_s))
        code, lines = await coordinator.run()
        following.cancel()
        _write_summary(run, lines)
        print("\n".join([*lines, end]), flush=True)
        ending = Ending(
            exits={**coordinator.exits, "coordinator": code},
            failures=dict(coordinator.failures),
            unreported=dict(coordinator.unreported),
            lost=coordinator.lost,
            cut_off=coordinator.cut_off,
            untrusted=coordinator.untrusted,
        )
        _tell(channel, request.run, "ended", ending=ending)
    return 0


class Requests:
    """What the orchestrator asks for, request by request."""

    def __init__(
        self, channel: Channel[Request], facts: Callable[[], Mapping[str, float | str]] = dict
    ) -> None:
        self._channel, self._facts = channel, facts
        self._pending, self._cancelled, self._ended = deque[Request](), set[int](), False

    def _read(self) -> Sequence[Request]:
        try:
            found = self._channel.new()
        except ValueError as error:
            print(f"the orchestrator sent invalid data: {error}", file=sys.stderr)
            found, self._ended = [], True
        self._ended |= self._channel.closed or any(each.kind == "end" for each in found)
        self._pending += [each for each in found if each.kind == "run"]
        self._cancelled |= {each.run for each in found if each.kind == "cancel"}
        if beats := [each.beat for each in found if each.kind == "beat"]:
            _tell(self._channel, 0, "alive", beat=beats[-1], facts=dict(self._facts()))
        return found

    async def next_run(self, idle_s: float) -> Request | None:
        """The next run; None if the orchestrator has ended, or asks for nothing within `idle_s`."""
        heard_at = time.monotonic()
        while not self._ended and time.monotonic() - heard_at < idle_s:
            if self._pending:
                return self._pending.popleft()
            if self._read():
                heard_at = time.monotonic()
            else:
                await asyncio.sleep(self._channel.poll_s)
        return None

    async def follow(self, run: int, coordinator: Coordinator, silence_s: float) -> None:
        """Interrupt a run that the orchestrator cancels, or whose orchestrator is silent."""
        silence = Silence()
        while not coordinator.interruption:
            found = self._read()
            if found:
                silence.end()
            if self._ended or run in self._cancelled:
                coordinator.interrupt("cancelled by the orchestrator")
            elif silence.look() > silence_s:
                self._ended = True
                coordinator.interrupt(f"no heartbeat of the orchestrator for {silence_s:g} s")
            await asyncio.sleep(CANCEL_POLL_S)


def _tell(channel: Channel[Request], run: int, kind: str, **fields: Any) -> None:
    with suppress(OSError):  # the orchestrator is gone; or a disk is full, which the run record names
        channel.post(Answer.model_validate({"kind": kind, "run": run, **fields}))


def _topology_of(fields: Mapping[str, Any] | AssignmentError) -> str:
    """The topology of a run; any, if its spec is wrong, which the coordinator reports."""
    with suppress(ValidationError):
        if not isinstance(fields, AssignmentError):
            return RunSpec.model_validate(fields).topology
    return "single"


def _fields(spec: Path) -> Mapping[str, Any] | AssignmentError:
    try:
        return read_spec(spec)
    except AssignmentError as error:
        return error


def _write_summary(directory: Path, lines: Sequence[str]) -> None:
    with suppress(OSError):  # a full disk is already in the summary
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "summary.txt").write_text("\n".join(lines) + "\n")

"""An agent: registers with the coordinator, starts its ranks, and forwards their events."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from trainer.core.cgroup import measure
from trainer.core.events import (
    MAX_BYTES,
    Event,
    EventWriter,
    RankEvents,
    Tail,
    how_ended,
    make_files,
    signal_name,
)
from trainer.core.membership import Membership, is_return
from trainer.core.processes import is_suspended
from trainer.core.trace import trace_path
from trainer.node import mpi_rank, ssh
from trainer.node.clean_up import remove_traces, settings
from trainer.node.commands import (
    HOME,
    HOSTS,
    MEMBERSHIP,
    OUT,
    SPEC,
    SSH,
    TRAINER,
    Command,
    commands,
    environment,
    hosts,
    launcher_of,
)
from trainer.node.hand_over import log_marks
from trainer.node.heartbeat import BEAT_S, COORDINATOR_SILENCE_S, LOOK_S, Silence
from trainer.node.protocol import FROM_COORDINATOR, MAX_ASSIGNMENT_BYTES, MAX_BODY_BYTES, PORT, Connection
from trainer.node.rank_assignment import AssignmentError, RankAssignment
from trainer.node.run_record import WEIGHTS, membership_of
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import EXIT_S, ParentError, ParentProcess

CONNECT_S = 600.0  # to reach the coordinator, which compose starts after every node
FORWARD_S = 0.2  # between checks for new events
TERMINATE_S = 2.0  # between SIGTERM and SIGKILL
WAIT_S = 3600.0  # for ranks
RETRY_S = 0.5  # of a warm agent that the coordinator has rejected
MOST_LINES = MAX_BODY_BYTES // (MAX_BYTES + 1)  # of events in a message
FULL_BYTES = 2**20  # left on a full disk: sshd, for example, removes a file when it ends


class CoordinatorGone(Exception):
    """The coordinator has ended before it assigned ranks."""


class Agent:
    """One container's share of one run. `run` is its whole life."""

    def __init__(
        self,
        role: str,
        topology: str,
        parent: ParentProcess | None = None,
        replaced: str | None = None,
        clean_up: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            role: the container's compose service.
            topology: the topology of the containers.
            parent: forks the ranks, if the container is warm.
            replaced: why it was replaced before this run.
            clean_up: removes what the run has left in a warm container. Returns what it cannot remove.
        """
        self._role, self._topology = role, topology
        self._parent, self._replaced, self._clean_up = parent, replaced, clean_up
        self._run_key = ""
        self._tail = Tail(OUT)
        self._pids: dict[int, int] = {}  # of ranks that have started
        self._mpirun = 0  # its exit code
        self._processes: list[tuple[Command, asyncio.subprocess.Process]] = []
        self._shutdown = asyncio.Event()
        self._signal: str | None = None  # that has ended this run in a warm container
        self._finished = False  # then exit codes no longer matter, see RunRecord.finished
        self._cut_off = False  # from the coordinator
        self._return_after: Mapping[int, float] = {}  # seconds, by number of the fault that kills
        self._return_after_s: float | None = None  # of the fault that has just fired
        self._incarnation = 0  # of its ranks
        self._sending = asyncio.Lock()
        self._sshd: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Register, run this container's processes, forward their events. Returns the exit code.

        Raises CoordinatorGone, or AssignmentError if there is nothing to run.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(parents=True)
        public_keys = self._set_up_ssh()
        connection = await self._connect()
        try:
            await connection.send("hello", public_keys=public_keys, replaced=self._replaced)
            assignment = await self._receive_assignment(connection)
            code = await self._execute(assignment, connection) if assignment else 0
            if self._parent:
                await self._leave(assignment, connection)
            return code
        finally:
            await connection.close()

    def _stop(self, number: signal.Signals) -> None:
        """End the run because of a signal to the container; the engine sends one to a cold container."""
        self._signal = number.name if self._parent else None
        self._shutdown.set()

    async def _execute(self, assignment: RankAssignment, connection: Connection) -> int:
        """Run the assigned ranks, and forward what they write. Returns the exit code."""
        before = measure()
        self._run_key = assignment.spec.key
        if self._parent:
            print(log_marks(assignment.spec.key)[0], flush=True)
        self._write_files(assignment)
        make_files(OUT, assignment.agent.ranks)
        self._tail = Tail(OUT, made=assignment.agent.ranks)
        listening = asyncio.create_task(self._wait_for_shutdown(connection))
        forwarding = asyncio.create_task(self._forward(connection))
        beating = asyncio.create_task(self._beat(connection))
        codes, cause = await self._run_processes(assignment, connection)
        # All events and files are sent before the exit codes.
        await self._send_new_events(connection)
        await self._send_file(connection, OUT / WEIGHTS, "weights")
        for rank in assignment.agent.ranks:
            await self._send_file(connection, trace_path(OUT, rank), "trace", rank=rank)
        usage = measure().since(before) if self._parent else measure()
        # A parent killed for lack of memory is the run's own fault: it loaded the run's data.
        lost = None if usage.out_of_memory else self._loss(codes)
        await connection.send(
            "exit",
            codes=codes,
            cause=cause,
            usage=usage.model_dump(),
            lost=lost,
            full=_is_full(OUT),
            mpirun=self._mpirun,
        )
        await self._shutdown.wait()
        for task in (listening, forwarding, beating):
            task.cancel()
        await self._send_new_events(connection)
        return 1 if not self._finished and (cause or self._cut_off or any(codes.values())) else 0

    async def _leave(self, assignment: RankAssignment | None, connection: Connection) -> None:
        """Clean the warm container, and wait until the coordinator has ended the run.

        Only then does the container connect again, so whatever connects before belongs to this run.
        """
        left = self._clean_up()
        if assignment:
            print(log_marks(assignment.spec.key)[1], flush=True)
        await connection.send("clean", left=left)
        with suppress(TimeoutError):
            async with asyncio.timeout(COORDINATOR_SILENCE_S):
                while await connection.receive():
                    pass

    def _set_up_ssh(self) -> dict[str, str]:
        """Create this container's keys and start sshd, for Open MPI only. Returns the public keys."""
        if self._topology != "mpi":
            return {}
        if self._role == "launcher":
            return {"key": ssh.make_key(SSH / "key")}
        host_key = ssh.make_key(SSH / "host_key")
        self._sshd = ssh.start_server(SSH)
        return {"host_key": host_key}

    async def _connect(self) -> Connection:
        """Connect to the coordinator; its name does not resolve until compose has started it."""
        deadline = time.monotonic() + CONNECT_S
        while True:
            (HOME / "alive").touch()
            try:
                streams = await asyncio.open_connection("coordinator", PORT, limit=MAX_ASSIGNMENT_BYTES)
                return Connection(*streams, FROM_COORDINATOR)
            except OSError:
                if time.monotonic() > deadline:
                    raise AssignmentError(f"no coordinator answered within {CONNECT_S:.0f} s") from None
            if self._shutdown.is_set():
                raise AssignmentError("stopped before ranks were assigned")
            await asyncio.sleep(0.1)

    async def _receive_assignment(self, connection: Connection) -> RankAssignment | None:
        """Wait for ranks. None if the run does not need this warm container."""
        _pass_health_check()
        receiving = asyncio.create_task(connection.receive())
        stopped = asyncio.create_task(self._shutdown.wait())
        await asyncio.wait({receiving, stopped}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        (HOME / "alive").touch()
        if not receiving.done():
            raise AssignmentError("stopped before ranks were assigned")
        stopped.cancel()
        message = receiving.result()
        if message is None:
            raise CoordinatorGone
        if message["kind"] == "shutdown":
            if self._parent:
                return None
            raise AssignmentError("the coordinator cancelled the run; its log says why")
        if message["kind"] != "assignment":
            raise AssignmentError(str(message.get("cause")))
        return RankAssignment.from_message(message)

    def _write_files(self, assignment: RankAssignment) -> None:
        """Write the files that this container's processes read."""
        SPEC.write_text(assignment.spec.model_dump_json())
        if tracker := membership_of(assignment):
            tracker.current.write(MEMBERSHIP)
            self._return_after = assignment.spec.return_after
        if self._topology != "mpi":
            return
        launcher = launcher_of(assignment)
        if self._role == "launcher":
            nodes = [agent for agent in assignment.agents if agent.ranks]
            keys = [(node.address, node.public_keys["host_key"]) for node in nodes]
            (SSH / "known_hosts").write_text(ssh.known_hosts(keys))
            (SSH / "config").write_text(ssh.client_config(SSH))
            HOSTS.write_text(hosts(assignment))
            return
        key = ssh.authorized_key(launcher.public_keys["key"], launcher.address)
        (SSH / "authorized_keys").write_text(key)
        # ssh starts ranks without the container's environment.
        inherited = {"SHARDYARD_CPU_QUOTA": os.environ.get("SHARDYARD_CPU_QUOTA", "")}
        rank = {"argv": self._trainer, "environment": {**inherited, **environment(assignment, os.getpid())}}
        draft = mpi_rank.COMMAND.with_suffix(".new")
        draft.write_text(json.dumps(rank))
        draft.replace(mpi_rank.COMMAND)

    @property
    def _trainer(self) -> Sequence[str]:
        """The command of a rank."""
        return self._parent.command if self._parent else TRAINER

    def _loss(self, codes: Mapping[int, int]) -> str | None:
        """How the warm parent has failed, or None."""
        refused = UNAVAILABLE in codes.values()
        failure = self._parent.failure(EXIT_S if refused else 0.0) if self._parent else None
        return failure or ("did not fork a rank, whose log says why" if refused else None)

    async def _run_processes(
        self, assignment: RankAssignment, connection: Connection
    ) -> tuple[dict[int, int], str | None]:
        """Start this container's processes and wait for them. Returns exit codes by rank, and a cause."""
        for command in commands(assignment, os.getpid(), self._trainer):
            self._processes.append((command, await _start(command)))
        if not self._processes:
            return await self._serve_ssh(assignment.agent.ranks)
        ended = asyncio.ensure_future(self._all_ended(connection))
        shutdown = asyncio.ensure_future(self._shutdown.wait())
        await asyncio.wait([ended, shutdown], return_when=asyncio.FIRST_COMPLETED)
        shutdown.cancel()
        if not ended.done():
            self._report_signal(assignment.agent.ranks)
            await self._terminate(ended)
        codes = {rank: _code(process) for command, process in self._processes for rank in command.ranks}
        self._mpirun = next(
            (_code(process) for command, process in self._processes if not command.ranks), 0
        )
        if self._signal and not assignment.agent.ranks:
            return codes, f"stopped with its container by {self._signal}"
        return codes, f"mpirun {how_ended(self._mpirun)}" if self._mpirun else None

    async def _all_ended(self, connection: Connection) -> bool:
        """Wait for all processes, and start those again whose rank returns."""
        while True:
            for _, process in self._processes:
                await process.wait()
            await self._send_new_events(connection)  # they say whether it returns
            if (after_s := self._return_after_s) is None:
                return True
            self._return_after_s = None
            for rank in self._processes[0][0].ranks:
                name = signal_name(-_code(self._processes[0][1]))
                self._report_death(rank, f"killed by {name}", name)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._shutdown.wait(), after_s)
                return True
            self._incarnation += 1
            again = {"SHARDYARD_INCARNATION": str(self._incarnation)}
            commands = [command for command, _ in self._processes]
            self._processes = [(command, await _start(command, again)) for command in commands]

    def _report_signal(self, ranks: Iterable[int]) -> None:
        """Write exit reports if a signal ends the run, before the ranks and their peers write theirs."""
        if name := self._signal:
            for rank in ranks:
                self._report_death(rank, f"stopped with its container by {name}", name)

    def _report_death(self, rank: int, cause: str, signal: str) -> None:
        """Write the exit report of a rank that a signal ends; the exit codes are only sent at the end."""
        with closing(EventWriter(self._run_key, rank, OUT)) as writer:
            writer.write_quietly("died", cause=cause, signal=signal)

    async def _serve_ssh(self, ranks: Iterable[int]) -> tuple[dict[int, int], str | None]:
        """Run no process but sshd, through which mpirun starts ranks, until shutdown."""
        while not self._shutdown.is_set():
            if self._sshd and self._sshd.poll() is not None:
                return {}, f"sshd ended with exit code {self._sshd.returncode}"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._shutdown.wait(), 0.5)
        self._report_signal(ranks)
        await self._end_ranks()
        if self._sshd:
            self._sshd.terminate()
        return {}, None

    async def _end_ranks(self) -> None:
        """Stop the ranks that mpirun has started here, and wait for their exit reports."""
        ranks = []
        for pid in self._pids.values():
            with suppress(psutil.Error):  # it has ended
                ranks.append(psutil.Process(pid))
                ranks[-1].terminate()
        await asyncio.to_thread(psutil.wait_procs, ranks, TERMINATE_S)

    async def _terminate(self, ended: asyncio.Future[bool]) -> None:
        """Send SIGTERM, then SIGKILL to processes that are still running."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _, process in self._processes:
                with suppress(ProcessLookupError):
                    process.send_signal(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), TERMINATE_S)
                return

    async def _wait_for_shutdown(self, connection: Connection) -> None:
        """Shut down when the coordinator says so or is silent, or its connection is lost."""
        silence = Silence()
        while True:
            receiving = asyncio.ensure_future(connection.receive())
            while not receiving.done():
                (HOME / "alive").touch()
                if silence.look() > COORDINATOR_SILENCE_S:
                    print(f"{self._role}: no heartbeat of the coordinator: cut off the network", flush=True)
                    self._cut_off = True
                    receiving.cancel()
                    connection.abort()  # else what is left to send blocks the end
                    self._shutdown.set()
                    return
                await asyncio.wait({receiving}, timeout=LOOK_S)
            message = receiving.result()
            if not message or message["kind"] == "shutdown":
                break
            if message["kind"] == "membership":
                fields = {name: value for name, value in message.items() if name != "kind"}
                Membership.model_validate(fields).write(MEMBERSHIP)
            silence.end()
        self._finished = bool(message and message.get("finished"))
        self._shutdown.set()

    async def _forward(self, connection: Connection) -> None:
        while True:
            await self._send_new_events(connection)
            await asyncio.sleep(FORWARD_S)

    async def _beat(self, connection: Connection) -> None:
        """Send heartbeats with the processes that are suspended, which the coordinator answers."""
        while True:
            suspended = [rank for rank, pid in self._pids.items() if is_suspended(pid)]
            mpirun = [process.pid for command, process in self._processes if not command.ranks]
            stopped = next(filter(is_suspended, mpirun), None)
            await connection.send("alive", suspended=suspended, mpirun=stopped)
            await asyncio.sleep(BEAT_S)

    async def _send_new_events(self, connection: Connection) -> None:
        async with self._sending:  # two calls must not send out of order
            for written in self._tail.written():
                lines = [line[:MAX_BYTES] for line in written.lines.split(b"\n") if line]
                if written.fault:
                    damaged = RankEvents(written.rank).damaged(written.fault, written.rest)
                    lines.append(damaged.to_line().encode())
                self._look_at(written.rank, lines)
                for at in range(0, len(lines), MOST_LINES):
                    body = b"\n".join(lines[at : at + MOST_LINES])
                    await connection.send("events", body, rank=written.rank)

    def _look_at(self, rank: int, lines: Iterable[bytes]) -> None:
        """Learn what this agent needs of a rank's events. The coordinator checks all of them."""
        for line in lines:
            if b'"start"' in line or b'"fault"' in line:
                with suppress(ValueError):
                    event = Event.from_line(line.decode(errors="replace"))
                    if event.kind == "start" and event.rank == rank:
                        self._pids[rank] = event.fields["pid"]
                    if event.kind == "fault" and is_return(event, self._return_after):
                        self._return_after_s = self._return_after[event.fields["fault"]]

    async def _send_file(self, connection: Connection, path: Path, kind: str, **fields: int) -> None:
        """Send a file that a rank has written, if it is there, in messages of this kind."""
        if not path.exists():
            return
        left = path.stat().st_size
        with open(path, "rb") as file:
            while part := file.read(MAX_BODY_BYTES):
                left -= len(part)
                await connection.send(kind, part, **fields, last=left <= 0)


def _pass_health_check() -> None:
    """Let the health check pass until the next touch, so that waiting takes no CPU time."""
    (HOME / "alive").touch()
    os.utime(HOME / "alive", times=(time.time() + WAIT_S,) * 2)


async def _start(
    command: Command, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a process. environment: variables in addition to the command's."""
    return await asyncio.create_subprocess_exec(
        *command.argv,
        env={**os.environ, **command.environment, **(environment or {})},
        stderr=asyncio.subprocess.STDOUT,  # one stream, so that the engine keeps the order of lines
    )


def _is_full(directory: Path) -> bool:
    """Whether nearly no space is left on the disk of a directory."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


def _code(process: asyncio.subprocess.Process) -> int:
    return 0 if process.returncode is None else process.returncode


def main(role: str, topology: str, warm: bool = False) -> int:
    """Run the agent of one container. Returns its exit code.

    warm: take one run after the other, whose ranks are forked from a process that holds torch.
    """
    try:
        return _serve(role, topology) if warm else asyncio.run(Agent(role, topology).run())
    except CoordinatorGone:
        print(f"{role}: the coordinator has ended", file=sys.stderr)
        return 0 if warm else 1  # the coordinator's own exit code says why
    except (AssignmentError, ParentError) as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 1


def _serve(role: str, topology: str) -> NoReturn:
    """Take one run after the other. Raises CoordinatorGone when there are no more."""
    parent = ParentProcess("shardyard", {})
    while True:
        _pass_health_check()  # importing torch takes long on a node with a tenth of a core
        replaced = None if role == "launcher" else parent.ensure()  # it runs no ranks
        kept = settings([os.getpid(), *([parent.pid] if parent.pid else [])])
        clean_up = partial(remove_traces, kept, parent.refuse_waiting)
        try:
            asyncio.run(Agent(role, topology, parent, replaced, clean_up).run())
        except AssignmentError as error:
            print(f"{role}: {error}", file=sys.stderr)
            time.sleep(RETRY_S)

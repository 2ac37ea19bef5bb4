"""An agent: takes runs from the coordinator, starts their ranks, forwards their events, and cleans up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

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
from trainer.node import ssh
from trainer.node.channel import log_marks
from trainer.node.commands import TRAINER, Command, commands, environment, hosts, launcher_of
from trainer.node.heartbeat import BEAT_S, COORDINATOR_SILENCE_S, LOOK_S, Silence
from trainer.node.home import CONTAINER, Home
from trainer.node.preparation import Refusal, prepared
from trainer.node.protocol import FROM_COORDINATOR, MAX_ASSIGNMENT_BYTES, MAX_BODY_BYTES, PORT, Connection
from trainer.node.rank_assignment import AssignmentError, RankAssignment
from trainer.node.run_record import WEIGHTS, membership_of
from trainer.spec.output_limits import OutputLimits
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import EXIT_S, ParentProcess

CONNECT_S = 600.0  # to reach the coordinator, which compose starts after every node
FORWARD_S = 0.2  # between checks for new events
TERMINATE_S = 2.0  # between SIGTERM and SIGKILL
WAIT_S = 3600.0  # for ranks
MOST_LINES = MAX_BODY_BYTES // (MAX_BYTES + 1)  # of events in a message
FULL_BYTES = 2**20  # left on a full disk: sshd, for example, removes a file when it ends


class CoordinatorGone(Exception):
    """The coordinator has ended before it assigned ranks."""


class Agent:
    """One node's share of one run. `run` is its whole life in a container, `take` elsewhere."""

    def __init__(
        self,
        role: str,
        topology: str = "",
        parent: ParentProcess | None = None,
        replaced: str | None = None,
        clean_up: Callable[[], str | None] | None = None,
        home: Home = CONTAINER,
    ) -> None:
        """
        Args:
            role: the compose service of its container; elsewhere node or launcher.
            topology: the topology of the containers.
            parent: forks the ranks, if the node is warm.
            replaced: why it was replaced before this run.
            clean_up: removes what the run has left on a node that takes another one. Returns what it cannot
                remove. None: the node ends with this run.
            home: its files.
        """
        self._role, self._topology, self._home = role, topology, home
        self._parent, self._replaced, self._clean_up = parent, replaced, clean_up
        self._run_key = ""
        self._in_container = home == CONTAINER
        self._tail = Tail(home.out)
        self._pids: dict[int, int] = {}  # of ranks that have started
        self._mpirun = 0  # its exit code
        self._processes: list[tuple[Command, asyncio.subprocess.Process]] = []
        self._shutdown = asyncio.Event()
        self._signal: str | None = None  # that has ended this run
        self._finished = False  # then exit codes no longer matter, see RunRecord.finished
        self._cut_off = False  # from the coordinator
        self._return_after: Mapping[int, float] = {}  # seconds, by number of the fault that kills
        self._return_after_s: float | None = None  # of the fault that has just fired
        self._incarnation = 0  # of its ranks
        self._sending = asyncio.Lock()
        self._sshd: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Connect to the coordinator of containers, and take a run. Returns the exit code.

        Raises CoordinatorGone, or AssignmentError if there is nothing to run.
        """
        self._handle_signals()
        public_keys = self._set_up_ssh()
        connection = await self._connect()
        try:
            return await self.take(connection, public_keys=public_keys)
        finally:
            await connection.close()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    async def take(self, connection: Connection, **hello: Any) -> int:
        """Register, run this node's processes, forward their events. Returns the exit code.

        hello: see `Hello`. Raises CoordinatorGone, or AssignmentError if there is nothing to run.
        """
        self._handle_signals()
        shutil.rmtree(self._home.out, ignore_errors=True)
        self._home.out.mkdir(parents=True)
        await connection.send("hello", replaced=self._replaced, **hello)
        assignment = await self._receive_assignment(connection)
        code = await self._execute(assignment, connection) if assignment else 0
        if self._clean_up:
            await self._leave(self._clean_up, assignment, connection)
        return code

    @property
    def stopped(self) -> bool:
        """Whether a signal has ended the run."""
        return self._signal is not None

    def _stop(self, number: signal.Signals) -> None:
        """End the run because of a signal to the node; an engine sends one to a cold container."""
        self._signal = number.name if self._clean_up else None
        self._shutdown.set()

    async def _execute(self, assignment: RankAssignment, connection: Connection) -> int:
        """Run the assigned ranks, and forward what they write. Returns the exit code."""
        before = measure()
        self._run_key = assignment.spec.key
        if self._clean_up and self._in_container:
            print(log_marks(assignment.spec.key)[0], flush=True)
        listening = asyncio.create_task(self._wait_for_shutdown(assignment, connection))
        beating = asyncio.create_task(self._beat(connection))
        make_files(self._home.out, assignment.agent.ranks)
        self._tail = Tail(self._home.out, made=assignment.agent.ranks)
        forwarding = asyncio.create_task(self._forward(assignment, connection))
        codes: dict[int, int] = {}
        try:
            assignment = await asyncio.to_thread(prepared, assignment)
            self._write_files(assignment)
            codes, cause = await self._run_processes(assignment, connection)
        except Refusal as refusal:
            cause = str(refusal)
        # All events and files are sent before the exit codes.
        await self._send_new_events(connection)
        await self._send_file(connection, self._home.out / WEIGHTS, "weights")
        for rank in assignment.agent.ranks:
            await self._send_file(connection, trace_path(self._home.out, rank), "trace", rank=rank)
        usage = measure().since(before) if self._clean_up else measure()
        # A parent killed for lack of memory is the run's own fault: it loaded the run's data.
        lost = None if self._in_container and usage.out_of_memory else self._loss(codes)
        await connection.send(
            "exit",
            codes=codes,
            cause=cause,
            usage=usage.model_dump() if self._in_container else None,
            lost=lost,
            full=str(self._home.path) if _is_full(self._home.out) else None,
            mpirun=self._mpirun,
        )
        await self._shutdown.wait()
        for task in (listening, forwarding, beating):
            task.cancel()
        await self._send_new_events(connection)
        return 1 if not self._finished and (cause or self._cut_off or any(codes.values())) else 0

    async def _leave(
        self, clean_up: Callable[[], str | None], assignment: RankAssignment | None, connection: Connection
    ) -> None:
        """Clean the node. A container waits until the coordinator has ended the run.

        Only then does it connect again, so whatever connects before belongs to this run.
        """
        left = await asyncio.to_thread(clean_up)
        if assignment and self._in_container:
            print(log_marks(assignment.spec.key)[1], flush=True)
        await connection.send("clean", left=left)
        if not self._in_container:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(COORDINATOR_SILENCE_S):
                while await connection.receive():
                    pass

    def _set_up_ssh(self) -> dict[str, str]:
        """Create this container's keys and start sshd, for Open MPI only. Returns the public keys."""
        if self._topology != "mpi":
            return {}
        if self._role == "launcher":
            return {"key": ssh.make_key(self._home.ssh / "key")}
        host_key = ssh.make_key(self._home.ssh / "host_key")
        self._sshd = ssh.start_server(self._home.ssh)
        return {"host_key": host_key}

    async def _connect(self) -> Connection:
        """Connect to the coordinator; its name does not resolve until compose has started it."""
        deadline = time.monotonic() + CONNECT_S
        while True:
            self._home.alive.touch()
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
        pass_health_check(self._home)
        receiving = asyncio.create_task(connection.receive())
        stopped = asyncio.create_task(self._shutdown.wait())
        await asyncio.wait({receiving, stopped}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        self._home.alive.touch()
        if not receiving.done():
            raise AssignmentError("stopped before ranks were assigned")
        stopped.cancel()
        message = receiving.result()
        if message is None:
            raise CoordinatorGone
        if message["kind"] == "shutdown":
            if self._clean_up:
                return None
            raise AssignmentError("the coordinator cancelled the run; its log says why")
        if message["kind"] != "assignment":
            raise AssignmentError(str(message.get("cause")))
        return RankAssignment.from_message(message)

    def _write_files(self, assignment: RankAssignment) -> None:
        """Write the files that this node's processes read."""
        home = self._home
        home.spec.write_text(assignment.spec.model_dump_json())
        if tracker := membership_of(assignment):
            tracker.current.write(home.membership)
            self._return_after = assignment.spec.return_after
        if assignment.spec.topology != "mpi":
            return
        if self._topology == "mpi":
            self._write_ssh_files(assignment)
        if self._role == "launcher":
            return
        # ssh starts ranks without the container's environment.
        inherited = {"SHARDYARD_CPU_QUOTA": os.environ.get("SHARDYARD_CPU_QUOTA", "")}
        variables = {**inherited, **environment(assignment, home, os.getpid())}
        draft = home.rank.with_suffix(".new")
        draft.write_text(json.dumps({"argv": self._trainer, "environment": variables}))
        draft.replace(home.rank)

    def _write_ssh_files(self, assignment: RankAssignment) -> None:
        """Let the launcher reach the nodes, and no one else."""
        directory, launcher = self._home.ssh, launcher_of(assignment)
        if self._role == "launcher":
            nodes = [agent for agent in assignment.agents if agent.ranks]
            keys = [(node.address, node.public_keys["host_key"]) for node in nodes]
            (directory / "known_hosts").write_text(ssh.known_hosts(keys))
            (directory / "config").write_text(ssh.client_config(directory))
            self._home.hosts.write_text(hosts(assignment))
        else:
            key = ssh.authorized_key(launcher.public_keys["key"], launcher.address)
            (directory / "authorized_keys").write_text(key)

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
        """Start this node's processes and wait for them. Returns exit codes by rank, and a cause."""
        log = self._log_of(assignment)
        for command in commands(assignment, self._home, os.getpid(), self._trainer):
            self._processes.append((command, await _start(command, log)))
        if not self._processes:
            return await self._serve_ssh(assignment.agent.ranks)
        ended = asyncio.ensure_future(self._all_ended(log, connection))
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
            return codes, f"stopped with {self._place} by {self._signal}"
        return codes, f"mpirun {how_ended(self._mpirun)}" if self._mpirun else None

    @property
    def _place(self) -> str:
        return "its container" if self._in_container else "its node"

    def _log_of(self, assignment: RankAssignment) -> Path | None:
        """The log of this node's processes; None: they write to the output of this process."""
        if not assignment.site.console:
            return None
        name = "launcher" if self._role == "launcher" else f"node-{assignment.node}"
        return Path(assignment.site.console) / f"{name}.log"

    async def _all_ended(self, log: Path | None, connection: Connection) -> bool:
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
            self._processes = [(command, await _start(command, log, again)) for command in commands]

    def _report_signal(self, ranks: Iterable[int]) -> None:
        """Write exit reports if a signal ends the run, before the ranks and their peers write theirs."""
        if name := self._signal:
            for rank in ranks:
                self._report_death(rank, f"stopped with {self._place} by {name}", name)

    def _report_death(self, rank: int, cause: str, signal: str) -> None:
        """Write the exit report of a rank that a signal ends; the exit codes are only sent at the end."""
        with closing(EventWriter(self._run_key, rank, self._home.out)) as writer:
            writer.write_quietly("died", cause=cause, signal=signal)

    async def _serve_ssh(self, ranks: Iterable[int]) -> tuple[dict[int, int], str | None]:
        """Run no process, or only sshd through which mpirun starts ranks, until shutdown."""
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
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)  # it leads the group of what it has started
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), TERMINATE_S)
                return

    async def _wait_for_shutdown(self, assignment: RankAssignment, connection: Connection) -> None:
        """Shut down when the coordinator says so or is silent, or its connection is lost."""
        silence, longest_s = Silence(), assignment.site.silence_s + COORDINATOR_SILENCE_S / 2
        while True:
            receiving = asyncio.ensure_future(connection.receive())
            while not receiving.done():
                self._home.alive.touch()
                if silence.look() > longest_s:
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
                Membership.model_validate(fields).write(self._home.membership)
            silence.end()
        self._finished = bool(message and message.get("finished"))
        self._shutdown.set()

    async def _forward(self, assignment: RankAssignment, connection: Connection) -> None:
        limits, ranks, out = OutputLimits.of(assignment.spec), assignment.agent.ranks, self._home.out
        files = [(rank, trace_path(out, rank), limits.trace_bytes) for rank in ranks]
        files += [(0, out / WEIGHTS, limits.weight_bytes)] if 0 in ranks else []
        while True:
            await self._send_new_events(connection)
            for rank, path, most in files:
                # A container's files are limited by their file system.
                if not self._in_container and (size := _size(path)) > most:
                    path.unlink(missing_ok=True)
                    too_large = _damaged(rank, f"{path.name}: {size} bytes; allowed: {most}")
                    await self._send_lines(connection, rank, [too_large])
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
                    lines.append(_damaged(written.rank, written.fault, written.rest))
                self._look_at(written.rank, lines)
                await self._send_lines(connection, written.rank, lines)

    async def _send_lines(self, connection: Connection, rank: int, lines: Sequence[bytes]) -> None:
        for at in range(0, len(lines), MOST_LINES):
            await connection.send("events", b"\n".join(lines[at : at + MOST_LINES]), rank=rank)

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


def _damaged(rank: int, reason: str, line: bytes = b"") -> bytes:
    """The line of an event that says what is wrong with what a rank has written."""
    return RankEvents(rank).damaged(reason, line).to_line().encode()


def _size(path: Path) -> int:
    """The size of a file; 0 if there is none."""
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def pass_health_check(home: Home) -> None:
    """Let the health check pass until the next touch, so that waiting takes no CPU time."""
    home.alive.touch()
    os.utime(home.alive, times=(time.time() + WAIT_S,) * 2)


async def _start(
    command: Command, log: Path | None, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a process. environment: variables in addition to the command's."""
    with open(log, "ab") if log else nullcontext() as output:
        return await asyncio.create_subprocess_exec(
            *command.argv,
            env={**os.environ, **command.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,  # one stream, so that an engine keeps the order of lines
            start_new_session=True,
        )


def _is_full(directory: Path) -> bool:
    """Whether nearly no space is left on the disk of a directory."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


def _code(process: asyncio.subprocess.Process) -> int:
    return 0 if process.returncode is None else process.returncode

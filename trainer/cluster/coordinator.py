"""The head: calls the roll, keeps what the members send, and ends when they have ended."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.cluster.commands import CHECKPOINTS
from trainer.cluster.protocol import LIMIT, PORT, Message, Wire
from trainer.cluster.rank_assignment import (
    ROLES,
    Agent,
    AssignmentError,
    RankAssignment,
    assign_ranks,
    read_spec,
)
from trainer.cluster.run_record import RunRecord
from trainer.core.events import Event

ROLL_CALL_S = 120.0  # from the head's start until every member has reported
GRACE_S = 2.0  # after one member has failed, the others get this long to fail and say so themselves
LEAVE_S = 5.0  # after `bye`: how long nobody may say anything before all must be gone


class Head:
    """One run. `lead` is its life."""

    def __init__(
        self,
        topology: str,
        fields: Mapping[str, Any] | AssignmentError,
        directory: Path,
        limits: Mapping[str, float],
    ) -> None:
        """fields: of the run's spec, or why it cannot be read. limits: see `call_roll`."""
        self._topology, self._directory = topology, directory
        self._fields, self._limits = fields, limits
        self._expected: dict[str, tuple[str, int]] = {}  # address: role, ordinal
        self._present: dict[str, tuple[Agent, Wire]] = {}
        self._news = asyncio.Event()  # someone came, spoke, ended or was lost
        self._interrupted = asyncio.Event()
        self._running: set[str] = set()  # addresses whose own processes have not ended
        self._reported: set[str] = set()  # and those that have said how theirs ended
        self._heard = 0.0  # when a member last said something
        self._run_record: RunRecord | None = None

    async def lead(self) -> tuple[int, list[str]]:
        """From the roll call to the last member's end; the exit code, and how it went."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._interrupted.set)
        server = await asyncio.start_server(self._meet, port=PORT, limit=LIMIT)
        try:
            run_record = self._run_record = await self._call_roll()
            ended = asyncio.create_task(self._until_all_have_ended(run_record))
            stopped = asyncio.create_task(self._interrupted.wait())
            both, first = {ended, stopped}, asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(both, timeout=run_record.timeout_s, return_when=first)
            for task in (ended, stopped):
                task.cancel()
            if self._interrupted.is_set():
                run_record.failures.setdefault("the run", "stopped from outside")
            elif not done:
                run_record.failures.setdefault("the run", f"stopped after {run_record.timeout_s:g} s")
            await self._dismiss()
        except AssignmentError as error:
            await self._dismiss()
            return 1, [f"FAILED: {error}"]
        finally:
            server.close()  # wait_closed would wait for a member that does not leave
        if not run_record.complete or run_record.failures:
            return 1, run_record.summary()
        shutil.rmtree(CHECKPOINTS / run_record.key, ignore_errors=True)  # of no use any more
        return 0, run_record.summary()

    async def _call_roll(self) -> RunRecord:
        """Wait for every member whose container has been started, and tell all who is who."""
        self._expected = expected_members(self._topology)
        await self._until_all_are_present()
        if isinstance(
            self._fields, AssignmentError
        ):  # told only now: who has not come yet would wait in vain
            raise self._fields
        present = [member for member, _ in self._present.values()]
        assignment = assign_ranks(self._topology, self._fields, present, self._limits)
        run_record = RunRecord(self._directory, assignment)
        wires = [self._present[member.address][1] for member in assignment.members]
        for member, wire in zip(assignment.members, wires, strict=True):
            self._present[member.address] = (member, wire)
            if runs_to_an_end(assignment, member):
                self._running.add(member.address)
        self._run_record = run_record
        for you, wire in enumerate(wires):
            await wire.send("assignment", **assignment.as_message(you))
        print(f"{assignment.spec.key}: {_who(assignment)}", flush=True)
        return run_record

    async def _until_all_are_present(self) -> None:
        """Raises RollError when that will not come about."""
        deadline = time.monotonic() + ROLL_CALL_S
        while missing := self._expected.keys() - self._present.keys():
            if self._interrupted.is_set():
                raise AssignmentError("stopped from outside")
            # The engine forgets the name of a container that has ended.
            if gone := self._expected.keys() - expected_members(self._topology).keys():
                raise AssignmentError(
                    f"{self._named(gone)} ended before the roll was called; its log says why"
                )
            if time.monotonic() > deadline:
                raise AssignmentError(f"{self._named(missing)} did not report within {ROLL_CALL_S:.0f} s")
            await self._until(lambda: self._interrupted.is_set() or self._all_present(), 1.0)

    def _all_present(self) -> bool:
        return self._present.keys() >= self._expected.keys()

    def _named(self, addresses: Iterable[str]) -> str:
        places = sorted(self._expected[address] for address in addresses)
        return ", ".join(f"node-{ordinal}" if role == "node" else role for role, ordinal in places)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One member's connection, from its hello to its end."""
        wire = Wire(reader, writer)
        hello = await wire.receive()
        address = wire.peer
        await self._until(lambda: bool(self._expected), ROLL_CALL_S)
        if hello is None or address not in self._expected or self._run_record or address in self._present:
            await wire.send("refused", cause="the roll has been called without it: it came too late")
            await wire.close()
            return
        role, ordinal = self._expected[address]
        self._present[address] = (Agent(role, ordinal, address, hello=hello.get("hello", {})), wire)
        self._news.set()
        try:
            while message := await wire.receive():
                self._hear(address, message)
        except (KeyError, TypeError, ValueError) as error:
            if self._run_record:
                self._run_record.fail(self._present[address][0], f"its report cannot be kept: {error!r}")
        finally:
            self._lost(address)
            await wire.close()

    def _hear(self, address: str, message: Message) -> None:
        self._heard = time.monotonic()
        member, _ = self._present[address]
        if self._run_record is None:
            return
        match message["kind"]:
            case "event":
                event = Event.from_line(message["line"])
                if event.rank not in member.ranks:
                    raise ValueError(f"an event of rank {event.rank}, which is somebody else's")
                self._run_record.keep(event)
                self._news.set()  # a rank that has failed may hang, and its process never end
            case "weights":
                if 0 not in member.ranks:
                    raise ValueError("weights, which are rank 0's to send")
                self._run_record.keep_weights(message["piece"], message["last"])
            case "exit":
                codes = {int(rank): code for rank, code in message["codes"].items()}
                self._run_record.record_exit(member, codes, bool(message["usage"]["out_of_memory"]))
                self._run_record.keep_usage(member, message["usage"])
                cause = message["cause"] or self._run_record.why(member, codes)
                if cause and not self._run_record.leaving:
                    self._run_record.fail(member, cause)
                self._reported.add(address)
                self._running.discard(address)
                self._news.set()

    def _lost(self, address: str) -> None:
        """The connection is gone; a member that had not said that it ended has been killed."""
        member, _ = self._present.pop(address)
        run_record = self._run_record
        # mpirun may end well, and be heard of, before the node that it lost is: that is found out here.
        if (
            run_record
            and address not in self._reported
            and not (run_record.leaving and run_record.failures)
        ):
            run_record.record_exit(member, None, False)
            run_record.fail(member, "killed, or cut off from the head")
        self._running.discard(address)
        self._news.set()

    async def _until_all_have_ended(self, run_record: RunRecord) -> None:
        """Until every member's processes have ended, or one has failed and the others had their grace."""
        while self._running and not run_record.failures and not run_record.finished:
            self._news.clear()
            await self._news.wait()
        if self._running:
            await self._until(lambda: not self._running, GRACE_S)
        if run_record.failures.keys() == {"launcher"}:
            # mpirun gives up when a node is gone, and may be heard of before that node's connection breaks.
            await self._until(lambda: len(run_record.failures) > 1, GRACE_S)

    async def _dismiss(self) -> None:
        """Send all away and wait for their last events. Compose must not find the head gone first."""
        if self._run_record:
            self._run_record.leaving = True
        self._heard = time.monotonic()
        told = {"finished": True} if self._run_record and self._run_record.finished else {}
        for _, wire in [*self._present.values()]:
            await wire.send("bye", **told)
        # Weights of a hundred megabytes from a node with a tenth of a core take their time.
        while self._present and time.monotonic() - self._heard < LEAVE_S:
            await self._until(lambda: not self._present, 0.5)

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached() and (left := deadline - time.monotonic()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), min(left, 0.2))
            except TimeoutError:
                continue


def runs_to_an_end(assignment: RankAssignment, member: Agent) -> bool:
    """Whether the member's own processes end by themselves; Open MPI's nodes only host the launcher's."""
    return member.role == "launcher" or (assignment.spec.topology != "mpi" and bool(member.ranks))


def expected_members(topology: str) -> dict[str, tuple[str, int]]:
    """Role and ordinal of every member that has been started, by address."""
    found: dict[str, tuple[str, int]] = {}
    for role in ROLES[topology]:
        try:
            addresses = socket.gethostbyname_ex(role)[2]
        except OSError:
            raise AssignmentError(f"no container of service {role} is running any more") from None
        found |= {address: (role, ordinal_of(address)) for address in addresses}
    return found


def ordinal_of(address: str) -> int:
    """The number that compose gave the container: 3 of shardyard-node-3.shardyard_run."""
    name = socket.gethostbyaddr(address)[0].partition(".")[0]
    return int(name.rpartition("-")[2])


def _who(assignment: RankAssignment) -> str:
    """Which member has which ranks."""
    said = [
        f"{member.name} has rank{'s' if len(member.ranks) > 1 else ''} {', '.join(map(str, member.ranks))}"
        for member in assignment.members
        if member.ranks
    ]
    return "; ".join(said[:16]) + (f"; and {len(said) - 16} more" if len(said) > 16 else "")


def main(topology: str, spec: Path, directory: Path, limits: Mapping[str, float]) -> tuple[int, list[str]]:
    """Lead the run that `spec` describes; the exit code, and how it went, which is kept beside the events.

    limits: what the containers of a bare `up` were started with.
    """
    fields: Mapping[str, Any] | AssignmentError
    try:
        fields = read_spec(spec)
    except AssignmentError as error:
        fields = error
    code, lines = asyncio.run(Head(topology, fields, directory, limits).lead())
    with suppress(OSError):  # a disk that is full is among the lines already
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "summary.txt").write_text("\n".join(lines) + "\n")
    return code, lines

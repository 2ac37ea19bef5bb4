"""A member: reports to the head, starts its share of the run, and forwards what its ranks say."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainer.cluster import ssh
from trainer.cluster.commands import (
    ENVIRONMENT,
    HOME,
    HOSTS,
    OUT,
    SPEC,
    SSH,
    Command,
    commands,
    environment,
    hosts,
    launcher_of,
)
from trainer.cluster.protocol import LIMIT, PORT, Wire
from trainer.cluster.rank_assignment import AssignmentError, RankAssignment
from trainer.cluster.run_record import WEIGHTS
from trainer.core.cgroup import measure
from trainer.core.events import EventReader

FIND_S = 120.0  # to find the head: it starts when every node has been started
FORWARD_S = 0.2  # between looks for new events
POLITE_S = 2.0  # between SIGTERM and SIGKILL
PIECE = 3 * 2**16  # bytes of a file in one message, in base64 four thirds of it


class Agent:
    """One container's part in one run. `attend` is its life."""

    def __init__(self, role: str, topology: str) -> None:
        self._role, self._topology = role, topology
        self._events = EventReader(OUT)
        self._processes: list[tuple[Command, asyncio.subprocess.Process]] = []
        self._dismissed = asyncio.Event()
        self._finished = False  # then it does not matter how processes end, see Ledger.finished
        self._passing = asyncio.Lock()
        self._sshd: subprocess.Popen[bytes] | None = None

    async def attend(self) -> int:
        """From the hello to the last event; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._dismissed.set)
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(parents=True)
        hello = self._prepare()
        wire = await self._find_head()
        await wire.send("hello", hello=hello)
        assignment = await self._roster(wire)
        self._take_place(assignment)
        listening = asyncio.create_task(self._listen(wire))
        forwarding = asyncio.create_task(self._forward(wire))
        codes, cause = await self._work(assignment)
        # What the ranks have written goes before the word that they have ended.
        await self._pass_on(wire)
        await self._send_weights(wire)
        await wire.send("exit", codes=codes, cause=cause, usage=measure().model_dump())
        await self._dismissed.wait()
        for task in (listening, forwarding):
            task.cancel()
        await self._pass_on(wire)
        await wire.close()
        return 1 if not self._finished and (cause or any(codes.values())) else 0

    def _prepare(self) -> dict[str, Any]:
        """What must be there before anyone may call; what the others have to know of it."""
        if self._topology != "mpi":
            return {}
        if self._role == "launcher":
            return {"key": ssh.make_key(SSH / "key")}
        host_key = ssh.make_key(SSH / "host_key")
        self._sshd = ssh.start_server(SSH)
        return {"host_key": host_key}

    async def _find_head(self) -> Wire:
        """Connect; until compose has started the head, its name does not exist and nobody answers."""
        deadline = time.monotonic() + FIND_S
        while True:
            (HOME / "alive").touch()
            try:
                return Wire(*await asyncio.open_connection("coordinator", PORT, limit=LIMIT))
            except OSError:
                if time.monotonic() > deadline:
                    raise AssignmentError(f"no head called within {FIND_S:.0f} s") from None
            if self._dismissed.is_set():
                raise AssignmentError("stopped before the roll was called")
            await asyncio.sleep(0.1)

    async def _roster(self, wire: Wire) -> RankAssignment:
        asked = asyncio.create_task(wire.receive())
        while not asked.done():
            (HOME / "alive").touch()
            if self._dismissed.is_set():
                raise AssignmentError("stopped before the roll was called")
            await asyncio.wait({asked}, timeout=0.5)
        message = asked.result()
        if message is None or message["kind"] == "bye":
            raise AssignmentError("the head called the run off; its log says why")
        if message["kind"] != "assignment":
            raise AssignmentError(str(message.get("cause")))
        return RankAssignment.from_message(message)

    def _take_place(self, assignment: RankAssignment) -> None:
        """Write down what this member's processes need to know."""
        SPEC.write_text(assignment.spec.model_dump_json())
        if self._topology != "mpi":
            return
        launcher = launcher_of(assignment)
        if self._role == "launcher":
            nodes = [member for member in assignment.members if member.ranks]
            keys = [(node.address, node.hello["host_key"]) for node in nodes]
            (SSH / "known_hosts").write_text(ssh.known_hosts(keys))
            (SSH / "config").write_text(ssh.client_config(SSH))
            HOSTS.write_text(hosts(assignment))
            return
        key = ssh.authorized_key(launcher.hello["key"], launcher.address)
        (SSH / "authorized_keys").write_text(key)
        ENVIRONMENT.with_suffix(".new").write_text(json.dumps(environment(assignment, os.getpid())))
        ENVIRONMENT.with_suffix(".new").replace(ENVIRONMENT)

    async def _work(self, assignment: RankAssignment) -> tuple[dict[int, int], str | None]:
        """Run this member's processes to their end. Exit codes by rank; a cause beside them."""
        for command in commands(assignment, os.getpid()):
            process = await asyncio.create_subprocess_exec(
                *command.argv, env={**os.environ, **command.environment}
            )
            self._processes.append((command, process))
        if not self._processes:
            return await self._host()
        ended = asyncio.ensure_future(self._all_ended())
        dismissed = asyncio.ensure_future(self._dismissed.wait())
        await asyncio.wait([ended, dismissed], return_when=asyncio.FIRST_COMPLETED)
        dismissed.cancel()
        if not ended.done():
            await self._end(ended)
        codes = {rank: _code(process) for command, process in self._processes for rank in command.ranks}
        launcher = next((_code(p) for c, p in self._processes if not c.ranks), 0)
        return codes, f"mpirun ended with exit code {launcher}" if launcher else None

    async def _all_ended(self) -> bool:
        for _, process in self._processes:
            await process.wait()
        return True

    async def _host(self) -> tuple[dict[int, int], str | None]:
        """Be there for ranks that others start, until sent away."""
        while not self._dismissed.is_set():
            if self._sshd and self._sshd.poll() is not None:
                return {}, f"sshd ended with exit code {self._sshd.returncode}"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._dismissed.wait(), 0.5)
        if self._sshd:
            self._sshd.terminate()
        return {}, None

    async def _end(self, ended: asyncio.Future[bool]) -> None:
        """Ask, wait, insist."""
        for step in (signal.SIGTERM, signal.SIGKILL):
            for _, process in self._processes:
                with suppress(ProcessLookupError):
                    process.send_signal(step)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), POLITE_S)
                return

    async def _listen(self, wire: Wire) -> None:
        """Until the head says bye or is gone: either way this member's time is over."""
        while (message := await wire.receive()) and message["kind"] != "bye":
            pass
        self._finished = bool(message and message.get("finished"))
        self._dismissed.set()

    async def _forward(self, wire: Wire) -> None:
        while True:
            (HOME / "alive").touch()
            await self._pass_on(wire)
            await asyncio.sleep(FORWARD_S)

    async def _pass_on(self, wire: Wire) -> None:
        async with self._passing:  # or one batch could overtake another
            for event in self._events.new():
                await wire.send("event", line=event.to_line())

    async def _send_weights(self, wire: Wire) -> None:
        """Of rank 0, if it is here and has kept them."""
        path = OUT / WEIGHTS
        if not path.exists():
            return
        left = path.stat().st_size
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                left -= len(piece)
                text = base64.b64encode(piece).decode()
                await wire.send("weights", piece=text, last=left <= 0)


def _code(process: asyncio.subprocess.Process) -> int:
    return 0 if process.returncode is None else process.returncode


def become_rank() -> None:
    """The process that mpirun has started on a node becomes the trainer, with the node's environment."""
    deadline = time.monotonic() + FIND_S
    while not ENVIRONMENT.exists():  # the launcher may have had the roster a moment earlier
        if time.monotonic() > deadline:
            sys.exit("the node never got its place in the run")
        time.sleep(0.02)
    local: Mapping[str, str] = json.loads(ENVIRONMENT.read_text())
    os.execve(sys.executable, [sys.executable, "-m", "trainer"], {**os.environ, **local})


def main(role: str, topology: str) -> int:
    """Attend the run that the head calls."""
    try:
        return asyncio.run(Agent(role, topology).attend())
    except AssignmentError as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 1

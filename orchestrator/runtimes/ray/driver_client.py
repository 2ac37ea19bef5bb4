"""The process of Ray's driver, which the orchestrator asks one thing after the other."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import psutil
from pydantic import Field

from orchestrator.identity import identity, is_gone, labelled, own_label
from orchestrator.shipped import IMPORT_ROOT, python_path
from trainer.core.events import how_ended
from trainer.core.record import Count, Record, Text, checked, parse_object
from trainer.core.regular_files import own_directories, read_below

CONNECT_S = 60.0  # to start a local cluster, or to reach another one
ANSWER_S = 150.0  # more than the driver's limits
HEAD_S = 10.0  # of a cluster's head; without it, Ray waits for a minute, and so do its calls
CLOSE_S = 20.0
OWNER = "owner"  # file with the identity of the orchestrator
MAX_OWNER_BYTES = 4096
SESSIONS = Path("/tmp")  # a longer path would exceed that of a Unix socket, 107 bytes
PREFIX = "shardyard-ray-"
SESSION = "SHARDYARD_RAY_SESSION"  # in the environment of the driver, and of local raylets and nodes
CODE = ("trainer", "shardyard")  # packages that nodes import


class DriverError(Exception):
    """The driver cannot do what it was asked for. The message says why."""


class NodeDescription(Record):
    """A node. sources: the digest of its trainer's."""

    machine: Text
    address: Text
    sources: Text


class Reply(Record):
    """What the driver says; parts of it come from nodes. See `driver.Group`."""

    error: Text | None = None
    machines: Count = 0
    cpus: float = 0.0
    group: Count = 0
    strategy: Text = ""
    missing: Text | None = None
    nodes: list[NodeDescription] = Field(default_factory=list)
    exits: dict[str, Annotated[int, Field(ge=-255, le=255)]] = Field(default_factory=dict)
    lost: Text | None = None
    replaced: Text | None = None
    refusal: Text | None = None


class DriverProcess:
    """The driver, and the session directory of the cluster that it may have started."""

    def __init__(self, address: str | None, raylets: int) -> None:
        """Connect to a cluster; without an address, start one. Raises DriverError."""
        _check_head(address)
        self._session = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SESSIONS))  # closed to other users
        (self._session / OWNER).write_text(identity())
        environment = {**os.environ, **own_label(), "PYTHONPATH": python_path()}
        environment |= {SESSION: str(self._session), "RAY_USAGE_STATS_ENABLED": "0"}
        if address is None:
            environment |= _local(self._session)
        with open(self._session / "driver.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.runtimes.ray.driver"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # only the orchestrator handles Ctrl-C
            )
        try:
            code = [str(IMPORT_ROOT / name) for name in CODE]
            self.cluster = self._ask(CONNECT_S, address=address, raylets=raylets, code=code)
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> str | None:
        """Why it serves no more requests: it has ended, or ends now as the head does not answer."""
        if not self.is_running:
            return "Ray's driver has ended"
        try:
            self._ask(HEAD_S, "the head of the Ray cluster", do="describe")
        except DriverError as error:
            return str(error)
        return None

    def ask(self, word: str, **fields: Any) -> Reply:
        """The answer to a request. Raises DriverError."""
        return self._ask(ANSWER_S, do=word, **fields)

    def _ask(self, within_s: float, of: str = "Ray", **request: Any) -> Reply:
        pipes = self._process.stdin, self._process.stdout
        if not (pipes[0] and pipes[1]):
            raise DriverError("Ray's driver has no pipes")
        with suppress(BrokenPipeError):
            pipes[0].write(json.dumps(request).encode() + b"\n")
            pipes[0].flush()
        if not select.select([pipes[1]], [], [], within_s)[0]:
            self._process.kill()  # a late answer would be taken for that to the next request
            raise DriverError(f"{of} did not answer within {within_s:g} s")
        line = pipes[1].readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            code = self._process.poll()
            raise DriverError(
                f"Ray's driver {how_ended(code) if code is not None else 'closed its output'}"
            )
        try:
            reply = checked(Reply, parse_object(line, "Ray's driver"), "Ray's driver")
        except ValueError as error:
            raise DriverError(str(error)) from None
        if reply.error:
            raise DriverError(reply.error)
        return reply

    def close(self) -> None:
        """End the driver, all nodes, and the cluster that it has started. Idempotent."""
        if self._process.stdin and self._process.stdout:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            _kill(self._process.pid, self._session)
            self._process.wait()
            self._process.stdout.close()
        shutil.rmtree(self._session, ignore_errors=True)


def _check_head(address: str | None) -> None:
    """Raise DriverError if nothing listens at HOST:PORT. Ray would try for a minute."""
    host, _, port = (address or "").rpartition(":")
    if host:
        try:
            socket.create_connection((host, int(port)), HEAD_S).close()
        except (OSError, OverflowError) as error:
            raise DriverError(f"its head cannot be reached: {error}") from error


def _kill(leader: int, session: Path) -> None:
    """End the processes of a driver's Unix session, and those that it has labelled.

    Ray's agents outlive a killed raylet for minutes, without their environment. Suspended ranks outlive
    their actor, in sessions of their own.
    """
    found = {process for process, _ in labelled({SESSION: str(session)})}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process in found or os.getsid(process.pid) == leader:
                process.kill()


def _local(session: Path) -> dict[str, str]:
    """The variables of a cluster on this machine: Ray listens on loopback only, and asks for a token."""
    return {
        "RAY_TMPDIR": str(session),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray takes the machine's address for loopback
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token_hex(32),
        "RAY_ADDRESS": "",
        "RAY_health_check_period_ms": "500",  # a raylet is lost after five; with Ray's 3 s, after 13 s
        "RAY_prestart_worker_first_driver": "0",  # one worker for each of its CPUs
        "RAY_memory_monitor_refresh_ms": "0",  # local processes are not ended for others' memory, either
    }


def remove_sessions() -> int:
    """Remove the session directories of orchestrators that have ended. Returns their number."""
    removed = 0
    for directory in own_directories(SESSIONS, PREFIX):
        with suppress(OSError, UnicodeDecodeError):
            if is_gone(read_below(directory, OWNER, MAX_OWNER_BYTES).decode()):
                shutil.rmtree(directory)
                removed += 1
    return removed

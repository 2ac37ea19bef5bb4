"""The nodes of a topology on a Ray cluster, led by Ray's driver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

from orchestrator.errors import InputError
from orchestrator.identity import identity, is_gone, labelled, own_label
from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.led import LedCluster, LedRun
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.placement import GroupRequest
from orchestrator.shipped import IMPORT_ROOT, python_path
from trainer.core.events import how_ended
from trainer.core.regular_files import own_directories, read_below
from trainer.node.channel import Answer, PipeChannel, Request
from trainer.node.home import remove_homes
from trainer.node.site import Site

CONNECT_S = 60.0  # to start a local cluster, or to reach another one
HEAD_S = 10.0  # of a cluster's head; without it, Ray waits for a minute, and so do its calls
CLOSE_S = 20.0
OWNER = "owner"  # file with the identity of the orchestrator
MAX_OWNER_BYTES = 4096
SESSIONS = Path("/tmp")  # a longer path would exceed that of a Unix socket, 107 bytes
PREFIX = "shardyard-ray-"
SESSION = "SHARDYARD_RAY_SESSION"  # in the environment of the driver, and of local raylets and nodes
CODE = ("trainer", "shardyard")  # packages that nodes import


class RayCluster(LedCluster):
    """A placement group and its actors, and the session directory of the cluster that it may have started.

    Attributes:
        strategy: SPREAD or STRICT_SPREAD.
        cpus: those of all machines of the cluster.
    """

    def __init__(
        self, address: str | None, options: RayOptions, request: Mapping[str, Any], shared: bool
    ) -> None:
        """Start the driver, which requests the group. Raises InputError.

        Args:
            address: that of the cluster; None: the driver starts one.
            options: those of the sweep.
            request: size, cpus, memory_mb and gpus of a `GroupRequest`.
            shared: see `LedCluster`.
        """
        where = f"cluster {address}" if address else "a cluster on this machine"
        _check_head(address)
        self._session = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SESSIONS))  # closed to other users
        (self._session / OWNER).write_text(identity())
        environment = {**os.environ, **own_label(), "PYTHONPATH": python_path()}
        environment |= {SESSION: str(self._session), "RAY_USAGE_STATS_ENABLED": "0"}
        if address is None:
            environment |= _local(self._session)
        code = [str(IMPORT_ROOT / name) for name in CODE]
        group = GroupRequest(
            address=address, raylets=options.raylets, session=str(self._session), code=code, **request
        )
        with open(self._session / "driver.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.runtimes.ray.driver", group.model_dump_json()],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # only the orchestrator handles Ctrl-C
            )
        if not (self._process.stdin and self._process.stdout):
            raise InputError("Ray's driver has no pipes")
        answers, requests = self._process.stdout.fileno(), self._process.stdin.fileno()
        super().__init__(PipeChannel(answers, requests, Answer), shared)
        self._options = options
        self.strategy, self.cpus, self._beat = "", 0.0, 0  # the number of the last heartbeat
        self._waits_since: float | None = None  # a run, for room
        self.failure: str | None = None
        try:
            if failure := self._hear("Ray", CONNECT_S):
                raise InputError(f"Ray: {where}: {failure}")
        except BaseException:
            self.delete()
            raise

    def _hear(self, of: str, within_s: float) -> str | None:
        """Wait for the driver's answer to the last heartbeat. Returns why there is none."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                answers = self.channel.new()
            except ValueError as error:
                return str(error)
            for answer in answers:
                if answer.kind == "lost":
                    return answer.reason
                if answer.kind == "alive" and (answer.run, answer.beat) == (0, self._beat):
                    self.strategy = str(answer.facts.get("strategy", self.strategy))
                    self.cpus = float(answer.facts.get("cpus", self.cpus))
                    return None
            if failure := self.defect():
                return failure
            time.sleep(self.channel.poll_s)
        self._process.kill()  # it waits for Ray, and would not end with its input
        return f"{of} did not answer within {within_s:g} s"

    def defect(self) -> str | None:
        code = self._process.poll()
        return None if code is None or self.deleted else f"Ray's driver {how_ended(code)}"

    def site_of(self, plan: LaunchPlan) -> Site:
        spec = plan.paths.spec.resolve()
        return plan.site.model_copy(update={"seen": {str(spec): sha256(spec.read_bytes()).hexdigest()}})

    def trouble(self, run: LedRun) -> RunState | None:
        self._waits_since = (self._waits_since or time.monotonic()) if run.waits else None
        if self._waits_since and time.monotonic() - self._waits_since > self._options.wait_s:
            return RunState({}, 0, run.waits)
        if failure := self.failure or self.defect():
            self.failure = failure
            return RunState({}, 0, f"Ray: {failure}", nodes_lost=self.shared)
        return None

    def ready(self) -> bool:
        self.failure = self.failure or self.untrusted or self.defect()
        if self.failure is None and not self.deleted:
            with suppress(BrokenPipeError):
                self._beat += 1
                self.channel.post(Request(kind="beat", beat=self._beat))
            self.failure = self._hear("the head of the Ray cluster", HEAD_S)
        return self.failure is None and not self.deleted

    def delete(self) -> None:
        """End the driver, all nodes, and the cluster that it has started. Idempotent."""
        if self._process.stdin and self._process.stdout:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            _kill(self._process.pid, self._session)
            self._process.wait()
            self._process.stdout.close()
            remove_homes()  # of the agents that were killed
        self.deleted = True
        shutil.rmtree(self._session, ignore_errors=True)


def _check_head(address: str | None) -> None:
    """Raise InputError if nothing listens at HOST:PORT. Ray would try for a minute."""
    host, _, port = (address or "").rpartition(":")
    if host:
        try:
            socket.create_connection((host, int(port)), HEAD_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"Ray: cluster {address}: its head cannot be reached: {error}") from error


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

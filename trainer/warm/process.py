"""The process of a warm parent: started for the first run, checked before the others."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, TextIO

import psutil

from trainer.core.events import how_ended
from trainer.spec.run_spec import THREAD_VARIABLES
from trainer.warm import client

IDLE_START_S = 60.0  # without use of a processor, in which a parent must go on importing torch
START_S = 600.0  # for all of it, also on a busy machine
LOOK_S = 5.0  # between looks at the use of a processor
ANSWER_S = 5.0  # to a status request
START_TRIES = 2
EXIT_S = 0.5  # from the moment a parent closes its connections until its exit is seen
IDLE_S = 5.0  # until the ranks of a stopped run have ended
POLL_S = 0.01
STATUS, REFUSE_WAITING = b"?", b"!"  # requests to a parent
# A parent that has grown by more than this is replaced: figure of its status, unit, limit.
GROWTH = (("descriptors", "descriptors", 16), ("other_mb", "MiB beside the data", 256))


class ParentError(Exception):
    """A warm parent did not start; the message says why."""


class ParentProcess:
    """Forks ranks from one process that holds torch, the components and the data. It ends with this one."""

    def __init__(self, name: str, environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        """
        Args:
            name: the name of the parent's abstract socket; unique in the parent's network namespace.
            environment: variables of the parent, in addition to this process's.
            prefix: A command that runs the parent, for example in a network namespace.
        """
        self.name = name
        # Threads of numerical libraries would keep the parent from forking. Ranks set their own number.
        self.environment = {**environment, **dict.fromkeys(THREAD_VARIABLES, "1")}
        self.argv = [*prefix, sys.executable, "-m", "trainer.warm", name]
        self._parent: subprocess.Popen[bytes] | None = None
        self._status_socket: socket.socket | None = None
        self._answers: TextIO | None = None  # what the parent sends through it
        self._is_late = False  # an answer was not there in time
        self._first: Mapping[str, Any] = {}  # its status when it had started

    @property
    def command(self) -> list[str]:
        """The command of a rank, in place of `python -m trainer`."""
        return [sys.executable, "-S", "-E", client.__file__, self.name]

    @property
    def pid(self) -> int | None:
        """Its process ID; None if it has not been started."""
        return self._parent.pid if self._parent else None

    def failure(self, within_s: float = 0.0) -> str | None:
        """How the parent has ended; None if it still runs after `within_s`."""
        if self._parent is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            self._parent.wait(within_s)
        code = self._parent.poll()
        if code is None:
            return None
        return how_ended(code)

    def ensure(self) -> str | None:
        """Start the parent unless a healthy one runs.

        Returns:
            Why the parent was replaced, if it was.

        Raises:
            ParentError: It does not start.
        """
        reason = self.unhealthy_reason()
        if reason or not self.is_running:
            self.close()
            self._start()
        return reason

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._parent is not None and self._parent.poll() is None

    def _start(self) -> None:
        """Start the parent; once more if it is killed while it starts. Raises ParentError."""
        failure = None
        for _ in range(START_TRIES):
            self._parent = self._started()
            began = time.monotonic()
            if (output := self._parent.stdout) and self._has_started(self._parent.pid, output, began):
                try:
                    self._first = self._status()
                    return
                except OSError as error:
                    late = f"did not answer: {error}"
            else:
                late = f"did not answer within {time.monotonic() - began:.0f} s"
            failure = self.failure(EXIT_S) or late
            self.close()
        raise ParentError(f"the process of warm nodes {failure}")

    def _has_started(self, pid: int, output: IO[bytes], began: float) -> bool:
        """Wait for the first line of a parent for as long as it uses a processor."""
        used, used_at = 0.0, began
        while not select.select([output], [], [], LOOK_S)[0]:
            now = time.monotonic()
            with suppress(psutil.Error):  # it has ended
                times = psutil.Process(pid).cpu_times()
                if times.user + times.system > used:
                    used, used_at = times.user + times.system, now
            if now - used_at > IDLE_START_S or now - began > START_S:
                return False
        return bool(output.readline())

    def _started(self) -> subprocess.Popen[bytes]:
        # The kernel closes our end when this process ends, however it ends. A pair, and not the socket of
        # clients, because the parent's abstract name may be in a network namespace that we are not in.
        self._status_socket, theirs = socket.socketpair()
        self._answers, self._is_late = self._status_socket.makefile(), False
        with theirs:
            return subprocess.Popen(
                self.argv,
                env={**os.environ, **self.environment},
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                start_new_session=True,  # only the orchestrator handles Ctrl-C
            )

    def unhealthy_reason(self) -> str | None:
        """Why the parent has to be replaced, or None. One that ended after an idle time is no failure."""
        if self._parent is None:
            return None
        try:
            now = self._status()
        except OSError as error:
            failure = self.failure(EXIT_S) or f"did not answer: {error}"
            # It may have ended after its idle time, which is no failure.
            return None if self._parent.returncode == 0 else f"their process {failure}"
        if now["threads"] > 1:
            return f"their process had {now['threads']} threads"
        for figure, unit, growth in GROWTH:
            if now[figure] > self._first[figure] + growth:
                return f"their process grew from {self._first[figure]:.0f} to {now[figure]:.0f} {unit}"
        return None

    def refuse_waiting(self) -> None:
        """Let the parent disconnect clients of the last run that still wait. Raises OSError if it fails."""
        if self._parent:
            try:
                self._status(REFUSE_WAITING)
            except OSError as error:
                raise OSError(f"the process of warm nodes did not answer: {error}") from None

    def _status(self, request: bytes = STATUS) -> dict[str, Any]:
        """The parent's state. Raises OSError if it does not answer in time."""
        if self._status_socket is None or self._answers is None:
            raise ConnectionError("it has not been started")
        self._status_socket.settimeout(ANSWER_S)
        try:
            if self._is_late:
                raise TimeoutError
            self._status_socket.sendall(request)
            line = self._answers.readline()
        except TimeoutError:
            self._is_late = True  # so that an answer that comes late is never taken for another
            raise TimeoutError(f"nothing came within {ANSWER_S:g} s") from None
        if not line:
            raise ConnectionError("it closed the connection")
        status: dict[str, Any] = json.loads(line)
        return status

    def killed(self) -> list[tuple[int, int]]:
        """PID and signal of each rank of this run that was killed, in the order of their deaths.

        Ranks that ended because their clients had ended are not among them.
        """
        with suppress(OSError):  # the ranks of a dead parent have ended with it
            return [(pid, number) for pid, number in self._status()["killed"]]
        return []

    def wait_until_idle(self) -> None:
        """Wait until no rank runs; the parent kills ranks whose clients have ended."""
        deadline = time.monotonic() + IDLE_S
        with suppress(OSError):  # a dead parent has no ranks
            while self._status()["ranks"] and time.monotonic() < deadline:
                time.sleep(POLL_S)

    def close(self) -> None:
        """End the parent and its ranks."""
        if self._parent is None:
            return
        self._parent.kill()  # it has nothing to save, and its ranks end with it
        self._parent.communicate()
        self._parent = None
        if self._status_socket and self._answers:
            self._answers.close()
            self._status_socket.close()
        self._status_socket = self._answers = None

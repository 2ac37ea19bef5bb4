"""The process of a warm parent: started for the first run, checked before the others."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainer.core.events import signal_name
from trainer.spec.run_spec import THREAD_VARIABLES
from trainer.warm import client

START_S = 60.0  # to import torch
ANSWER_S = 5.0  # to a status request
START_TRIES = 2
EXIT_S = 0.5  # from the moment a parent closes its connections until its exit is seen
IDLE_S = 5.0  # until the ranks of a stopped run have ended
POLL_S = 0.01
# A parent that has grown by more than this is replaced: figure of its status, unit, limit.
GROWTH = (("descriptors", "descriptors", 16), ("other_mb", "MiB beside the data", 256))


class ParentError(Exception):
    """A warm parent did not start; the message says why."""


class ParentProcess:
    """Forks ranks from one process that holds torch, the components and the data. It ends with this one."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        """
        Args:
            name: of the parent's abstract socket; unique in this network namespace.
            environment: variables of the parent, in addition to this process's.
        """
        self.name, self._environment = name, environment
        self._parent: subprocess.Popen[bytes] | None = None
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
        return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    def ensure(self) -> str | None:
        """Start the parent unless a healthy one runs. Returns why it was replaced, if it was.

        Raises ParentError if it does not start.
        """
        reason = self._unhealthy_reason()
        if reason or self._parent is None or self._parent.poll() is not None:
            self.close()
            self._start()
        return reason

    def _start(self) -> None:
        """Start the parent; once more if it is killed while it starts. Raises ParentError."""
        failure = None
        for _ in range(START_TRIES):
            self._parent = self._started()
            output = self._parent.stdout
            if output and select.select([output], [], [], START_S)[0] and output.readline():
                self._first = self._status()
                return
            failure = self.failure(EXIT_S) or f"did not answer within {START_S:.0f} s"
            self.close()
        raise ParentError(f"the process of warm nodes {failure}")

    def _started(self) -> subprocess.Popen[bytes]:
        # Threads of numerical libraries would keep the parent from forking. Ranks set their own number.
        threads = dict.fromkeys(THREAD_VARIABLES, "1")
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.warm", self.name],
            env={**os.environ, **self._environment, **threads},
            stdin=subprocess.PIPE,  # closed by the kernel when this process ends, however it ends
            stdout=subprocess.PIPE,
            start_new_session=True,  # only the orchestrator handles Ctrl-C
        )

    def _unhealthy_reason(self) -> str | None:
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

    def _status(self) -> dict[str, Any]:
        """The parent's state. Raises OSError if it does not answer in time."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            client.connect(connection, self.name)
            connection.sendall(b"{}\n")
            line = connection.makefile().readline()
        if not line:
            raise ConnectionError("it closed the connection")
        status: dict[str, Any] = json.loads(line)
        return status

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

"""A sandbox that is a process of this machine, with the rights of its user, for code that you trust."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Mapping
from contextlib import suppress
from pwd import getpwnam
from secrets import token_hex
from threading import Thread
from typing import IO, Any

import psutil

from orchestrator.identity import labelled, own_label
from orchestrator.sandbox.base import Program, Sandbox, Tail, described_exit, receive, send, shut
from orchestrator.shipped import python_path
from trainer.core.record import printable

KILL_TIMES = 100  # passes over the processes of code that forks
SHOWN_BYTES = 2**20  # of what the code prints
EXIT_S = 5.0  # in which the last that it printed is shown


class LocalSandbox(Sandbox):
    """A process of this machine, in a session of its own.

    What its code prints is shown on standard error, if at all, without control characters, and at most
    `SHOWN_BYTES` of it.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        self._run = {"SHARDYARD_RUN": f"sandbox-{token_hex(8)}"}  # finds what the code has started
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: Thread | None = None

    def open(self) -> None:
        self._socket, theirs = socket.socketpair()
        own = {**self._program.environment, **own_label(), **self._run, "PYTHONPATH": python_path()}
        rights: dict[str, Any] = {}
        if user := self._program.user:
            rights = {"user": user, "group": getpwnam(user).pw_gid, "extra_groups": []}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._program.module],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                env={**os.environ, **own},
                start_new_session=True,  # Ctrl-C in the terminal is this process's to handle
                **rights,
            )
        if self._process.stderr:
            shown = SHOWN_BYTES if self._program.prints else 0
            arguments = (self._process.stderr, self.printed, shown)
            self._reader = Thread(target=_drain, args=arguments, daemon=True)
            self._reader.start()

    def read(self, count: int, timeout_s: float) -> bytes:
        return receive(self._socket, count, timeout_s)

    def write(self, data: bytes, timeout_s: float) -> None:
        send(self._socket, data, timeout_s)

    def ending(self) -> str:
        if self._process is None:
            return "was stopped"
        try:
            return described_exit(self._process.wait(1))
        except subprocess.TimeoutExpired:
            return "closed the channel of its answers"

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            _kill_labelled(self._run)
        if self._reader:
            self._reader.join(EXIT_S)
        shut(self._socket)


def _drain(stream: IO[bytes], tail: Tail, shown: int) -> None:
    """Read a stream to its end. shown: how many bytes to show."""
    decoder = getincrementaldecoder("utf-8")("replace")
    with stream:
        while data := os.read(stream.fileno(), 2**16):
            tail.add(data)
            if shown > 0:
                sys.stderr.write(printable(decoder.decode(data[:shown])))
                sys.stderr.flush()
            shown -= len(data)


def _kill_labelled(label: Mapping[str, str]) -> None:
    """Kill processes until two passes find none: a process may fork and end during a pass."""
    empty = 0
    for _ in range(KILL_TIMES):
        left = [process for process, _ in labelled(label)]
        empty = 0 if left else empty + 1
        if empty == 2:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)

"""The warm parent: forks one process per client, which becomes a rank. It has one thread."""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil

from trainer.core.processes import end_with_parent
from trainer.core.registry import ImportedComponent
from trainer.data.cache import DatasetCache
from trainer.spec.run_spec import RunSpec
from trainer.warm.client import peer_uid
from trainer.warm.process import REFUSE_WAITING

IDLE_S = 600.0  # without a rank, after which it ends
RECEIVE_S = 5.0  # for a client to send its request
MAX_REQUEST_BYTES = 2**20


@dataclass(frozen=True)
class Rank:
    """A forked process and the client that stands for it."""

    pid: int
    pidfd: int  # readable when the process has ended
    client: socket.socket


class WarmParent:
    """Serves clients (client.py) over a Unix socket, and requests of its owner over another one.

    A forked child inherits the locks of threads that it does not have, so only a process with one thread
    can fork safely. The parent checks this before every fork, and refuses if a library started a thread.
    """

    def __init__(self, listener: socket.socket, owner: int, run: Callable[[DatasetCache], int]) -> None:
        """
        Args:
            listener: accepts clients.
            owner: a descriptor, connected to the process that started the parent. It receives a byte for
                each request, which the parent answers with its status, and is closed when that process has
                ended.
            run: called in a forked process, which has the client's environment. Returns its exit code.
        """
        self._listener, self._owner, self._run = listener, owner, run
        self._datasets = DatasetCache()
        self._ranks: set[Rank] = set()
        self._killed: list[tuple[int, int]] = []  # ranks of this run that others have killed: PID, signal
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve clients until the owner has ended, or until no rank has run for IDLE_S.

        Ranks that still run end with this process.
        """
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._owner, selectors.EVENT_READ)
        while ready := self._selector.select(None if self._ranks else IDLE_S):
            for key, _ in ready:
                if key.fd != self._owner:
                    key.data()
                elif not self._answer():
                    return

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if peer_uid(client) != os.getuid():  # an abstract socket has no permissions
            client.close()
            return
        client.settimeout(RECEIVE_S)
        streams: list[int] = []
        try:
            request = _receive(client, streams)
            self._start(client, request, streams)
        except (OSError, ValueError) as error:
            print(f"warm parent: a client failed: {error}", file=sys.stderr)
            client.close()
        finally:
            for stream in streams:
                os.close(stream)

    def _answer(self) -> bool:
        """Answer a request of the owner. Returns False if the owner has ended."""
        try:
            request = os.read(self._owner, 1)
            if not request:
                return False
            if request == REFUSE_WAITING:
                self._refuse_waiting()
            os.write(self._owner, json.dumps(self._status()).encode() + b"\n")
        except ConnectionError:
            return False
        return True

    def _refuse_waiting(self) -> None:
        """Disconnect the clients of the last run whose requests have not been read, before another run."""
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
        self._listener.setblocking(True)

    def _status(self) -> dict[str, Any]:
        """What the owner checks between runs, and asks for when a run has failed."""
        process = psutil.Process()
        return {
            "ranks": len(self._ranks),
            "threads": threads(),
            "descriptors": process.num_fds(),
            "other_mb": process.memory_info().rss / 2**20 - self._datasets.mb,
            "killed": self._killed,
        }

    def _start(self, client: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
        self._load_data(request["environment"])
        if (count := threads()) > 1:
            _send(client, refused=f"it has {count} threads and cannot fork")
            client.close()
            return
        gc.collect()
        gc.freeze()  # a collection in a rank would copy the pages that it shares with the parent
        if not self._ranks:  # a new run
            self._killed.clear()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._become_rank(parent, client, request, streams)
        rank = Rank(pid, os.pidfd_open(pid), client)
        self._ranks.add(rank)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, partial(self._reap, rank))
        # A client sends nothing more, so it becomes readable when it disconnects.
        self._selector.register(client, selectors.EVENT_READ, partial(self._kill, rank))
        with suppress(OSError):
            _send(client, pid=pid)

    def _load_data(self, environment: dict[str, str]) -> None:
        """Load the run's dataset, so that its ranks share one copy."""
        # If this fails, the rank fails in the same way, and reports it.
        with suppress(Exception):
            spec = RunSpec.model_validate_json(
                Path(environment["SHARDYARD_SPEC"]).read_text(encoding="utf-8")
            )
            # Users' code runs in ranks alone.
            if spec.strategy.trains and not isinstance(spec.dataset, ImportedComponent):
                self._datasets.load(spec.dataset, Path(environment["SHARDYARD_DATA"]))
            else:
                self._datasets.clear()  # of an earlier run

    def _become_rank(
        self, parent: int, client: socket.socket, request: dict[str, Any], streams: list[int]
    ) -> NoReturn:
        """Replace what the forked process has inherited, and run the trainer."""
        code = 1
        try:
            end_with_parent()
            if os.getppid() != parent:  # it died before prctl
                os._exit(code)
            os.setsid()  # so that the parent can kill what this process forks
            self._selector.close()
            for inherited in (self._listener, client, *(rank.client for rank in self._ranks)):
                inherited.close()
            for rank in self._ranks:
                os.close(rank.pidfd)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            code = self._run(self._datasets)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _kill(self, rank: Rank) -> None:
        """Kill a rank whose client has disconnected, and what it has forked."""
        if rank not in self._ranks:
            return  # it has ended in the same round of events
        self._selector.unregister(rank.client)
        rank.client.close()
        os.kill(rank.pid, signal.SIGKILL)  # it may not lead its process group yet

    def _reap(self, rank: Rank) -> None:
        """Report the exit code of a rank that has ended."""
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)  # what it has forked
        _, status = os.waitpid(rank.pid, 0)
        self._ranks.remove(rank)
        self._selector.unregister(rank.pidfd)
        os.close(rank.pidfd)
        if rank.client.fileno() >= 0:
            if os.WIFSIGNALED(status):
                self._killed.append((rank.pid, os.WTERMSIG(status)))
            self._selector.unregister(rank.client)
            with suppress(OSError):
                _send(rank.client, code=os.waitstatus_to_exitcode(status))
            rank.client.close()


def threads() -> int:
    """Number of threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def _receive(client: socket.socket, streams: list[int]) -> dict[str, Any]:
    """Receive a request; descriptors are added to `streams`, whatever happens."""
    line = b""
    while not line.endswith(b"\n"):
        chunk, received, _, _ = socket.recv_fds(client, 2**16, 3)
        streams += received
        line += chunk
        if not chunk or len(line) > MAX_REQUEST_BYTES:
            raise ValueError(f"incomplete request of {len(line)} bytes")
    request = json.loads(line)
    if not isinstance(request, dict) or not request.keys() >= {"environment", "directory"}:
        raise ValueError("a request has an environment and a directory")
    return request


def _send(client: socket.socket, **reply: Any) -> None:
    client.sendall(json.dumps(reply).encode() + b"\n")

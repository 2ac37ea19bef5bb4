"""The leader of an allocation: takes one run after the other from the orchestrator, and starts its ranks.

It runs on the first node. Files connect it to the orchestrator (messages.py), and the standard streams of
an srun to the warm nodes. It ends without heartbeats of the orchestrator, the warm nodes end with it, and
ranks end with their warm node.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.core.record import checked, parse_object
from trainer.launch.launchers import free_port
from trainer.slurm_allocation.messages import (
    ANSWERS,
    POLL_S,
    REQUESTS,
    SILENCE_S,
    LeaderAnswer,
    LeaderRequest,
    LineReader,
    append,
)
from trainer.slurm_allocation.node import Reply, Word
from trainer.warm.process import START_S, START_TRIES

CANCEL_S = 10.0  # for the ranks of a cancelled run to end
REPLY_S = START_S * START_TRIES + 10.0  # of all warm nodes: they may have to import torch
EXIT_S = 2.0  # for srun to exit once its standard input is closed
TASK_ERROR = re.compile(r"^srun: error: (\S+: tasks? .+)$", re.MULTILINE)


class LostError(Exception):
    """The allocation can run nothing more. The message says why."""


class WarmNodes:
    """One process on each node (node.py), which keeps a warm parent there."""

    def __init__(self, command: Sequence[str], count: int, log: Path) -> None:
        """
        Args:
            command: srun, which starts the processes.
            count: the number of nodes.
            log: the file for what srun and the warm nodes write.
        """
        self._count, self._log = count, log
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        with open(log, "ab") as errors:
            self._srun = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # the leader alone handles signals
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self._srun.stdout:
            with self._srun.stdout as lines:
                for line in lines:
                    self._replies.put(line)

    def ask(self, word: Word) -> list[Reply]:
        """The replies of all nodes. Raises LostError if one does not answer."""
        deadline = time.monotonic() + REPLY_S
        with suppress(BrokenPipeError):
            if self._srun.stdin:
                self._srun.stdin.write(f"{word}\n")
                self._srun.stdin.flush()
        replies: list[Reply] = []
        while len(replies) < self._count:
            try:
                line = self._replies.get(timeout=POLL_S)
            except queue.Empty:
                self.check()
                if time.monotonic() > deadline:
                    missing = f"{self._count - len(replies)} of {self._count} warm nodes"
                    raise LostError(f"{missing} did not answer within {REPLY_S:g} s") from None
                continue
            replies.append(checked(Reply, parse_object(line, "a warm node"), "a warm node"))
        return replies

    def check(self) -> None:
        """Raises LostError if one has ended."""
        if self._srun.poll() is None:
            return
        first = TASK_ERROR.search(self._log.read_text(errors="replace"))  # srun then ends the others
        raise LostError(f"a warm node was lost ({first[1] if first else f'see {self._log.name}'})")

    def close(self) -> None:
        """End the warm nodes and their ranks."""
        with suppress(OSError):
            if self._srun.stdin:
                self._srun.stdin.close()
        try:
            self._srun.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._srun.terminate()  # its tasks get SIGKILL
        else:
            self._reader.join(EXIT_S)


class Leader:
    """Starts the ranks of one run after the other."""

    def __init__(self, directory: Path, nodes: WarmNodes | None) -> None:
        """
        Args:
            directory: the directory with requests and answers.
            nodes: fork the ranks of warm runs; None if there are no such runs.
        """
        self._answers, self._nodes = directory / ANSWERS, nodes
        self._requests = LineReader(directory / REQUESTS, LeaderRequest)
        self._run: LeaderRequest | None = None  # in progress
        self._script: subprocess.Popen[bytes] | None = None
        self._cancelled_at: float | None = None

    def serve(self) -> None:
        """Serve the orchestrator until it ends the allocation. Raises LostError, ValueError."""
        heard_at = time.monotonic()
        while True:
            for request in self._requests.new():
                match request.kind:
                    case "run":
                        self._start(request)
                    case "cancel" if self._run and self._run.run == request.run:
                        self._cancel()
                    case "end":
                        return
                heard_at = time.monotonic()
            if time.monotonic() - heard_at > SILENCE_S:
                raise LostError(f"no heartbeat of the orchestrator for {SILENCE_S:g} s")
            self._watch()
            time.sleep(POLL_S)

    def _start(self, request: LeaderRequest) -> None:
        reasons = []
        if request.warm:
            for reply in self._warm_nodes.ask("ensure"):
                if not reply.usable:
                    raise LostError(f"{reply.node}: {reply.reason}")
                reasons += [f"{reply.reason} ({reply.node})"] if reply.reason else []
        self._answer(kind="started", run=request.run, reason=next(iter(reasons), None))
        with open(request.log, "ab") as log:
            self._script = subprocess.Popen(
                ["bash", request.script],
                env={**os.environ, "MASTER_PORT": str(free_port())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._run, self._cancelled_at = request, None

    @property
    def _warm_nodes(self) -> WarmNodes:
        if self._nodes is None:
            raise LostError("a warm run was requested, but the allocation has no warm nodes")
        return self._nodes

    def _cancel(self) -> None:
        """Srun kills the tasks of its step, and mpirun its ranks."""
        self._signal(signal.SIGTERM)
        self._cancelled_at = time.monotonic()

    def _signal(self, number: int) -> None:
        if self._script:
            with suppress(ProcessLookupError):
                os.killpg(self._script.pid, number)

    def _watch(self) -> None:
        """Report the end of the run."""
        if self._run is None or self._script is None:
            if self._nodes:
                self._nodes.check()
            return
        code = self._script.poll()
        if code is None:
            if self._nodes:
                self._nodes.check()
            if self._cancelled_at and time.monotonic() - self._cancelled_at > CANCEL_S:
                raise LostError(f"a cancelled run did not end within {CANCEL_S:g} s")
            return
        lost = None
        if self._run.warm:
            replies = self._warm_nodes.ask("explain" if code else "settle")
            if failures := [reply for reply in replies if reply.reason]:
                lost = f"the process of warm nodes {failures[0].reason} ({failures[0].node})"
        self._answer(kind="ended", run=self._run.run, code=code, reason=lost)
        self._run = self._script = None

    def _answer(self, **fields: Any) -> None:
        append(self._answers, LeaderAnswer(**fields))

    def lose(self, reason: str) -> None:
        """Report that the allocation ends, and why."""
        with suppress(OSError):
            self._answer(kind="lost", reason=reason)

    def close(self) -> None:
        """End what still runs. Slurm ends the rest with the job."""
        self._signal(signal.SIGTERM)
        if self._script:
            with suppress(subprocess.TimeoutExpired):
                self._script.wait(EXIT_S)
        if self._nodes:
            self._nodes.close()


def main(directory: Path, command: Sequence[str]) -> int:
    """Lead an allocation. Returns the exit code. command: starts the warm nodes, if there are any."""
    count = int(os.environ["SLURM_JOB_NUM_NODES"])
    log = directory / f"warm-nodes-{os.environ['SLURM_JOB_ID']}.log"
    nodes = WarmNodes(command, count, log) if command else None
    leader = Leader(directory, nodes)

    def stop(number: int, _: FrameType | None) -> None:
        raise LostError(f"the leader received {signal.Signals(number).name}")

    signal.signal(signal.SIGTERM, stop)
    try:
        leader.serve()
    except (LostError, OSError, ValueError) as error:
        leader.lose(str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leader.close()
    return 0

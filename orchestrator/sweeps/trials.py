"""The process that tries components: `trainer.components` in a sandbox, asked one thing after another.

It runs users' code and is not trusted: its answers are checked as `trainer/components/messages.py` says.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from orchestrator.errors import InputError
from orchestrator.sandbox.base import (
    Channel,
    Ended,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    TimedOut,
    no_answer,
)
from orchestrator.sandbox.local import LocalSandbox
from orchestrator.sweeps.requirements import missing, read_requirements
from orchestrator.sweeps.staged_code import StagedCode
from trainer.components.messages import MAX_ANSWER, Answer, Request
from trainer.core.frames import ProtocolError
from trainer.core.record import checked
from trainer.core.user_code import CODE

MORE_S = 60.0  # for an answer after its time limit, on a busy machine
MIN_MEMORY_MB = 512  # of the process that tries components: Python and torch take half of it
MODULE = ("trainer.components",)
PROCESSES, SCRATCH_MB = 512, 256  # as of a node

MakeSandbox = Callable[[Program], Sandbox]


def local_sandbox(program: Program) -> Sandbox:
    """A process of this machine. Raises InputError if a package is missing."""
    path = program.requirements
    if path is not None and (absent := missing(read_requirements(path))):
        raise InputError(f"{path}: not installed: {', '.join(absent)}; pip install -r {quote(str(path))}")
    return LocalSandbox(program)


class TrialError(Exception):
    """There is no answer. The message says why."""


class Trials:
    """Asks the process. It starts with the first request, and anew where it must see or have more.

    Attributes:
        directories: those that it sees. requirements: the file with the requirements of the sweep.
        memory_mb: the memory of a node.
    """

    def __init__(
        self,
        directory: Path,
        data_dir: Path,
        make_sandbox: MakeSandbox = local_sandbox,
        *,
        prints: bool = False,
        hash_seed: int = 0,
    ) -> None:
        self.directories = [directory]
        self.requirements: Path | None = None
        self.memory_mb = MIN_MEMORY_MB
        self._data_dir, self._make, self._prints, self._hash_seed = (
            data_dir,
            make_sandbox,
            prints,
            hash_seed,
        )
        self._staged: StagedCode | None = None
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None

    @property
    def staged(self) -> StagedCode:
        """Where files of components are copied to. It ends with this object."""
        self._staged = self._staged or StagedCode()
        return self._staged

    @property
    def code(self) -> Path | None:
        """The directory with the copied files; None if no process was asked for."""
        return self._staged.directory if self._staged else None

    @property
    def has_other_user(self) -> bool:
        """Whether the process can read only what all users can."""
        return self._sandbox is not None and self._sandbox.has_other_user

    def use_memory(self, memory_mb: int) -> None:
        """Let components be tried with the memory of a node."""
        wanted = max(MIN_MEMORY_MB, memory_mb)
        if wanted != self.memory_mb:
            self.close()
            self.memory_mb = wanted

    def ask(self, request: Request) -> Answer:
        """The answer to a request. Raises TrialError, or InputError if a package is missing."""
        for place in (request.place, request.dataset):
            if place is not None and place.directory:
                self._see(Path(place.directory))
        try:
            channel = self._started()
            channel.renew()
            deadline = time.monotonic() + request.limit_s + MORE_S
            channel.send(request.model_dump(), deadline)
            return checked(Answer, channel.receive(deadline), "its answer")
        except ValueError as error:
            wrong = ProtocolError(f"sent what is no answer ({error})")
            raise TrialError(self._failure(wrong, request.limit_s + MORE_S)) from error
        except (Ended, TimedOut, ProtocolError, SandboxError) as error:
            raise TrialError(self._failure(error, request.limit_s + MORE_S)) from error

    def _see(self, directory: Path) -> None:
        """Let the process see a directory: it may see mounted ones alone."""
        seen = [*self.directories, self.staged.directory]
        if not any(directory.is_relative_to(each) for each in seen):
            self.close()
            self.directories.append(directory)

    def _started(self) -> Channel:
        if self._channel is None:
            self._sandbox = self._make(self._program())
            self._channel = Channel(self._sandbox, MAX_ANSWER)
            weakref.finalize(self, self._channel.close)
        return self._channel

    def _program(self) -> Program:
        """The process, which sees files under their own paths, so that messages name them."""
        seen = [*self.directories, self.staged.directory]
        seen += [self._data_dir] if self._data_dir.is_dir() else []
        variables = {CODE: str(self.staged.directory), "SHARDYARD_DATA": str(self._data_dir)}
        return Program(
            MODULE,
            {**variables, "PYTHONHASHSEED": str(self._hash_seed)},
            Limits(self.memory_mb, PROCESSES, SCRATCH_MB),
            {path: str(path) for path in seen},
            self.requirements,
            self._prints,
        )

    def _failure(self, error: Exception, limit_s: float) -> str:
        """Why there is no answer. Ends the process, from which another one might not come."""
        printed = self._sandbox.printed.line if self._sandbox else ""
        self.close()
        how = no_answer(error, "the process that tries it", limit_s)
        return f"{how}; the last that it printed: {printed}" if printed else how

    def close(self) -> None:
        """End the process. Copied files stay as long as this object."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

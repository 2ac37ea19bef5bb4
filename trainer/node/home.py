"""The files of an agent."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.core.regular_files import open_below, own_directories

PREFIX = "shardyard-agent-"  # of directories outside of containers, among the temporary files


@dataclass(frozen=True)
class Home:
    """The files of an agent, which it removes after each run."""

    path: Path

    @property
    def lock(self) -> Path:
        """Locked by the agent while it runs."""
        return self.path / "lock"

    @property
    def out(self) -> Path:
        """Events, weights and traces of the agent's ranks."""
        return self.path / "out"

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def membership(self) -> Path:
        return self.path / "membership.json"

    @property
    def ssh(self) -> Path:
        return self.path / "ssh"

    @property
    def hosts(self) -> Path:
        """Open MPI's."""
        return self.path / "hosts"

    @property
    def rank(self) -> Path:
        """The command of a rank that mpirun starts, see mpi_rank.py."""
        return self.path / "rank.json"

    @property
    def alive(self) -> Path:
        """Touched for the health check of a container."""
        return self.path / "alive"


CONTAINER = Home(Path("/run/shardyard"))  # a tmpfs, gone with the container


def lock(home: Home) -> None:
    """Show that this process uses the directory, until it ends."""
    draft = home.lock.with_suffix(".new")
    fcntl.flock(os.open(draft, os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)
    draft.replace(home.lock)


def remove_homes() -> int:
    """Remove the directories that killed agents of this user have left. Returns their number."""
    removed = 0
    for directory in own_directories(Path(tempfile.gettempdir()), PREFIX):
        with suppress(OSError), open_below(directory, Home(directory).lock.name) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
            removed += 1
    return removed

"""A cluster that a script of ours starts on this machine, in a directory of its own for the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Self

import psutil

PROJECT = Path(__file__).resolve().parents[2]
UP_S, STOP_S = 200, 120


class Trial:
    """The cluster whose directory an environment variable names. Its processes may be killed.

    Attributes:
        script: starts, repairs and stops it.
        variable: names the directory.
        mark: the environment variable of the cluster's processes, whose value is the directory.
    """

    script: ClassVar[str]
    variable: ClassVar[str]
    mark: ClassVar[str]

    def __init__(self) -> None:
        self.home = Path(os.environ[self.variable])

    @classmethod
    @contextmanager
    def running(cls, **variables: str) -> Iterator[Self]:
        """A running cluster, which this process uses by these variables. HOME in them is its directory."""
        with TemporaryDirectory(prefix="sy-") as directory:
            before, home = dict(os.environ), f"{directory}/cluster"
            own = {name: value.replace("HOME", home) for name, value in variables.items()}
            os.environ |= {cls.variable: home, **own}
            cluster = cls()
            try:
                cluster.up()
                yield cluster
            finally:
                cluster.stop()
                os.environ.clear()
                os.environ |= before

    def up(self) -> None:
        """Start what does not run, and wait until all nodes are ready."""
        self._command("up", UP_S)

    def stop(self) -> None:
        """End everything, and remove the directory."""
        self._command("stop", STOP_S)

    def _command(self, name: str, limit_s: float) -> None:
        command = [PROJECT / self.script, name]
        done = subprocess.run(command, timeout=limit_s, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self) -> Iterator[psutil.Process]:
        """The daemons and what they have started. No process of another cluster is among them."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(self.mark) == str(self.home)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

"""A trial cluster of slurm/cluster for tests, in a directory of its own: its daemons may be killed."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.runtimes.slurm.commands import unavailable_reason
from tests.support.command_line import PROJECT, Done
from tests.support.processes import wait_until
from tests.support.trial import Trial

PORTS = range(10_000, 16_000, 10)  # below those of ranks, and of clients
# Starts a requeued job, which would wait for two minutes, but not in the second in which it was requeued:
# the nodes have revoked the credentials of that second.
START_AGAIN = "StartTime=now+2seconds"


def slurm_missing() -> str | None:
    """Why there can be no trial cluster here, as `doctor` prints it, or None."""
    return None if shutil.which("slurmctld") and shutil.which("munged") else unavailable_reason()


def free_port() -> int:
    """The first of ten ports that are free."""
    for first in random.sample(PORTS, len(PORTS)):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + 10):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise OSError("no ten ports in a row are free")


class TrialCluster(Trial):
    """The cluster whose directory SHARDYARD_SLURM_DIR names."""

    script, variable, mark = "slurm/cluster", "SHARDYARD_SLURM_DIR", "SHARDYARD_SLURM_CLUSTER"

    def call(self, *argv: str) -> str:
        """What a command of Slurm prints; empty if it fails."""
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip()

    def daemon(self, *command: str) -> psutil.Process:
        """The daemon whose command line begins so, such as slurmd -D -N yard1."""
        for process in self.processes():
            with suppress(psutil.Error):
                if process.cmdline()[: len(command)] == [*command]:
                    return process
        raise LookupError(" ".join(command))

    def slurmd(self, node: str) -> psutil.Process:
        return self.daemon("slurmd", "-D", "-N", node)

    def hide(self, directory: Path, node: str) -> None:
        """Restart a node that does not see what a directory has. Needs root."""
        old = self.slurmd(node)
        environment, command = old.environ(), old.cmdline()
        old.kill()
        wait_until(lambda: old not in [*self.processes()])
        mount = ("bash", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(directory))
        argv = ("setsid", "--fork", "unshare", "--mount", *mount, *command)
        with (self.home / f"{node}.log").open("a") as log:
            subprocess.run(argv, env=environment, cwd=self.home, stdout=log, stderr=log, check=True)
        wait_until(lambda: [each for each in self.processes() if each.cmdline() == command])
        self.up()


def trial_cluster() -> AbstractContextManager[TrialCluster]:
    """A running cluster, which the commands of Slurm of this process use."""
    return TrialCluster.running(
        SHARDYARD_SLURM_PORT=str(free_port()), SLURM_CONF="HOME/slurm.conf", XDG_CONFIG_HOME="HOME-config"
    )


@dataclass(frozen=True)
class Cluster:
    """A running cluster. hidden: a directory that node yard4 does not see; None if that needs root."""

    environment: dict[str, str]
    hidden: Path | None

    def shardyard(self, *arguments: str | Path, code: int | None = None) -> Done:
        """Run a command of ours. code: what it must exit with, if any."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *map(str, arguments)],
            env=self.environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def swept(
        self, file: Path, out: Path, *options: str | Path, runtime: str = "slurm", code: int = 0
    ) -> Path:
        """Execute a sweep. Returns the directory of its results."""
        shared = ("--shared-network",) if runtime == "local" else ()
        where = ("--runtime", runtime, "--out", out, "--no-warm-up-run")
        self.shardyard("sweep", file, *where, *shared, *options, code=code)
        return out

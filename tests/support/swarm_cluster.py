"""A trial swarm of swarm/cluster for tests, in a directory of its own: its machines may be killed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from orchestrator.runtimes.docker.reaper import LABEL
from tests.support.containers import containers_missing
from tests.support.trial import Trial

PART = "SHARDYARD_SWARM_PART"  # in the environment of a machine's processes: its name


def swarm_missing() -> str | None:
    """Why there can be no trial swarm here, or None. The image is that of the machine's own engine."""
    return containers_missing() or ("a trial swarm needs root" if os.getuid() else None)


class TrialSwarm(Trial):
    """The swarm whose directory SHARDYARD_SWARM_DIR names. Its first machine is the manager."""

    script, variable, mark = "swarm/cluster", "SHARDYARD_SWARM_DIR", "SHARDYARD_SWARM_CLUSTER"

    @property
    def machines(self) -> list[str]:
        """The names of the machines."""
        return [f"machine{directory.name}" for directory in sorted(self.home.glob("[1-9]*"))]

    def docker(self, machine: str, *arguments: str) -> str:
        """What the engine of a machine answers; empty if it does not."""
        command = ["docker", "--host", self.host(machine), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    def host(self, machine: str) -> str:
        """The address of a machine's engine."""
        return f"unix://{self.home}/{machine.removeprefix('machine')}/docker.sock"

    def processes_of(self, machine: str) -> list[psutil.Process]:
        """The processes of a machine, those in its containers included."""
        found = {}
        for process in self.processes():
            with suppress(psutil.Error):
                if process.environ().get(PART) == machine:
                    found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        return [*found.values()]

    def engine(self, machine: str) -> psutil.Process:
        """The Docker engine of a machine."""
        return next(each for each in self.processes_of(machine) if each.name() == "dockerd")

    def containers(self, label: str) -> list[dict[str, Any]]:
        """The containers of an orchestrator on all machines, as `docker inspect` describes them.

        In each, `Machine` is the name of its machine, and `Pid` is of this machine's PID namespace.
        """
        found: list[dict[str, Any]] = []
        for machine in self.machines:
            listed = self.docker(machine, "ps", "--all", "--quiet", "--filter", f"label={LABEL}={label}")
            if not listed.split():
                continue
            pids = {pid: each.pid for each in self.processes_of(machine) if (pid := _pid_in_machine(each))}
            with suppress(ValueError):  # one was removed meanwhile
                for each in json.loads(self.docker(machine, "inspect", *listed.split()) or "[]"):
                    each["Machine"] = machine
                    each["State"]["Pid"] = pids.get(each["State"]["Pid"], 0)
                    found.append(each)
        return found

    def cut_off(self, machine: str, state: str) -> None:
        """Take the link of a machine down or up."""
        (hub,) = [each for each in self.processes() if each.environ()[PART] == "hub"]
        command = ["nsenter", "--target", str(hub.pid), "--net", "ip", "link", "set", machine, state]
        subprocess.run(command, check=True, capture_output=True)


def _pid_in_machine(process: psutil.Process) -> int | None:
    """The PID of a process in the namespace of its machine, which is one below this machine's."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:") and len(pids := line.split()[1:]) > 1:
                return int(pids[1])
    return None


@contextmanager
def trial_swarm() -> Iterator[TrialSwarm]:
    """A running swarm, whose manager the commands of Docker of this process use."""
    with TrialSwarm.running() as swarm:
        os.environ["DOCKER_HOST"] = swarm.host("machine1")
        yield swarm

"""Where nodes run: find their processes on this machine, and what they leave behind."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from orchestrator.identity import LABEL as LOCAL_LABEL
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.ray.cluster import OWNER, PREFIX, SESSIONS
from tests.support.containers import leftovers
from tests.support.processes import node_processes
from tests.support.ray_cluster import TrialRay
from tests.support.slurm_cluster import TrialCluster
from trainer.spec.run_spec import RunSpec

MPIRUN = ("bin/mpirun", "bin/prterun")  # Open MPI's mpirun becomes prterun


class Place(ABC):
    """The processes of one orchestrator's nodes."""

    def __init__(self, orchestrator: psutil.Process, label: str, out: Path) -> None:
        """label: the identity of the orchestrator."""
        self.orchestrator, self.label, self.out = orchestrator, label, out

    @abstractmethod
    def rank(self, run: RunSpec, rank: int, pid: int) -> psutil.Process | None:
        """The process of a rank that has reported this PID."""

    @abstractmethod
    def starting(self, run: RunSpec, rank: int) -> psutil.Process | None:
        """A process that becomes this rank, or starts it."""

    @abstractmethod
    def processes(self, *words: str) -> Iterator[psutil.Process]:
        """Processes of the orchestrator or its nodes whose command line contains one of the words."""

    @abstractmethod
    def left(self) -> list[str]:
        """What is left of the nodes, as text."""

    def waits(self) -> bool:
        """Whether a run waits for room on the machines."""
        return False

    def commands(self, *words: str) -> Iterator[psutil.Process]:
        """Descendants of the orchestrator on this machine whose command line contains one of the words."""
        with suppress(psutil.NoSuchProcess):
            yield from _with(words, self.orchestrator.children(recursive=True))


class LocalPlace(Place):
    """Processes of this machine."""

    def rank(self, run: RunSpec, rank: int, pid: int) -> psutil.Process | None:
        return _alive(pid)

    def starting(self, run: RunSpec, rank: int) -> psutil.Process | None:
        for process in node_processes(self.out):
            with suppress(psutil.Error):
                if process.environ().get("RANK") == str(rank):
                    return process
        return None

    def processes(self, *words: str) -> Iterator[psutil.Process]:
        return self.commands(*words)

    def left(self) -> list[str]:
        own = self.label.partition(" ")[0]
        found = {process.pid for process in node_processes(self.out)}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(LOCAL_LABEL) == own
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process.pid)
        return [f"process {pid}" for pid in sorted(found)]


class RayPlace(LocalPlace):
    """Actors of a trial cluster of others, or of local raylets.

    Attributes:
        others: what must still run at the end, the cluster of others.
    """

    def __init__(self, orchestrator: psutil.Process, label: str, out: Path) -> None:
        super().__init__(orchestrator, label, out)
        self.others = [*TrialRay().daemons()]
        self._names = {each.pid: each.name() for each in self.others}
        self._agents_before = {each.pid for each in self._agents()}

    def waits(self) -> bool:
        return "PENDING" in TrialRay().groups().values()

    def left(self) -> list[str]:
        cluster = TrialRay()
        agents = [each for each in self._agents() if each.pid not in self._agents_before]
        nodes = _with(["ray::Node", "trainer."], [*cluster.processes()])
        return [
            *super().left(),
            *(f"process {each.pid}" for each in (*nodes, *agents)),
            *(f"placement group {name}" for name in cluster.groups()),
            *(f"directory {path}" for path in SESSIONS.glob(f"{PREFIX}*") if self._owns(path)),
            *(f"no {self._names[each.pid]} {each.pid}" for each in self.others if not _alive(each.pid)),
        ]

    def _owns(self, session: Path) -> bool:
        with suppress(OSError):  # it is being removed
            return (session / OWNER).read_text() == self.label
        return False

    def _agents(self) -> list[psutil.Process]:
        """Ray's agents beside those of the trial cluster. No environment tells whose they are."""
        found = {*_with(["ray::DashboardAgent", "ray::RuntimeEnvAgent"], [*psutil.process_iter()])}
        return [*(found - {*TrialRay().processes()})]


class SlurmPlace(Place):
    """Nodes of a trial cluster on this machine."""

    @property
    def cluster(self) -> TrialCluster:
        return TrialCluster()

    def members(self, node: str = "") -> Iterator[psutil.Process]:
        """The processes of jobs of this sweep, on one node or on all of them."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                at = process.environ().get("SLURMD_NODENAME")
                ours = at is not None and Path(process.cwd()).is_relative_to(self.out.resolve())
                if ours and node in ("", at) and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def rank(self, run: RunSpec, rank: int, pid: int) -> psutil.Process | None:
        return _alive(pid)

    def starting(self, run: RunSpec, rank: int) -> psutil.Process | None:
        for process in self.members():
            with suppress(psutil.Error):
                if process.environ().get("SLURM_PROCID") == str(rank) and "trainer" in process.cmdline():
                    return process
        return None

    def processes(self, *words: str) -> Iterator[psutil.Process]:
        yield from _with(words, [*self.members()])

    def left(self) -> list[str]:
        found = {process.pid for process in self.members()}
        found |= {each.pid for each in self.cluster.processes() if "slurmstepd" in each.name()}
        jobs = self.cluster.call("squeue", "--noheader", "--format=%i").split()
        return [*(f"process {pid}" for pid in sorted(found)), *(f"job {job}" for job in jobs)]


class DockerPlace(Place):
    """Containers of an engine on this machine, whose processes it can see."""

    since = ""  # leave out containers that were created before this moment, in UTC and ISO 8601

    def containers(self, role: str = "", number: int | None = None) -> list[dict[str, Any]]:
        """The containers of a service and with a number, as `docker inspect` describes them."""
        filters = [f"label={LABEL}={self.label}"]
        filters += [f"label=com.docker.compose.service={role}"] if role else []
        filters += [] if number is None else [f"label=com.docker.compose.container-number={number}"]
        found = docker("ps", "-aq", *(part for each in filters for part in ("--filter", each))).split()
        if not found:
            return []
        try:
            inspected: list[dict[str, Any]] = json.loads(docker("inspect", *found) or "[]")
        except ValueError:
            return []  # one was removed meanwhile
        return [each for each in inspected if each["Created"] >= self.since]

    def node(self, run: RunSpec, rank: int) -> dict[str, Any] | None:
        """The container of a rank's node."""
        node = rank // run.processes_per_node
        if run.topology == "single":
            node = 0
        if run.topology == "rpc":
            found = self.containers("node", node) if node else self.containers("master")
        else:
            found = self.containers("node", node + 1)
        return found[0] if found else None

    def rank(self, run: RunSpec, rank: int, pid: int) -> psutil.Process | None:
        container = self.node(run, rank)
        return next((p for p in inside(container) if inner_pid(p) == pid), None) if container else None

    def starting(self, run: RunSpec, rank: int) -> psutil.Process | None:
        container = self.node(run, rank)
        return next(_with(["trainer.node"], inside(container)), None) if container else None

    def processes(self, *words: str) -> Iterator[psutil.Process]:
        for container in self.containers():
            yield from _with(words, inside(container))

    def left(self) -> list[str]:
        return [
            *leftovers(f"{LABEL}={self.label}"),
            *(f"process {p.pid}" for p in node_processes(self.out)),
        ]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout


def inside(container: dict[str, Any]) -> list[psutil.Process]:
    """The processes in a container."""
    pid = int(container["State"]["Pid"])
    with suppress(psutil.NoSuchProcess):
        if pid:
            init = psutil.Process(pid)
            return [init, *init.children(recursive=True)]
    return []


def inner_pid(process: psutil.Process) -> int:
    """The PID that a process has in its own namespace."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _with(words: Sequence[str], processes: list[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if any(word in command for word in words):
                yield process


def _alive(pid: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    return None


PLACES: dict[str, type[Place]] = {
    "local": LocalPlace,
    "docker": DockerPlace,
    "slurm": SlurmPlace,
    "ray": RayPlace,
}

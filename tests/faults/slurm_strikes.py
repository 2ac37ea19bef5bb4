"""Faults of a Slurm cluster: its daemons, its nodes, and other jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

from tests.faults.case import Fault, Strike
from tests.faults.scene import Scene
from tests.support.places import SlurmPlace
from tests.support.processes import wait_until
from tests.support.slurm_cluster import START_AGAIN, TrialCluster

DOWN_S = 10.0  # a daemon that is restarted is down no longer; Slurm declares a node dead after 30 s
SAVED_S = 7.0  # within which slurmctld has saved a change of its jobs: it does so every 5 s
REQUEUE_S = 120.0  # within which Slurm requeues the job of a node that has failed


def nodes(scene: Scene) -> list[str]:
    """The victims' nodes."""
    return [scene.rank(rank).environ()["SLURMD_NODENAME"] for rank in scene.victims]


def processes_of(scene: Scene, node: str) -> list[psutil.Process]:
    """The processes of a node: its daemon, the ranks and scripts there, and their slurmstepd."""
    place = scene.place
    assert isinstance(place, SlurmPlace)
    members = [*place.members(node)]
    parents = {parent for each in members if (parent := step_daemon(each))}
    return [place.cluster.slurmd(node), *parents, *members]


def step_daemon(process: psutil.Process) -> psutil.Process | None:
    """The slurmstepd of a process."""
    with suppress(psutil.Error):
        return next((each for each in process.parents() if "slurmstepd" in each.name()), None)
    return None


def kill(find: Callable[[Scene], Iterator[psutil.Process]]) -> Strike:
    def strike(scene: Scene, _: random.Random) -> None:
        for process in [*find(scene)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    return strike


def slurmd(scene: Scene) -> Iterator[psutil.Process]:
    for node in nodes(scene):
        yield TrialCluster().slurmd(node)


def slurmstepd(scene: Scene) -> Iterator[psutil.Process]:
    for rank in scene.victims:
        daemon = step_daemon(scene.rank(rank))
        assert daemon
        yield daemon


def slurmctld(_: Scene) -> Iterator[psutil.Process]:
    """The controller, once it has saved the job: killed earlier, it would forget the job."""
    time.sleep(SAVED_S)
    yield TrialCluster().daemon("slurmctld", "-D")


def munged(_: Scene) -> Iterator[psutil.Process]:
    yield TrialCluster().daemon("munged", "--foreground")


def machine(scene: Scene) -> Iterator[psutil.Process]:
    for node in nodes(scene):
        yield from processes_of(scene, node)


def suspend(scene: Scene, _: random.Random) -> None:
    """Suspend all processes of the victims' nodes, which then do not answer, as if cut off."""
    for process in [*machine(scene)]:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def resume(scene: Scene) -> None:
    """Continue what is suspended, and repair the cluster."""
    place = scene.place
    assert isinstance(place, SlurmPlace)
    for process in [*place.cluster.processes(), *place.members()]:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    repair(scene)


def restarted(words: str, find: Callable[[Scene], Iterator[psutil.Process]]) -> Fault:
    """Kill a daemon, and start it again a moment later."""

    def strike(scene: Scene, draws: random.Random) -> None:
        kill(find)(scene, draws)
        time.sleep(draws.uniform(0, DOWN_S))
        TrialCluster().up()

    return Fault(words, strike)


def lost(words: str, find: Callable[[Scene], Iterator[psutil.Process]]) -> Fault:
    """Kill processes, and repair the cluster only after the verdict."""
    return Fault(words, kill(find), repair=repair)


def requeued(words: str, strike: Strike) -> Fault:
    """A fault after which Slurm requeues the job. Start it soon: Slurm would wait for two minutes."""

    def strike_and_start(scene: Scene, draws: random.Random) -> None:
        cluster = TrialCluster()
        (job,) = cluster.call("squeue", "--noheader", "--format=%i").split()
        strike(scene, draws)

        def waits() -> bool:  # or has ended
            return cluster.call("squeue", "--noheader", f"--jobs={job}", "--format=%r") in ("BeginTime", "")

        wait_until(waits, REQUEUE_S)
        cluster.call("scontrol", "update", f"JobId={job}", START_AGAIN)

    return Fault(words, strike_and_start, repair=repair)


def preempt(_: Scene, __: random.Random) -> None:
    """Submit a job that needs all nodes at once, in a partition that takes precedence."""
    submitted = TrialCluster().call(
        *("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"),
        *("--chdir=/", "--wrap=sleep 1"),
    )
    assert submitted


def repair(_: Scene) -> None:
    TrialCluster().up()

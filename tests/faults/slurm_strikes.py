"""Faults of a Slurm cluster: its daemons, its nodes, and other jobs."""

from __future__ import annotations

import time
from contextlib import suppress
from signal import SIGCONT, SIGKILL

import psutil

from tests.faults.case import Fault, Strike
from tests.faults.scene import Scene
from tests.faults.strikes import Find, send, suspend
from tests.support.places import SlurmPlace
from tests.support.processes import wait_until
from tests.support.slurm_cluster import START_AGAIN, TrialCluster

DOWN_S = 10.0  # a daemon that is restarted is down no longer; Slurm declares a node dead after 30 s
SAVED_S = 7.0  # within which slurmctld has saved a change of its jobs: it does so every 5 s
REQUEUE_S = 120.0  # within which Slurm requeues the job of a node that has failed


def place_of(scene: Scene) -> SlurmPlace:
    assert isinstance(scene.place, SlurmPlace)
    return scene.place


def nodes(scene: Scene) -> list[str]:
    """The victims' nodes."""
    return [scene.rank(rank).environ()["SLURMD_NODENAME"] for rank in scene.victims]


def step_daemon(process: psutil.Process) -> psutil.Process | None:
    """The slurmstepd of a process."""
    with suppress(psutil.Error):
        return next((each for each in process.parents() if "slurmstepd" in each.name()), None)
    return None


def slurmd(scene: Scene) -> list[psutil.Process]:
    return [TrialCluster().slurmd(node) for node in nodes(scene)]


def slurmstepd(scene: Scene) -> list[psutil.Process]:
    found = [step_daemon(scene.rank(rank)) for rank in scene.victims]
    assert all(found)
    return [each for each in found if each]


def slurmctld(_: Scene) -> list[psutil.Process]:
    """The controller, once it has saved the job: killed earlier, it would forget the job."""
    time.sleep(SAVED_S)
    return [TrialCluster().daemon("slurmctld", "-D")]


def munged(_: Scene) -> list[psutil.Process]:
    return [TrialCluster().daemon("munged", "--foreground")]


def machine(scene: Scene) -> list[psutil.Process]:
    """The processes of the victims' nodes: daemons, ranks and scripts, and their slurmstepd."""
    members = [each for node in nodes(scene) for each in place_of(scene).members(node)]
    return [*slurmd(scene), *{parent for each in members if (parent := step_daemon(each))}, *members]


def repair(_: Scene) -> None:
    TrialCluster().up()


def resume(scene: Scene) -> None:
    """Continue what is suspended, and repair the cluster."""
    send(SIGCONT, [*TrialCluster().processes(), *place_of(scene).members()])
    repair(scene)


def kill(find: Find) -> Strike:
    return lambda scene: send(SIGKILL, find(scene))


def restarted(what: str, find: Find) -> Fault:
    """Kill a daemon, and start it again a moment later."""

    def strike(scene: Scene) -> None:
        send(SIGKILL, find(scene))
        time.sleep(scene.draws.uniform(0, DOWN_S))
        TrialCluster().up()

    return Fault(f"{what} gets SIGKILL, and is started again", strike)


def requeued(words: str, strike: Strike) -> Fault:
    """A fault after which Slurm requeues the job. Start it soon: Slurm would wait for two minutes."""

    def strike_and_start(scene: Scene) -> None:
        cluster = TrialCluster()
        (job,) = cluster.call("squeue", "--noheader", "--format=%i").split()
        strike(scene)

        def waits() -> bool:  # or has ended
            return cluster.call("squeue", "--noheader", f"--jobs={job}", "--format=%r") in ("BeginTime", "")

        wait_until(waits, REQUEUE_S)
        cluster.call("scontrol", "update", f"JobId={job}", START_AGAIN)

    return Fault(words, strike_and_start, repair=repair)


def preempt(_: Scene) -> None:
    """Submit a job that needs all nodes at once, in a partition that takes precedence."""
    submitted = TrialCluster().call(
        *("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"),
        *("--chdir=/", "--wrap=sleep 1"),
    )
    assert submitted


KILLED_MACHINE = "all processes of a node get SIGKILL"
SLURMSTEPD = Fault("the slurmstepd of a rank gets SIGKILL", kill(slurmstepd), repair=repair)
SLURMD = Fault("the slurmd of a node gets SIGKILL", kill(slurmd), repair=repair)
SLURMD_RESTARTED = restarted("the slurmd of a node", slurmd)
SLURMCTLD_RESTARTED = restarted("slurmctld", slurmctld)
MUNGED_RESTARTED = restarted("munged", munged)
MACHINE = Fault(KILLED_MACHINE, kill(machine), repair=repair)
MACHINE_REQUEUED = requeued(KILLED_MACHINE, kill(machine))
NODE_SUSPENDED = Fault("all processes of a node are suspended", suspend(machine), repair=resume)
PREEMPTED = Fault("another job preempts the run", preempt)
PREEMPTED_REQUEUED = requeued("another job preempts the run", preempt)

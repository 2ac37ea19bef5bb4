"""Faults of clusters: daemons, machines and other jobs of Slurm and of Ray."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from signal import SIGCONT, SIGKILL

import psutil

from tests.faults import strikes
from tests.faults.scene import Fault, Scene, Strike
from tests.faults.strikes import Find, for_a_while, ranks, send, signalled, suspended
from tests.support.processes import wait_until
from tests.support.ray_cluster import TrialRay
from tests.support.slurm_cluster import START_AGAIN, TrialCluster

# Slurm

DOWN_S = 5.0  # a daemon that is restarted is down no longer; Slurm declares a node dead after 30 s
SAVED_S = 7.0  # within which slurmctld has saved a change of its jobs: it does so every 5 s
REQUEUE_S = 120.0  # within which Slurm requeues the job of a node that has failed
START_SLURM: dict[str, Strike] = {"repair": lambda _: TrialCluster().up()}


def nodes(scene: Scene) -> list[str]:
    """The victims' nodes."""
    return [process.environ()["SLURMD_NODENAME"] for process in ranks(scene)]


def slurmstepds(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            found |= {each for each in process.parents() if "slurmstepd" in each.name()}
    return [*found]


def slurmd(scene: Scene) -> list[psutil.Process]:
    return [TrialCluster().slurmd(node) for node in nodes(scene)]


def slurmctld(_: Scene) -> list[psutil.Process]:
    """The controller, once it has saved the job: killed earlier, it would forget the job."""
    time.sleep(SAVED_S)
    return [TrialCluster().daemon("slurmctld", "-D")]


def machine(scene: Scene) -> list[psutil.Process]:
    """The processes of the victims' nodes: daemons, ranks and scripts, and their slurmstepd."""
    members = [each for node in nodes(scene) for each in scene.place.members(node)]
    return [*slurmd(scene), *slurmstepds(members), *members]


def resume(scene: Scene) -> None:
    """Continue what is suspended, and repair the cluster."""
    send(SIGCONT, *TrialCluster().processes(), *scene.place.members())
    TrialCluster().up()


def restarted(find: Find) -> Fault:
    """Kill a daemon, and start it again a moment later."""
    return Fault(for_a_while(find, partial(send, SIGKILL), START_SLURM["repair"], DOWN_S))


def requeued(fault: Fault) -> Fault:
    """A fault after which Slurm requeues the job. Start it soon: Slurm would wait for two minutes."""

    def strike(scene: Scene) -> None:
        call = TrialCluster().call
        job = call("squeue", "--noheader", "--format=%i")
        shown = ("squeue", "--noheader", f"--jobs={job}", "--format=%r")
        fault.strike(scene)
        wait_until(lambda: call(*shown) in ("BeginTime", ""), REQUEUE_S)  # or it has ended
        call("scontrol", "update", f"JobId={job}", START_AGAIN)

    return Fault(strike, **START_SLURM)


def preempt_job(_: Scene) -> None:
    """Submit a job that needs all nodes at once, in a partition that takes precedence."""
    assert TrialCluster().call(
        *("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"),
        *("--chdir=/", "--wrap=sleep 1"),
    )


SLURMSTEPD = signalled(lambda scene: slurmstepds(ranks(scene)), **START_SLURM)
MUNGED_RESTARTED = restarted(lambda _: [TrialCluster().daemon("munged", "--foreground")])
SLURMD = signalled(slurmd, **START_SLURM)
SLURM_NODE = signalled(machine, **START_SLURM)
SLURM_NODE_SUSPENDED = suspended(machine, repair=resume)

# Ray

DRIVER_COMMAND, HEAD_COMMAND = "runtimes.ray.driver", "gcs/gcs_server"
CUT_OFF_S = 75.0  # Ray gives up a silent machine after 65 s
NOTICE_S = 5  # from the announcement to the end of a preempted machine
LARGE = 8  # CPUs of a node that no machine of the trial cluster can have


def actor(scene: Scene) -> list[psutil.Process]:
    """The actor of the victim, above the warm parent of its rank."""
    return [process.parents()[1] for process in ranks(scene)]


def raylet(scene: Scene) -> list[psutil.Process]:
    """The raylet of a machine other than the head's. The rank there becomes the victim."""
    found = TrialRay().raylets()[-1]
    scene.victims = [0, 1]
    scene.victims = [rank for rank, process in enumerate(ranks(scene)) if found in process.parents()]
    scene.place.others.remove(found)
    return [found]


def with_processes(find: Find) -> Find:
    return lambda scene: [each for top in find(scene) for each in (top, *top.children(recursive=True))]


def replace_ray(_: Scene) -> None:
    """Replace the cluster: machines were lost or added."""
    TrialRay().stop()
    TrialRay().up()


END_WITH_DRIVER = signalled(strikes.started(DRIVER_COMMAND), strikes.orchestrator, leaves=True)
RAYLET = signalled(raylet, repair=replace_ray)
RAY_MACHINE_SUSPENDED = suspended(with_processes(raylet), CUT_OFF_S, repair=replace_ray)
MACHINE_PREEMPTED = Fault(lambda scene: TrialRay().preempt(*raylet(scene), NOTICE_S), repair=replace_ray)
MACHINE_ADDED = Fault(lambda _: TrialRay().add(2 * LARGE), repair=replace_ray)

"""Faults of a Ray cluster: its head, its machines, and the actors and the driver of a sweep."""

from __future__ import annotations

from signal import SIGKILL

import psutil

from tests.faults.case import Fault, fault
from tests.faults.scene import Scene
from tests.faults.strikes import first, killed, send, suspend
from tests.support.places import RayPlace
from tests.support.ray_cluster import TrialRay

LOCAL_RAYLETS = {"RAY_ADDRESS": ""}  # which the sweep starts; without it, it uses the trial cluster
DRIVER_COMMAND, HEAD_COMMAND = "runtimes.ray.driver", "gcs/gcs_server"
CUT_OFF_S = 75.0  # Ray gives up a silent machine after 65 s
NOTICE_S = 5  # from the announcement to the end of a preempted machine
LARGE = 8  # CPUs of a node that no machine of the trial cluster can have


def actor(scene: Scene) -> list[psutil.Process]:
    """The actor of the victim, above the warm parent of its rank."""
    (rank,) = scene.victims
    return [scene.rank(rank).parents()[1]]


def raylet(scene: Scene) -> list[psutil.Process]:
    """The raylet of a machine other than the head's. The rank there becomes the victim."""
    place = scene.place
    assert isinstance(place, RayPlace)
    found = TrialRay().raylets()[-1]
    scene.victims = [each for each in range(2) if found in scene.rank(each).parents()]
    place.others.remove(found)
    return [found]


def actor_and_processes(scene: Scene) -> list[psutil.Process]:
    return [each for top in actor(scene) for each in (top, *top.children(recursive=True))]


def raylet_and_processes(scene: Scene) -> list[psutil.Process]:
    return [each for top in raylet(scene) for each in (top, *top.children(recursive=True))]


def repair(_: Scene) -> None:
    """Replace the cluster: machines were lost or added."""
    TrialRay().stop()
    TrialRay().up()


ACTOR = killed("the actor of a node", actor)
ACTOR_SUSPENDED = Fault("an actor and its processes are suspended", suspend(actor_and_processes))
DRIVER = killed("Ray's driver", first(DRIVER_COMMAND))
HEAD = killed("the head", first(HEAD_COMMAND))
RAYLET = Fault(
    "the raylet of a machine gets SIGKILL", lambda scene: send(SIGKILL, raylet(scene)), repair=repair
)
MACHINE_SUSPENDED = Fault(
    "a raylet and its processes are suspended for 75 s",
    suspend(raylet_and_processes, CUT_OFF_S),
    repair=repair,
)


@fault("the orchestrator and Ray's driver get SIGKILL", leaves=True)
def end_with_driver(scene: Scene) -> None:
    send(SIGKILL, [*scene.place.commands(DRIVER_COMMAND), scene.orchestrator])


@fault("a machine is preempted, with 5 s of notice", repair=repair)
def preempt(scene: Scene) -> None:
    (found,) = raylet(scene)
    TrialRay().preempt(found, NOTICE_S)


@fault("a machine with the CPUs is added", repair=repair)
def add_machine(_: Scene) -> None:
    TrialRay().add(2 * LARGE)

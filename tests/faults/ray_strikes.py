"""Faults of a Ray cluster: its head, its machines, and the actors and the driver of a sweep."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.faults.case import Strike
from tests.faults.scene import Scene
from tests.support.places import RayPlace
from tests.support.ray_cluster import TrialRay

LOCAL_RAYLETS = {"RAY_ADDRESS": ""}  # which the sweep starts; without it, it uses the trial cluster
DRIVER, HEAD = "runtimes.ray.driver", "gcs/gcs_server"  # in their command lines
CUT_OFF_S = 75.0  # Ray gives up a silent machine after 65 s
NOTICE_S = 5  # from the announcement to the end of a preempted machine
LARGE = 8  # CPUs of a node that no machine of the trial cluster can have


def actor(scene: Scene) -> psutil.Process:
    """The actor of the victim, above the warm parent of its rank."""
    (rank,) = scene.victims
    return scene.rank(rank).parents()[1]


def machine(scene: Scene) -> psutil.Process:
    """The raylet of a machine other than the head's. The rank there becomes the victim."""
    place = scene.place
    assert isinstance(place, RayPlace)
    raylet = TrialRay().raylets()[-1]
    scene.victims = [each for each in range(2) if raylet in scene.rank(each).parents()]
    place.others.remove(raylet)
    return raylet


def kill(find: Callable[[Scene], psutil.Process]) -> Strike:
    return lambda scene, _: find(scene).kill()


def suspend(find: Callable[[Scene], psutil.Process], seconds: float | None = None) -> Strike:
    """Suspend a process and all its descendants, which then do not answer, and continue them."""

    def strike(scene: Scene, _: random.Random) -> None:
        top = find(scene)
        found = [top, *top.children(recursive=True)]
        _all(psutil.Process.suspend, found)
        if seconds is not None:
            time.sleep(seconds)
            _all(psutil.Process.resume, found)

    return strike


def _all(act: Callable[[psutil.Process], None], processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            act(process)


def kill_orchestrator_and_driver(scene: Scene, _: random.Random) -> None:
    for process in [*scene.place.commands(DRIVER), scene.orchestrator]:
        process.kill()


def preempt(scene: Scene, _: random.Random) -> None:
    TrialRay().preempt(machine(scene), NOTICE_S)


def add_machine(_: Scene, __: random.Random) -> None:
    TrialRay().add(2 * LARGE)


def repair(_: Scene) -> None:
    """Replace the cluster: machines were lost or added."""
    TrialRay().stop()
    TrialRay().up()

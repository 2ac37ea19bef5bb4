"""Faults of a Docker Swarm: its containers, its machines, their links, and the manager."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import psutil

from tests.faults.case import Fault, Strike
from tests.faults.scene import Scene
from tests.support.places import inside
from tests.support.swarm_cluster import TrialSwarm

# Nodes are on other machines than the manager's. Swarm spreads two nodes over two of them.
ELSEWHERE = {"swarm": {"constraints": ["node.role==worker"]}}


def kill_containers(role: str) -> Strike:
    """Kill the containers of a service; of `node`, the victims'."""

    def strike(scene: Scene, _: random.Random) -> None:
        for container in scene.until(lambda: scene.running_containers(role), f"no container of {role}"):
            inside(container)[0].kill()

    return strike


def suspend_nodes(scene: Scene, _: random.Random) -> None:
    """Suspend all processes of the victims' nodes, but init."""
    for container in scene.running_containers("node"):
        for process in inside(container)[1:]:
            with suppress(psutil.NoSuchProcess):
                process.suspend()


def machines(scene: Scene) -> list[str]:
    """The machines of the victims' nodes."""
    return [each["Machine"] for each in scene.running_containers("node")]


def lose(scene: Scene, _: random.Random) -> None:
    """Kill the engines of the victims' machines. A machine ends with its engine."""
    for machine in machines(scene):
        TrialSwarm().engine(machine).kill()


def lose_manager(_: Scene, __: random.Random) -> None:
    TrialSwarm().engine("machine1").kill()


def cut(words: str, seconds: float | None) -> Fault:
    """Cut the victims' machines off from the network, and connect them again."""

    def strike(scene: Scene, _: random.Random) -> None:
        cut_off = machines(scene)
        for machine in cut_off:
            TrialSwarm().cut_off(machine, "down")
        if seconds is not None:
            time.sleep(seconds)
            connect(cut_off)

    return Fault(words, strike, repair=lambda scene: connect(TrialSwarm().machines))


def connect(names: list[str]) -> None:
    """Connect machines to the network, and wait until the swarm has them."""
    for machine in names:
        TrialSwarm().cut_off(machine, "up")
    TrialSwarm().up()


def repair(_: Scene) -> None:
    """Start machines that have ended."""
    TrialSwarm().up()

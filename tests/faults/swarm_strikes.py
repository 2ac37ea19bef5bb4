"""Faults of a Docker Swarm: its containers, its machines, their links, and the manager."""

from __future__ import annotations

import time
from collections.abc import Iterable
from signal import SIGKILL

import psutil

from tests.faults.case import Fault, fault
from tests.faults.scene import Scene
from tests.faults.strikes import Find, signalled, suspend
from tests.support.places import inside
from tests.support.swarm_cluster import TrialSwarm

# Nodes are on other machines than the manager's. Swarm spreads two nodes over two of them.
ELSEWHERE = {"swarm": {"constraints": ["node.role==worker"]}}


def containers(role: str) -> Find:
    """Process 1 in the containers of a service; of `node`, the victims'."""
    return lambda scene: [
        inside(each)[0]
        for each in scene.until(lambda: scene.running_containers(role), f"no container of {role}")
    ]


def in_nodes(scene: Scene) -> list[psutil.Process]:
    """All processes of the victims' nodes, but init."""
    return [process for each in scene.running_containers("node") for process in inside(each)[1:]]


def machines(scene: Scene) -> list[str]:
    """The machines of the victims' nodes."""
    return [each["Machine"] for each in scene.running_containers("node")]


def repair(_: Scene) -> None:
    """Start machines that have ended."""
    TrialSwarm().up()


CONTAINER = signalled(SIGKILL, containers("node"), "a node's container is killed")
COORDINATOR = signalled(SIGKILL, containers("coordinator"), "the coordinator's container is killed")
SUSPEND_NODES = Fault("all processes of a node are suspended", suspend(in_nodes))


@fault("the machine of a node ends", repair=repair)
def lose(scene: Scene) -> None:
    """Kill the engines of the victims' machines. A machine ends with its engine."""
    for machine in machines(scene):
        TrialSwarm().engine(machine).kill()


@fault("the manager's engine gets SIGKILL", repair=repair, leaves=True)
def lose_manager(_: Scene) -> None:
    TrialSwarm().engine("machine1").kill()


def cut(words: str, seconds: float | None) -> Fault:
    """Cut the victims' machines off from the network, and connect them again."""

    def connect(names: Iterable[str]) -> None:
        for machine in names:
            TrialSwarm().cut_off(machine, "up")
        TrialSwarm().up()  # waits until the swarm has them

    def strike(scene: Scene) -> None:
        cut_off = machines(scene)
        for machine in cut_off:
            TrialSwarm().cut_off(machine, "down")
        if seconds is not None:
            time.sleep(seconds)
            connect(cut_off)

    return Fault(words, strike, repair=lambda scene: connect(TrialSwarm().machines))


CUT = cut("the machine of a node is cut off from the network", None)
CUT_SHORT = cut("the machine of a node is cut off for 3 s", 3.0)

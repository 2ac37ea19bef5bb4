"""`python -m orchestrator.runtimes.ray.driver`: Ray's driver, a process of its own.

Ray ends the process of a driver that loses its cluster. Standard input has a request in each line, standard
output the reply. The driver ends with its standard input, and with it all that it has started.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.runtimes.ray import node
from orchestrator.runtimes.ray.placement import NodeResources, missing, strategy

LOOPBACK = "127.0.0.1"
ANSWER_S = 120.0  # of a node; it may have to import torch, or to download its data
STOP_S = 20.0
SILENCE_S = 90.0  # of a node that answers every 0.2 s; Ray itself gives up a silent machine after 65 s
STORE_BYTES = 80_000_000  # of a local raylet's object store: nothing is kept in it
LOCAL = {"num_cpus": 256, "memory": 2**44, "resources": {}}  # a local raylet takes nodes of any size


class Group:
    """A placement group and the actors in it, which stay for one run after the other."""

    def __init__(self, size: int, resources: NodeResources) -> None:
        self._size, self._resources = size, resources
        self._request(strategy(size, resources, _machines()))
        self._actors: list[Any] = []
        self._waits: dict[Any, int] = {}  # the node of each pending call of `wait`
        self._asked_at: dict[int, float] = {}  # when each node got that call
        self._exits: dict[str, int] = {}
        self._described: list[Any] = []

    def _request(self, strategy: str) -> None:
        self.strategy = strategy
        self._group = placement_group([self._resources.bundle()] * self._size, strategy=strategy)

    def nodes(self, timeout_s: float) -> dict[str, Any]:
        """The nodes once all have started; before, what is missing, or nothing if they are starting."""
        if not self._actors:
            if not self._group.wait(timeout_s):
                free, machines = ray.available_resources(), _machines()
                if (now := strategy(self._size, self._resources, machines)) != self.strategy:
                    remove_placement_group(self._group)  # Ray has noticed a lost or added machine since
                    self._request(now)
                return {"missing": missing(self._size, self._resources, machines, free)}
            actor = ray.remote(max_restarts=0)(node.Node)
            needs = self._resources
            for index in range(self._size):
                place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
                options = {"scheduling_strategy": place, "num_cpus": needs.cpus, "num_gpus": needs.gpus}
                token = f"{os.getpid()}-{self._group.id.hex()[:16]}-{index}"
                self._actors.append(actor.options(**options).remote(token))
            self._described = [each.describe.remote() for each in self._actors]
        started, _ = ray.wait(self._described, num_returns=self._size, timeout=timeout_s)
        if len(started) < self._size:
            return {}
        nodes = [json.loads(ray.get(each)) for each in self._described]
        return {"nodes": nodes, "strategy": self.strategy}

    def start(self, run: dict[str, Any], shares: Sequence[Any], warm: bool) -> dict[str, Any]:
        """Start the ranks of a run. shares: the processes of each node."""
        host = json.loads(ray.get(self._described[0]))["address"]
        port = ray.get(self._actors[0].port.remote(), timeout=ANSWER_S)
        self._exits = {}
        for each in (each for share in shares for each in share):
            each["environment"] |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        pairs = [*zip(self._actors, shares, strict=False)]  # a smaller run uses the first nodes
        replies = [actor.start.remote(run, share, warm) for actor, share in pairs]
        answers = [json.loads(each) for each in ray.get(replies, timeout=ANSWER_S)]
        self._waits = {self._wait(number): number for number in range(len(pairs))}
        return {key: value for answer in answers for key, value in answer.items() if value}

    def _wait(self, number: int) -> Any:
        self._asked_at[number] = time.monotonic()
        return self._actors[number].wait.remote(0.2)

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """The exit codes of ranks once another one has ended, or after a time; or how a node was lost."""
        deadline, before = time.monotonic() + timeout_s, len(self._exits)
        while self._waits and len(self._exits) == before and (left := deadline - time.monotonic()) > 0:
            for reference in ray.wait([*self._waits], timeout=left)[0]:
                number = self._waits.pop(reference)
                try:
                    answer = json.loads(ray.get(reference))
                except ray.exceptions.RayError as error:
                    return {"exits": self._exits, "lost": f"node {number} was lost: {_first_line(error)}"}
                self._exits |= answer["exits"]
                if answer["lost"]:
                    lost = f"the process of warm nodes {answer['lost']} (node {number})"
                    return {"exits": self._exits, "lost": lost}
                if answer["running"]:
                    self._waits[self._wait(number)] = number
        if silent := self._silent():
            lost = f"node {silent[0]} was lost: it did not answer for {SILENCE_S:g} s"
            return {"exits": self._exits, "lost": lost}
        return {"exits": self._exits}

    def _silent(self) -> list[int]:
        """The nodes that do not answer. The driver may have left an answer unread for a while."""
        late = time.monotonic() - SILENCE_S
        unread = [each for each, number in self._waits.items() if self._asked_at[number] < late]
        if not unread:
            return []
        _, waiting = ray.wait(unread, num_returns=len(unread), timeout=0)
        return sorted(self._waits[each] for each in waiting)

    def stop(self) -> dict[str, Any]:
        """End the ranks. The nodes stay."""
        self._waits = {}
        ray.get([actor.stop.remote() for actor in self._actors], timeout=STOP_S)
        return {}

    def delete(self) -> None:
        """End the nodes. Their ranks end with them."""
        for actor in self._actors:
            with suppress(Exception):  # it may be gone, and so may the cluster
                ray.kill(actor)
        with suppress(Exception):
            remove_placement_group(self._group)


def _machines() -> list[dict[str, Any]]:
    return [each["Resources"] for each in ray.nodes() if each["Alive"]]


def _first_line(error: BaseException) -> str:
    """Ray's reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return next((line for line in lines if "because" in line), first).partition(". ")[0].rstrip(".")


class Driver:
    """A connection to a cluster, which it has started if it was given no address."""

    def __init__(self, address: str | None, raylets: int, code: Sequence[str]) -> None:
        """
        Args:
            address: the cluster's; None: it starts one.
            raylets: those of a cluster that it starts.
            code: directories of the packages that nodes import.
        """
        ray.cloudpickle.register_pickle_by_value(node)  # machines have no orchestrator
        self._cluster: Any = None
        own: dict[str, Any] = {}
        if address is None:
            from ray.cluster_utils import Cluster

            local = {**LOCAL, "node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES}
            local |= {"include_dashboard": False, "include_log_monitor": False}
            self._cluster = Cluster(initialize_head=True, head_node_args=local)
            for _ in range(raylets - 1):
                self._cluster.add_node(wait=False, **local)
            self._cluster.wait_for_nodes()
            address, own = self._cluster.address, {"_node_ip_address": LOOPBACK}
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"py_modules": [*code]},
            **own,
        )
        self._groups: dict[int, Group] = {}

    def describe(self) -> dict[str, Any]:
        """The cluster's machines and CPUs."""
        found = _machines()
        return {"machines": len(found), "cpus": sum(each.get("CPU", 0) for each in found)}

    def create(self, size: int, cpus: float, memory_mb: int, gpus: int) -> dict[str, Any]:
        """Request a placement group."""
        number = len(self._groups)
        self._groups[number] = group = Group(size, NodeResources(cpus, memory_mb, gpus))
        return {"group": number, "strategy": group.strategy}

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says."""
        word, group = request.pop("do"), self._groups.get(request.pop("group", -1))
        if word in ("create", "describe"):
            answer: dict[str, Any] = getattr(self, word)(**request)
            return answer
        if group is None:
            raise ValueError(f"{word}: no such group")
        if word == "delete":
            group.delete()
            return {}
        found: dict[str, Any] = getattr(group, word)(**request)
        return found

    def close(self) -> None:
        """End all nodes, and the cluster that it has started."""
        for group in self._groups.values():
            group.delete()
        with suppress(Exception):
            ray.shutdown()
        if self._cluster:
            with suppress(Exception):
                self._cluster.shutdown()


def main() -> None:
    """Serve the orchestrator until it closes standard input."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    session = Path(os.environ["SHARDYARD_RAY_SESSION"])
    driver = None
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if driver is None:
                    driver = Driver(**request)
                    reply = driver.describe()
                else:
                    reply = driver.serve(request)
            except Exception as error:
                reply = {"error": _first_line(error)}
            output.write(json.dumps(reply) + "\n")
            output.flush()
    finally:
        if driver:
            driver.close()
        shutil.rmtree(session, ignore_errors=True)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # no thread of Ray may delay it

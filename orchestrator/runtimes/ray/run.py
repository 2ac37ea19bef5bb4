"""The nodes of a topology on a Ray cluster, and a run on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from orchestrator.errors import InputError
from orchestrator.runtimes.base import Cluster, RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.live_run import LiveRun, make_live
from orchestrator.runtimes.ray.driver_client import DriverError, DriverProcess, Reply
from orchestrator.runtimes.ray.options import RayOptions
from trainer.core.sources import own_digest

START_S = 90.0  # of the nodes, once Ray has room for them: each fetches the trainer and imports it


class RayCluster(Cluster):
    """A placement group and its actors.

    Attributes:
        strategy: SPREAD or STRICT_SPREAD.
    """

    def __init__(self, driver: DriverProcess, request: Mapping[str, Any], options: RayOptions) -> None:
        """Request the group: its size, and the resources of each node. Raises InputError."""
        self._driver, self._options = driver, options
        try:
            reply = driver.ask("create", **request)
        except DriverError as error:
            raise InputError(f"Ray: {error}") from error
        self._group, self.strategy = reply.group, reply.strategy
        self._deleted = False

    def run(self, plan: LaunchPlan) -> RayRun:
        make_live(plan.paths, plan.spec.world_size)
        return RayRun(self, plan, self._options)

    def ask(self, word: str, **fields: Any) -> Reply:
        """The driver's answer about this group. Raises DriverError; the cluster has failed then."""
        try:
            return self._driver.ask(word, group=self._group, **fields)
        except DriverError as error:
            self.lose(str(error))
            raise

    def lose(self, reason: str) -> None:
        """Let the next run have a new cluster."""
        self.failure = self.failure or reason

    def ready(self) -> bool:
        self.failure = self.failure or self._driver.failure()
        return self.failure is None

    def delete(self) -> None:
        if not self._deleted and self._driver.is_running:
            with suppress(DriverError):  # which is then the failure
                if not self.failure:
                    self.ask("delete")
            if self.failure:  # the driver's own machine may be lost: the next cluster has a new driver
                self._driver.close()
        self._deleted = True


class RayRun(LiveRun):
    """A run on the nodes of a cluster, whose ranks start once Ray has placed them."""

    def __init__(self, cluster: RayCluster, plan: LaunchPlan, options: RayOptions) -> None:
        super().__init__(plan)
        self._cluster, self._options = cluster, options
        self._asked_at = time.monotonic()
        self._placed_at: float | None = None
        self._started = self._stopped = False
        self._exits: dict[str, int] = {}

    def wait(self, timeout_s: float) -> RunState:
        try:
            state = self._wait(timeout_s) if self._started else self._start(timeout_s)
        except DriverError as error:
            return RunState(self._exits, 0, f"Ray: {error}", nodes_lost=True)
        if state.nodes_lost and state.error:
            self._cluster.lose(state.error)
        return state

    def _start(self, timeout_s: float) -> RunState:
        """Start the ranks once there are nodes."""
        found = self._cluster.ask("nodes", timeout_s=timeout_s)
        now = time.monotonic()
        if found.missing:
            late = now - self._asked_at > self._options.wait_s
            return RunState({}, 1, found.missing if late else None, waiting=True)
        if not found.nodes:
            self._placed_at = self._placed_at or now
            late = now - self._placed_at > START_S
            error = f"Ray did not start the nodes within {START_S:g} s" if late else None
            return RunState({}, 1, error, waiting=True)
        self._cluster.strategy = found.strategy  # Ray may have noticed a lost machine since
        for node in found.nodes:
            if node.sources != (own := own_digest()):
                error = f"{node.machine} has a trainer of sources {node.sources}, and not {own}"
                return RunState({}, 0, error)
        parts, warm = shares(self._plan), self._plan.warm
        reply = self._cluster.ask("start", run=self._request(), shares=parts, warm=warm)
        self._started, self.replaced = True, reply.replaced
        return RunState({}, 0 if reply.refusal else 1, reply.refusal)

    def _request(self) -> dict[str, Any]:
        spec, paths = self._plan.spec, self._plan.paths
        return {
            "spec": str(paths.spec.resolve()),
            "digest": sha256(paths.spec.read_bytes()).hexdigest(),
            "files": [*spec.dataset.files],
            "data": str(self._plan.data_dir.resolve()),
            "downloads": self._options.data_dir,
        }

    def _wait(self, timeout_s: float) -> RunState:
        reply = self._cluster.ask("wait", timeout_s=timeout_s)
        self._exits = dict(reply.exits)
        running = len(self._plan.processes) - len(self._exits)
        if reply.lost:
            return RunState(self._exits, running, reply.lost, nodes_lost=True)
        return RunState(self._exits, running, self._trouble if running else None)

    def stop(self) -> None:
        """End the ranks. If a node does not answer, end all nodes: ranks end with their node."""
        if self._cluster.failure:
            self._cluster.delete()
        elif self._started and not self._stopped:
            self._stopped = True
            try:
                self._cluster.ask("stop")
            except DriverError:
                self._cluster.delete()


def shares(plan: LaunchPlan) -> Sequence[Sequence[dict[str, Any]]]:
    """The processes of each node of a run, which write to the same log."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in plan.processes:
        process = {"name": each.name, "environment": each.environment}
        found.setdefault(each.log, []).append(process | {"log": str(plan.paths.log(each.log).resolve())})
    return [*found.values()]

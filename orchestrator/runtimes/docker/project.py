"""The containers of one compose project: start, observe and remove them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.runtimes.docker.compose import Cluster
from orchestrator.runtimes.docker.engine import Engine, command_error, is_responding
from orchestrator.runtimes.docker.reaper import remove_project
from trainer.cluster.rank_assignment import AgentInfo
from trainer.spec.run_spec import RunSpec

TERMINATE_S = 3  # between SIGTERM and SIGKILL; an agent gives its ranks 2 s of it
COMPOSE_S = 60  # to stop or remove the containers
UNRESPONSIVE_S = 10.0  # after which the engine counts as dead

Container = Mapping[str, Any]  # as the engine lists it


class Project:
    """A started project. Methods raise the SDK's exceptions if the engine does not respond."""

    def __init__(self, engine: Engine, cluster: Cluster, log: Path) -> None:
        """Start the containers; return at once. log: for the output of docker compose."""
        self.engine, self.cluster = engine, cluster
        self._log = log
        self._codes: dict[str, int] = {}  # by ID, of containers that have exited
        self.quota_pending = cluster.quota_pending
        self.links_pending = cluster.linked
        self._started = self.answered_at = time.monotonic()  # answered_at: last inspection that succeeded
        self.start_s = 0.0  # that compose has taken
        remove_project(engine, cluster.project)
        with open(log, "wb") as output:
            self.up = subprocess.Popen(
                engine.command(*cluster.up),
                env={**os.environ, **cluster.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is the orchestrator's to handle
            )

    @property
    def starting(self) -> bool:
        """Whether compose still starts containers."""
        running = self.up.poll() is None
        if running:
            self.start_s = time.monotonic() - self._started
        return running

    @property
    def start_error(self) -> str | None:
        """Why compose has failed, or None."""
        return self._start_error if self.up.returncode else None

    @cached_property
    def _start_error(self) -> str:
        """Read once: the log may be removed with the run that started the containers."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"docker compose failed: {lines[-1][:300] if lines else f'exit code {self.up.returncode}'}"

    def containers(self) -> list[Container]:
        """The containers that have started, except those that only prepare data or links."""
        label = {"label": f"com.docker.compose.project={self.cluster.project}"}
        found: list[Container] = self.engine.client.api.containers(all=True, filters=label)
        return [
            each for each in found if service(each) not in ("data", "plug") and each["State"] != "created"
        ]

    def engine_failure(self, error: Exception) -> str | None:
        """Why the engine counts as dead after a request that failed with `error`; None if it does not."""
        silent_s = time.monotonic() - self.answered_at
        if silent_s < UNRESPONSIVE_S and is_responding(self.engine):
            return None
        return f"the Docker engine stopped responding ({type(error).__name__})"

    def exit_code(self, container: Container) -> int:
        """Exit code of a container that has exited; negative if it was killed by a signal."""
        identifier = container["Id"]
        if identifier not in self._codes:
            code = int(self.engine.client.api.inspect_container(identifier)["State"]["ExitCode"])
            self._codes[identifier] = 128 - code if code > 128 else code
        return self._codes[identifier]

    def is_stuck(self, container: Container) -> bool:
        """Whether its health checks fail.

        For a moment, the engine also calls a container unhealthy that was paused and goes on: it counts no
        failed check of it.
        """
        if "(unhealthy)" not in container["Status"]:
            return False
        health = self.engine.client.api.inspect_container(container["Id"])["State"].get("Health") or {}
        return bool(health.get("FailingStreak"))

    def apply_quotas(self) -> str | None:
        """Apply the nodes' CPU quotas, for which ready ranks wait.

        Returns:
            Why that failed. None if it did not, or if a node has ended, which the next inspection reports.
        """
        nodes = [each for each in self.containers() if service(each) not in ("coordinator", "switch")]
        nodes.sort(key=lambda each: (service(each) == "node", ordinal(each)))
        for command in self.cluster.limit_cpus(*(each["Id"] for each in nodes)):
            if error := command_error(self.engine, *command):
                running = {each["Id"] for each in self.containers() if not has_ended(each)}
                lost = any(each["Id"] not in running for each in nodes)
                return None if lost else f"CPU quotas were not applied: {error}"
        self.quota_pending = False
        return None

    def apply_links(self, run: RunSpec) -> str | None:
        """Set the links of a run, and connect the nodes to the switch if they are not.

        Returns:
            Why that failed. None if it did not, or if a container has ended, which the next inspection
            reports.
        """
        containers = self.containers()
        nodes = [each for each in containers if service(each) in ("node", "master")]
        nodes.sort(key=lambda each: (service(each) == "node", ordinal(each)))
        switches = [each for each in containers if service(each) == "switch"]
        if not switches or any(map(has_ended, [*nodes, *switches])):
            return None
        addresses = [address(each) for each in nodes]
        error = command_error(self.engine, *self.cluster.set_links(run, switches[0]["Id"], addresses))
        if not error and self.links_pending:
            error = self._plug(nodes, addresses)
        if error:
            return f"links were not applied: {error}"
        self.links_pending = False
        return None

    def _plug(self, nodes: Sequence[Container], addresses: Sequence[str]) -> str | None:
        """Connect all nodes to the switch at the same time. Returns why that failed, or None."""
        plugs = [
            subprocess.Popen(
                self.engine.command(*self.cluster.plug(own, addresses)),
                env={**os.environ, **self.cluster.environment, "SHARDYARD_NODE": node["Id"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for node, own in zip(nodes, addresses, strict=True)
        ]
        errors = []
        deadline = time.monotonic() + COMPOSE_S
        for plug in plugs:
            try:
                _, output = plug.communicate(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                plug.kill()
                _, output = plug.communicate()
            if plug.returncode:
                lines = output.strip().splitlines()
                errors.append(lines[-1][:300] if lines else f"exit code {plug.returncode}")
        return next(iter(errors), None)

    def log(self, container: Container, **options: Any) -> Iterator[bytes]:
        """Its console output so far, in chunks. options: of the SDK's `logs`."""
        logs = self.engine.client.api.logs
        chunks: Iterator[bytes] = logs(container["Id"], stream=True, follow=False, **options)
        return chunks

    def terminate(self) -> None:
        """Send SIGTERM to all containers, later SIGKILL."""
        self._end_compose()
        if any(not has_ended(each) for each in self.containers()):
            self._compose(*self.cluster.compose, "stop", "-t", str(TERMINATE_S))

    def remove(self) -> None:
        """Remove containers, networks and volumes; a dead engine's are left to the next sweep."""
        self._end_compose()
        self._compose(*self.cluster.down)
        try:
            remove_project(self.engine, self.cluster.project)
        except Exception:
            # An engine that has died must not hide a run's result. The next sweep removes by label what
            # the engine still has.
            if is_responding(self.engine):
                raise

    def _end_compose(self) -> None:
        if self.up.poll() is None:
            self.up.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.up.wait(TERMINATE_S)
            self.up.kill()
            # With a limit: if Ctrl-C interrupts Popen.poll() at the wrong moment, its lock is never
            # released, and wait() never returns.
            with suppress(subprocess.TimeoutExpired):
                self.up.wait(TERMINATE_S)

    def _compose(self, *arguments: str) -> None:
        environment = {**os.environ, **self.cluster.environment}
        command = self.engine.command(*arguments)
        with suppress(subprocess.TimeoutExpired):  # remove_project removes the rest
            subprocess.run(command, env=environment, capture_output=True, timeout=COMPOSE_S)


def node_name(role: str, number: int, agents: Iterable[AgentInfo], topology: str) -> str:
    """The name by rank of a container: like compose's numbers, but from 0 and without gaps.

    Args:
        role: its compose service.
        number: its compose container number.
        agents: those of the run's rank assignment; empty before ranks are assigned.
        topology: of the containers.
    """
    if role == "master":
        return "node 0"
    if role != "node":
        return role
    for agent in agents:
        if (agent.role, agent.ordinal) == (role, number) and agent.ranks:
            return f"node {agent.ranks[0] // len(agent.ranks)}"
    first = 0 if topology == "rpc" else 1  # in rpc the master is node 0
    return f"node {number - first}"


def service(container: Container) -> str:
    """Its compose service."""
    return str(container["Labels"]["com.docker.compose.service"])


def ordinal(container: Container) -> int:
    """The container number that compose assigned, from 1."""
    return int(container["Labels"]["com.docker.compose.container-number"])


def address(container: Container) -> str:
    """On the run's network, which is its only one."""
    (network,) = container["NetworkSettings"]["Networks"].values()
    return str(network["IPAddress"])


def has_ended(container: Container) -> bool:
    return container["State"] in ("exited", "dead")

"""A compose project: start its containers, observe and remove them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.runtimes.docker.compose import ComposeProject
from orchestrator.runtimes.docker.engine import Engine, command_error, is_responding
from orchestrator.runtimes.docker.reaper import PROJECT_LABEL, remove_project
from trainer.node.rank_assignment import AgentInfo, node_name
from trainer.spec.run_spec import RunSpec

TERMINATE_S = 3  # between SIGTERM and SIGKILL of docker compose
COMPOSE_S = 60  # to stop or remove the containers
UNRESPONSIVE_S = 10.0  # after which the engine counts as dead


@dataclass(frozen=True)
class Container:
    """A container that has started.

    Attributes:
        identifier: its ID.
        service: its service in the compose file.
        ordinal: its number within the service, from 1.
        address: its address on the run's network; empty if it has none.
        ended: whether its process has ended.
        unhealthy: whether the engine calls it so.
    """

    identifier: str
    service: str
    ordinal: int
    address: str
    ended: bool
    unhealthy: bool

    def name(self, agents: Iterable[AgentInfo], topology: str) -> str:
        """Its name by rank, see `node_name`."""
        return node_name(self.service, self.ordinal, agents, topology)


class Project:
    """The containers of a compose project. Methods raise the SDK's exceptions if no engine responds.

    Attributes:
        start_s: seconds that their start has taken so far.
        answered_at: the time of the last inspection that succeeded, on the monotonic clock.
        quota_pending, links_pending: whether CPU quotas or links have yet to be applied.
    """

    def __init__(self, engine: Engine, compose: ComposeProject, log: Path) -> None:
        """Start the containers; return at once. log: the file for the output of docker compose."""
        self.engine, self.compose, self.topology = engine, compose, compose.topology
        self._log = log
        self._codes: dict[str, int] = {}  # by ID, of containers that have exited
        self.quota_pending = compose.quota_pending
        self.links_pending = compose.linked
        self._started = self.answered_at = time.monotonic()
        self.start_s = 0.0
        remove_project(engine, compose.project)
        with open(log, "wb") as output:
            self.up = subprocess.Popen(
                engine.command(*compose.up),
                env={**os.environ, **compose.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is the orchestrator's to handle
            )

    @property
    def starting(self) -> bool:
        """Whether containers are still being started."""
        running = self.up.poll() is None
        if running:
            self.start_s = time.monotonic() - self._started
        return running

    @property
    def start_error(self) -> str | None:
        """Why the start has failed, or None."""
        return self._start_error if self.up.returncode else None

    @cached_property
    def _start_error(self) -> str:
        """Read once: the log may be removed with the run that started the containers."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"docker compose failed: {lines[-1][:300] if lines else f'exit code {self.up.returncode}'}"

    def containers(self) -> list[Container]:
        """The containers that have started, except those that only prepare data or links."""
        label = {"label": f"{PROJECT_LABEL}={self.compose.project}"}
        found = self.engine.client.api.containers(all=True, filters=label)
        started = [_container(each) for each in found if each["State"] != "created"]
        return [each for each in started if each.service not in ("data", "plug")]

    def engine_failure(self, error: Exception) -> str | None:
        """Why the engine counts as dead after a request that failed with `error`; None if it does not."""
        silent_s = time.monotonic() - self.answered_at
        if silent_s < UNRESPONSIVE_S and is_responding(self.engine):
            return None
        return f"the Docker engine stopped responding ({type(error).__name__})"

    def exit_code(self, container: Container) -> int:
        """Exit code of a container that has ended; negative if it was killed by a signal."""
        identifier = container.identifier
        if identifier not in self._codes:
            code = int(self.engine.client.api.inspect_container(identifier)["State"]["ExitCode"])
            self._codes[identifier] = 128 - code if code > 128 else code
        return self._codes[identifier]

    def is_stuck(self, container: Container) -> bool:
        """Whether as many of its health checks failed in a row as make it unhealthy.

        For a moment, the engine also calls a container unhealthy that was paused and goes on. The pause can
        make one check fail.
        """
        if not container.unhealthy:
            return False
        found = self.engine.client.api.inspect_container(container.identifier)
        failed = (found["State"].get("Health") or {}).get("FailingStreak", 0)
        return bool(failed >= found["Config"]["Healthcheck"]["Retries"])

    def apply_quotas(self) -> str | None:
        """Apply the nodes' CPU quotas, for which ready ranks wait.

        Returns:
            Why that failed. None if it did not, or if a node has ended, which the next inspection reports.
        """
        nodes = nodes_of(self.containers())
        for command in self.compose.limit_cpus(*(each.identifier for each in nodes)):
            if error := command_error(self.engine, *command):
                running = {each.identifier for each in self.containers() if not each.ended}
                lost = any(each.identifier not in running for each in nodes)
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
        nodes = [each for each in nodes_of(containers) if each.service != "launcher"]
        switches = [each for each in containers if each.service == "switch"]
        if not switches or any(each.ended for each in [*nodes, *switches]):
            return None
        addresses = [each.address for each in nodes]
        error = command_error(self.engine, *self.compose.set_links(run, switches[0].identifier, addresses))
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
                self.engine.command(*self.compose.plug(own, addresses)),
                env={**os.environ, **self.compose.environment, "SHARDYARD_NODE": node.identifier},
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

    def log(self, container: Container, since: int | None = None) -> Iterator[bytes]:
        """Its console output, in chunks. since: seconds since the epoch."""
        logs = self.engine.client.api.logs
        chunks: Iterator[bytes] = logs(container.identifier, stream=True, follow=False, since=since)
        return chunks

    def remove(self) -> None:
        """Remove containers, networks and volumes; a dead engine's are left to the next sweep."""
        self._end_compose()
        self._compose(*self.compose.down)
        try:
            remove_project(self.engine, self.compose.project)
        except Exception:
            # An engine that has died must not hide a run's result.
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
        environment = {**os.environ, **self.compose.environment}
        command = self.engine.command(*arguments)
        with suppress(subprocess.TimeoutExpired):  # remove_project removes the rest
            subprocess.run(command, env=environment, capture_output=True, timeout=COMPOSE_S)


def nodes_of(containers: Sequence[Container]) -> list[Container]:
    """Those that train or start what trains, in their order: a launcher or master first."""
    nodes = [each for each in containers if each.service not in ("coordinator", "switch")]
    return sorted(nodes, key=lambda each: (each.service == "node", each.ordinal))


def _container(listed: Mapping[str, Any]) -> Container:
    """A container as the engine lists it."""
    labels = listed["Labels"]
    networks = listed.get("NetworkSettings", {}).get("Networks", {})
    return Container(
        identifier=listed["Id"],
        service=labels["com.docker.compose.service"],
        ordinal=int(labels["com.docker.compose.container-number"]),
        address=next((str(network["IPAddress"]) for network in networks.values()), ""),
        ended=listed["State"] in ("exited", "dead"),
        unhealthy="(unhealthy)" in listed["Status"],
    )

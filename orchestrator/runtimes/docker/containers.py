"""The containers of one run or of several, as an engine or a swarm of engines reports them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainer.cluster.rank_assignment import AgentInfo, node_name
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Container:
    """A container that has started.

    Attributes:
        identifier: the ID by which its engine or swarm knows it.
        service: its service in the compose file.
        ordinal: its number within the service, from 1.
        address: its address on the run's network; empty if it has none.
        ended: whether its process has ended.
        unhealthy: whether its engine calls it so.
    """

    identifier: str
    service: str
    ordinal: int
    address: str
    ended: bool
    unhealthy: bool = False

    def name(self, agents: Iterable[AgentInfo], topology: str) -> str:
        """Its name by rank, see `node_name`."""
        return node_name(self.service, self.ordinal, agents, topology)


class Containers(ABC):
    """Containers that were started together. Methods raise the SDK's exceptions if no engine responds.

    Attributes:
        topology: the topology of the containers.
        start_s: seconds that their start has taken so far.
        answered_at: the time of the last inspection that succeeded, on the monotonic clock.
        quota_pending, links_pending: whether CPU quotas or links have yet to be applied.
    """

    topology: str
    start_s: float
    answered_at: float
    quota_pending: bool
    links_pending: bool

    @property
    @abstractmethod
    def starting(self) -> bool:
        """Whether containers are still being started."""

    @property
    @abstractmethod
    def start_error(self) -> str | None:
        """Why the start has failed, or None."""

    @abstractmethod
    def containers(self) -> list[Container]:
        """The containers that have started, except those that only prepare data or links."""

    @abstractmethod
    def exit_code(self, container: Container) -> int:
        """Exit code of a container that has ended; negative if it was killed by a signal."""

    @abstractmethod
    def is_stuck(self, container: Container) -> bool:
        """Whether its health checks fail."""

    @abstractmethod
    def lost(self) -> str | None:
        """What has happened to a machine with some of the containers, or to a service; None: nothing."""

    @abstractmethod
    def engine_failure(self, error: Exception) -> str | None:
        """Why the engine counts as dead after a request that failed with `error`; None if it does not."""

    @abstractmethod
    def is_responding(self) -> bool:
        """Whether the engine responds."""

    @abstractmethod
    def apply_quotas(self) -> str | None:
        """Apply the nodes' CPU quotas, for which ready ranks wait.

        Returns:
            Why that failed. None if it did not, or if a node has ended, which the next inspection reports.
        """

    @abstractmethod
    def apply_links(self, run: RunSpec) -> str | None:
        """Set the links of a run, and connect the nodes to the switch if they are not.

        Returns:
            Why that failed. None if it did not, or if a container has ended, which the next inspection
            reports.
        """

    @abstractmethod
    def log(self, container: Container, since: int | None = None) -> Iterator[bytes]:
        """Its console output, in chunks. since: seconds since the epoch."""

    @abstractmethod
    def terminate(self) -> None:
        """Send SIGTERM to all containers, later SIGKILL."""

    @abstractmethod
    def remove(self) -> None:
        """Remove containers, networks and volumes; a dead engine's are left to the next sweep."""


def nodes_of(containers: Sequence[Container]) -> list[Container]:
    """Those that train or start what trains, in their order: a launcher or master first."""
    nodes = [each for each in containers if each.service not in ("coordinator", "switch")]
    return sorted(nodes, key=lambda each: (each.service == "node", each.ordinal))

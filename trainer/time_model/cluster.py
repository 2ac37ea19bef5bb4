"""The description of a cluster: speed of its nodes, its links, and how its library communicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from trainer.core.record import Record

Speed = Annotated[float, Field(gt=0, le=1e6)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Node = Annotated[int, Field(ge=0, lt=2**16)]

Collective = Literal[
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "gather", "broadcast", "barrier", "shift"
]

ANY_COLLECTIVE = "collective"  # stands for those whose software costs are not described
ANSWER = "_answer"  # after the name of a collective: what ranks that only send wait for
CALL, RECEIVE_CALL = "_call", "_receive_call"  # likewise: CPU of calling it; of ranks that only receive


class Description(Record):
    """A record that a person writes: numbers are finite, and no type is converted into another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Link(Description):
    """A link in one direction.

    A message of n bytes takes `latency_s` + n / `bytes_per_s` (Hockney 1994).
    """

    latency_s: Seconds
    bytes_per_s: Annotated[float, Field(gt=0, le=1e15)]


class DirectedLink(Link):
    """The link from node `source` to node `target`."""

    source: Node
    target: Node


class Choice(Description):
    """The algorithm of a collective for buffers of less than `below_bytes`; None: of any size."""

    algorithm: str
    below_bytes: Annotated[int, Field(ge=1)] | None = None


class SoftwareCost(Description):
    """Seconds of an exchange of so many bytes beyond its messages; negative if these cost less."""

    bytes: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=-1e6, le=1e6)]


class Cluster(Description):
    """Nodes and links.

    Attributes:
        node_speed: speed of each node's cores; 1.0: a core of the machine that recorded the traces, alone.
        cpu_inflation: CPU seconds that the traces have for a second of work on such a core, of each rank;
            empty: 1. Ranks that shared cores when they were recorded have more than 1.
        processes_per_node: ranks of each node. Each has a core of its own.
        link: the link between two nodes, unless `links` has another one for the pair.
        links: the links of single directed pairs of nodes.
        intra_node: the link between two ranks of a node.
        overhead_s: software cost of a message, at the sender and again at the receiver, during which the
            rank does nothing else (o in LogGP); None: that of the transport, see algorithms.py.
        core_s_per_byte: CPU seconds of a rank's core for a byte that it sends beside its work, which takes
            so much longer; None: that of the transport.
        software: costs by kind of exchange, in order of bytes; linear between them, constant beyond.
            `collective` stands for collectives that are not there. Other exchanges that are not there cost
            nothing beyond their messages. NAME_call is the CPU time of calling a collective, which counts
            where the traces have none, as those of virtual nodes.
        algorithms: choices by collective that replace those of the transport. The first one that covers
            the size counts.
    """

    node_speed: Annotated[list[Speed], Field(min_length=1)]
    cpu_inflation: list[Annotated[float, Field(gt=0, le=100)]] = Field(default=[])
    processes_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    link: Link
    links: list[DirectedLink] = Field(default=[])
    intra_node: Link = Link(latency_s=5e-6, bytes_per_s=5e9)
    overhead_s: Seconds | None = None
    core_s_per_byte: Seconds | None = None
    software: dict[str, Annotated[list[SoftwareCost], Field(min_length=1)]] = Field(default={})
    algorithms: dict[Collective, Annotated[list[Choice], Field(min_length=1)]] = Field(default={})

    @model_validator(mode="after")
    def _check_inflation(self) -> Self:
        if self.cpu_inflation and len(self.cpu_inflation) != self.size:
            raise ValueError(
                f"cpu_inflation: {len(self.cpu_inflation)} values for {self.size} ranks; one for each"
            )
        return self

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        seen = set()
        for link in self.links:
            pair = (link.source, link.target)
            for node in pair:
                if node >= len(self.node_speed):
                    raise ValueError(
                        f"links: there is no node {node}; nodes are 0 to {len(self.node_speed) - 1}"
                    )
            if link.source == link.target:
                raise ValueError(
                    f"links: node {link.source} has no link to itself; ranks of a node use intra_node"
                )
            if pair in seen:
                raise ValueError(f"links: two links from node {link.source} to node {link.target}")
            seen.add(pair)
        return self

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.node_speed) * self.processes_per_node

    def speed_of(self, rank: int) -> float:
        """Seconds of CPU time in the trace of a rank that its core does in a second."""
        inflation = self.cpu_inflation[rank] if self.cpu_inflation else 1.0
        return self.node_speed[rank // self.processes_per_node] * inflation

    def links_of(self, ranks: Sequence[int]) -> Links:
        """The links between these ranks."""
        nodes = [rank // self.processes_per_node for rank in ranks]
        own: dict[tuple[int, int], Link] = {(each.source, each.target): each for each in self.links}
        return Links(nodes, own, self.link, self.intra_node)


class Links:
    """The links between some ranks.

    Attributes:
        size: the number of ranks.
        uniform: the link between any two of them; None if links differ.
    """

    def __init__(
        self, nodes: Sequence[int], own: Mapping[tuple[int, int], Link], others: Link, within: Link
    ) -> None:
        """
        Args:
            nodes: the node of each rank.
            own: links of single directed pairs of nodes. others: that of other pairs.
            within: that between two ranks of a node.
        """
        self.size = len(nodes)
        self._nodes, self._own, self._others, self._within = nodes, own, others, within
        self.uniform = None if own or len({*nodes}) < len(nodes) else others

    def between(self, source: int, target: int) -> Link:
        """The link from one rank to another; both are positions in the group."""
        if self.uniform is not None and source != target:
            return self.uniform
        nodes = self._nodes[source], self._nodes[target]
        return self._within if nodes[0] == nodes[1] else self._own.get(nodes, self._others)

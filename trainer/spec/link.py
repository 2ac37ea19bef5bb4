"""The links between the nodes of a run: what a spec requests of them. Imports no torch.

Nodes are wired as a star: each has one network interface to a switch that is never the bottleneck. So all
peers of a node share its bandwidth, once for what it sends and once for what it receives. A pair with a
bandwidth of its own has a separate wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

NODE_PATTERN = r"^(0|[1-9][0-9]{0,4})$"
PAIR_PATTERN = r"^(0|[1-9][0-9]{0,4})[->](0|[1-9][0-9]{0,4})$"


class Link(BaseModel):
    """Properties of links. A field that is absent leaves what applies without it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    bandwidth_mbit: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="bandwidth in each direction in Mbit/s (10⁶ bits); null: not limited",
    )
    latency_ms: float | None = Field(
        default=None,
        ge=0,
        le=60_000,
        description="one-way latency in ms: a round trip takes twice as long; null: 0",
    )
    jitter_ms: float | None = Field(
        default=None,
        ge=0,
        le=60_000,
        description="the latency of each packet varies uniformly by up to this many ms in both directions, "
        "at most latency_ms; packets stay in order; null: 0",
    )
    loss: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of the packets that are lost, which TCP sends again; null: 0",
    )

    @property
    def stated(self) -> dict[str, float]:
        """The fields that have a value."""
        return {name: value for name, value in self if value is not None}


@dataclass(frozen=True)
class Path:
    """What applies from one node to another, in this direction only.

    Attributes:
        bandwidth_mbit: the bandwidth of the slower interface or of the separate wire; None: not limited.
        latency_ms: one-way.
        separate: the pair has a wire of its own, which it does not share with other peers.
    """

    bandwidth_mbit: float | None
    latency_ms: float
    jitter_ms: float
    loss: float
    separate: bool


class Links(BaseModel):
    """All links of a run: `default`, replaced by those of `nodes`, then of `pairs`.

    `{bandwidth_mbit: 100}` is short for `{default: {bandwidth_mbit: 100}}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    default: Link = Field(default=Link(), description="of every node")
    nodes: dict[Annotated[str, StringConstraints(pattern=NODE_PATTERN)], Link] = Field(
        default={}, description="of single nodes, by number from 0"
    )
    pairs: dict[Annotated[str, StringConstraints(pattern=PAIR_PATTERN)], Link] = Field(
        default={}, description='between two nodes: "0-1" in both directions, "1>0" from node 1 to node 0'
    )

    @model_validator(mode="before")
    @classmethod
    def _in_long_form(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if value and not value.keys() & cls.model_fields.keys():
            return {"default": value}
        nodes = value.get("nodes")
        if not isinstance(nodes, Mapping):
            return value
        texts = {str(node) if type(node) is int else node: each for node, each in nodes.items()}
        return {**value, "nodes": texts}

    @property
    def canonical(self) -> dict[str, Any]:
        """What is stated, in one form: equal for equal links."""
        found: dict[str, Any] = {"default": self.default.stated} if self.default.stated else {}
        for name, links in (("nodes", self.nodes), ("pairs", self.pairs)):
            stated = {key: link.stated for key, link in sorted(links.items()) if link.stated}
            found |= {name: stated} if stated else {}
        return found

    @property
    def differ(self) -> bool:
        """Whether some links differ from others."""
        return bool(self.canonical.keys() - {"default"})

    def interface_mbit(self, node: int) -> float | None:
        """Bandwidth of the node's interface in each direction, in Mbit/s; None: not limited."""
        own = self.nodes.get(str(node), Link()).bandwidth_mbit
        return self.default.bandwidth_mbit if own is None else own

    def path(self, source: int, to: int) -> Path:
        """What applies to packets from node `source` to node `to`.

        Where both nodes state a value, the larger latency, jitter and loss, and the smaller bandwidth
        apply.
        """
        ends = [self.nodes.get(str(node), Link()).stated for node in (source, to)]
        found = {"latency_ms": 0.0, "jitter_ms": 0.0, "loss": 0.0, **self.default.stated}
        for name in ("latency_ms", "jitter_ms", "loss"):
            found[name] = max((end[name] for end in ends if name in end), default=found[name])
        interfaces = [self.interface_mbit(node) for node in (source, to)]
        bandwidth = min((mbit for mbit in interfaces if mbit is not None), default=None)
        low, high = sorted((source, to))
        own: dict[str, float] = {}
        for key in (f"{high}-{low}", f"{low}-{high}", f"{source}>{to}"):
            own |= self.pairs.get(key, Link()).stated
        found |= own
        return Path(
            own.get("bandwidth_mbit", bandwidth),
            found["latency_ms"],
            found["jitter_ms"],
            found["loss"],
            separate="bandwidth_mbit" in own,
        )

    def problem(self, nodes: int) -> str | None:
        """What does not fit a run on this many nodes: the key, its value and what is allowed; or None."""
        for node in self.nodes:
            if int(node) >= nodes:
                return f"nodes.{node}: there is no node {node}; allowed: 0 to {nodes - 1}"
        for key in self.pairs:
            source, direction, to = _ends(key)
            if max(source, to) >= nodes or source == to:
                allowed = f"two of the nodes 0 to {nodes - 1}" if nodes > 1 else "none on a single node"
                return f"pairs.{key}: there is no such pair; allowed: {allowed}"
            if direction == "-" and f"{to}-{source}" in self.pairs and source < to:
                return f"pairs.{to}-{source}: the same pair as {key}; allowed: one of the two"
        for source, to in permutations(self._examples(nodes), 2):
            path = self.path(source, to)
            if path.jitter_ms > path.latency_ms:
                return (
                    f"from node {source} to node {to}, jitter_ms is {path.jitter_ms:g}; "
                    f"allowed: at most latency_ms, which is {path.latency_ms:g}"
                )
        return None

    def _examples(self, nodes: int) -> list[int]:
        """Nodes among whose pairs each kind of path occurs."""
        named = {int(node) for node in self.nodes} | {
            node for key in self.pairs for node in _ends(key)[::2]
        }
        others = [node for node in range(nodes) if node not in named][:2]
        return sorted(named) + others

    def texts(self) -> Iterator[str]:
        """`100 Mbit/s and 1 ms`, `node 2: 10 Mbit/s`, `1>0: 5 % loss`."""
        if self.default.stated:
            yield _text(self.default)
        for node, link in self.nodes.items():
            yield f"node {node}: {_text(link)}"
        for key, link in self.pairs.items():
            yield f"{key}: {_text(link)}"

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @classmethod
    def of(cls, value: Any) -> Self:
        """The links in either form. Raises ValidationError."""
        return cls.model_validate(value)


def _ends(key: str) -> tuple[int, str, int]:
    """The two nodes and the sign between them. The key has passed PAIR_PATTERN."""
    direction = "-" if "-" in key else ">"
    source, to = key.split(direction)
    return int(source), direction, int(to)


def _text(link: Link) -> str:
    """`100 Mbit/s, 1 ± 0.5 ms, 1 % loss`."""
    parts = []
    if link.bandwidth_mbit is not None:
        parts.append(f"{link.bandwidth_mbit:g} Mbit/s")
    if link.jitter_ms:
        latency = "" if link.latency_ms is None else f"{link.latency_ms:g} "
        parts.append(f"{latency}± {link.jitter_ms:g} ms")
    elif link.latency_ms is not None:
        parts.append(f"{link.latency_ms:g} ms")
    if link.loss is not None:
        parts.append(f"{link.loss * 100:g} % loss")
    return ", ".join(parts) or "not limited"


def keys_of_link(*path: str | int) -> list[str]:
    """Keys allowed in a run's `link`, or in the part of it at `path`."""
    if not path:
        return [*Links.model_fields, *Link.model_fields]
    return list(Link.model_fields) if path[0] == "default" or len(path) > 1 else []

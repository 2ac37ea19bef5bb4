"""The cluster that a run's spec describes: its nodes, with a core for each rank, and its links."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import inf

from trainer.spec.link import Path
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, DirectedLink, Link


@dataclass(frozen=True)
class Software:
    """What a transport's software costs: seconds of a small message, and bytes per second of large ones."""

    message_s: float
    bytes_per_s: float


UNKNOWN = Software(message_s=50e-6, bytes_per_s=1e9)  # where nothing was measured


def cluster_of_run(
    run: RunSpec, quota: float = 1.0, software: Software = UNKNOWN, requested: bool = True
) -> Cluster:
    """The cluster of a run.

    Without a requested link, wires cost nothing: a message costs what the software does.

    Args:
        quota: the share of a core that each rank has, at most 1.
        software: what messages cost on a link that has no limits.
        requested: whether the links are those that the run requests.
    """
    link, links = Link(latency_s=0.0, bytes_per_s=software.bytes_per_s), []
    if requested and run.link is not None and run.has_links:
        if run.link.differ:
            links = [
                _directed(source, to, _requested(run.link.path(source, to), link))
                for source, to in permutations(range(run.nodes), 2)
            ]
        else:
            link = _requested(run.link.path(0, 1), link)
    return Cluster(
        node_speed=[quota * speed for speed in run.node_speeds],
        processes_per_node=run.processes_per_node,
        link=link,
        links=links,
        overhead_s=software.message_s / 2,
    )


def _directed(source: int, to: int, link: Link) -> DirectedLink:
    return DirectedLink(source=source, target=to, **link.model_dump())


def _requested(path: Path, own: Link) -> Link:
    """A requested link. Messages are not faster than without it."""
    bandwidth = inf if path.bandwidth_mbit is None else path.bandwidth_mbit * 1e6 / 8
    return Link(latency_s=path.latency_ms / 1000, bytes_per_s=min(own.bytes_per_s, bandwidth))

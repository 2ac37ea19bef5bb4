"""What messages and exchanges cost on a cluster, in a file: measured there, and used for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from orchestrator.errors import InputError
from orchestrator.prediction.errors import NoPrediction
from orchestrator.replay.described import Costs
from orchestrator.results.records import RunResult
from trainer.core.json_files import JsonLimits, read_json
from trainer.core.record import first_error
from trainer.core.regular_files import RefusedFile
from trainer.time_model.cluster import Cluster, Description, Link, Seconds, SoftwareCost

VERSION: Literal[1] = 1
LIMITS = JsonLimits(bytes=2**22, values=2**17)  # of a file


class TransportCosts(Description):
    """What a transport costs between two nodes without shaped links.

    Attributes:
        message_s: seconds of a small message, with the latency of the network.
        bytes_per_s: what a large message reaches.
        exchanges: costs beyond the messages, by kind, as `software` of a Cluster.
    """

    message_s: Seconds
    bytes_per_s: Annotated[float, Field(gt=0, le=1e15)]
    exchanges: dict[str, Annotated[list[SoftwareCost], Field(min_length=1)]] = Field(default={})


class MeasuredCluster(Description):
    """The costs of each transport that was measured.

    Attributes:
        runtime, nodes: where they were measured.
    """

    version: Literal[1] = VERSION
    runtime: str
    nodes: str
    transports: Annotated[dict[str, TransportCosts], Field(min_length=1)]

    def costs_on(self, cluster: Cluster, transport: str) -> Cluster:
        """A cluster with the costs of a transport here. Raises NoPrediction if it was not measured."""
        if transport not in self.transports:
            raise NoPrediction(
                f"transport {transport} was not measured on the cluster, but {', '.join(self.transports)}"
            )
        costs = self.transports[transport]
        changes = {
            "link": Link(latency_s=0.0, bytes_per_s=costs.bytes_per_s),
            "links": [],
            "overhead_s": costs.message_s / 2,
            "software": costs.exchanges,
        }
        return cluster.model_copy(update=changes)


def on_link(cluster: Cluster, link: Link | None, most_bytes_per_s: float) -> Cluster:
    """A cluster with this link between any two nodes. most_bytes_per_s: what its software reaches."""
    if link is None:
        return cluster
    bandwidth = min(link.bytes_per_s, most_bytes_per_s)
    own = Link(latency_s=link.latency_s, bytes_per_s=bandwidth)
    return cluster.model_copy(update={"link": own, "links": []})


def measured_cluster(results: Sequence[RunResult], costs: Costs) -> MeasuredCluster | None:
    """What the runs of one runtime show; None if no run has measured its links."""
    found: dict[str, TransportCosts] = {}
    for place, software in costs.software.items():
        found[place[1]] = TransportCosts(
            message_s=software.message_s,
            bytes_per_s=software.bytes_per_s,
            exchanges=costs.calibration.costs(place, strategy="", without=""),
        )
    if not found:
        return None
    return MeasuredCluster(runtime=results[0].runtime, nodes=results[0].node_kind, transports=found)


def read_measured_cluster(path: Path) -> MeasuredCluster:
    """Read a file that `calibrate` has written. Raises InputError."""
    try:
        content = read_json(path, LIMITS)
    except RefusedFile as error:
        raise InputError(f"--cluster {error}") from None
    except OSError as error:
        raise InputError(f"--cluster {path}: cannot be read ({error.strerror})") from error
    try:
        return MeasuredCluster.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"--cluster {path}: {first_error(error)}") from error

"""The agents of a Ray cluster: a placement group, an actor for each node, and connections by its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.runtimes.ray import node
from orchestrator.runtimes.ray.placement import NodeResources, missing, strategy
from trainer.node.members import Attached, Host, Key
from trainer.node.protocol import FROM_AGENT, MAX_LINE_BYTES, Connection
from trainer.node.rank_assignment import AssignmentError

PLACE_S = 0.5  # between looks at a pending group
READ_S = 10.0  # of one call that waits for an agent


class Actors(Attached):
    """The actors of a placement group.

    Attributes:
        strategy: SPREAD or STRICT_SPREAD.
    """

    def __init__(self, size: int, resources: NodeResources) -> None:
        super().__init__()
        self._size, self._resources = size, resources
        self._request(strategy(size, resources, machines()))
        self._actors: dict[Key, Any] = {}
        self._connections: dict[Key, Connection] = {}
        self._losses: dict[Key, str] = {}
        self._reading: list[asyncio.Task[None]] = []

    def _request(self, strategy: str) -> None:
        self.strategy = strategy
        self._group = placement_group([self._resources.bundle()] * self._size, strategy=strategy)

    async def attach(self, host: Host, topology: str) -> Mapping[Key, Connection]:
        if not self._actors:
            await self._until_placed(host)
            actor = ray.remote(max_restarts=0, max_concurrency=2)(node.Node)
            needs = self._resources
            for index in range(self._size):
                place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
                options = {"scheduling_strategy": place, "num_cpus": needs.cpus, "num_gpus": needs.gpus}
                self._connect(("node", index + 1), actor.options(**options).remote())
        return self._connections

    async def _until_placed(self, host: Host) -> None:
        """Wait until Ray has room for the group. Its `wait(0)` is False for one group placed in four."""
        while placement_group_table(self._group).get("state") != "CREATED":
            if host.interruption:
                raise AssignmentError(host.interruption)
            free, found = ray.available_resources(), machines()
            if (now := strategy(self._size, self._resources, found)) != self.strategy:
                remove_placement_group(self._group)  # Ray has noticed a lost or added machine since
                self._request(now)
            host.wait_for(missing(self._size, self._resources, found, free))
            await host.until(lambda: bool(host.interruption), PLACE_S)
        host.wait_for("")

    def _connect(self, key: Key, actor: Any) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        writer: Any = ActorWriter(actor)
        self._actors[key], self._connections[key] = actor, Connection(reader, writer, FROM_AGENT)
        self._reading.append(asyncio.create_task(self._read(key, actor, reader)))

    async def _read(self, key: Key, actor: Any, reader: asyncio.StreamReader) -> None:
        """Pass on what an agent writes, until it or its actor ends."""
        try:
            while (data := await actor.read.remote(READ_S)) is not None:
                reader.feed_data(data)
        except ray.exceptions.RayError as error:
            self._losses[key] = first_line(error)
        reader.feed_eof()

    async def how_ended(self, key: Key) -> str:
        return f"was lost: {self._losses.get(key, 'its agent has ended')}"

    def close(self) -> None:
        """End the nodes. Their ranks end with them."""
        for actor in self._actors.values():
            with suppress(Exception):  # it may be gone, and so may the cluster
                ray.kill(actor)
        with suppress(Exception):
            remove_placement_group(self._group)


class ActorWriter:
    """The part of asyncio.StreamWriter that a connection uses, over calls of an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._last = actor, asyncio.get_running_loop().create_future()
        self._last.set_result(None)
        self.transport = self

    def write(self, data: bytes) -> None:
        """Calls reach an actor in order only if each waits for the one before."""
        self._last = asyncio.ensure_future(self._write(self._last, data))

    async def _write(self, before: asyncio.Future[None], data: bytes) -> None:
        await before
        with suppress(ray.exceptions.RayError):  # it is lost, which the reader reports
            await self._actor.write.remote(data)

    async def drain(self) -> None:
        await asyncio.shield(self._last)

    wait_closed = drain

    def get_extra_info(self, name: str) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None:
        """End an actor that does not answer."""
        ray.kill(self._actor)


def machines() -> list[dict[str, Any]]:
    """The resources of each machine of the cluster."""
    return [each["Resources"] for each in ray.nodes() if each["Alive"]]


def first_line(error: BaseException) -> str:
    """Ray's reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return next((line for line in lines if "because" in line), first).partition(". ")[0].rstrip(".")

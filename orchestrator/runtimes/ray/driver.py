"""`python -m orchestrator.runtimes.ray.driver PLAN`: Ray's driver, and the coordinator of its nodes.

It is a process of its own, since Ray ends the process of a driver that loses its cluster. It ends with its
standard input, and with it all that it has started.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import ray

from orchestrator.runtimes.ray import node
from orchestrator.runtimes.ray.members import Actors, first_line, machines
from orchestrator.runtimes.ray.placement import GroupRequest, NodeResources
from trainer.node.channel import Answer, PipeChannel, Request
from trainer.node.coordinator import serve
from trainer.node.lead import over_stdio

LOOPBACK = "127.0.0.1"
STORE_BYTES = 80_000_000  # of a local raylet's object store: nothing is kept in it
LOCAL = {"num_cpus": 256, "memory": 2**44, "resources": {}}  # a local raylet takes nodes of any size


def connect(request: GroupRequest) -> Any:
    """Connect to the cluster. Returns the one that it has started, if it was given no address."""
    ray.cloudpickle.register_pickle_by_value(node)  # machines have no orchestrator
    address, cluster, own = request.address, None, {}
    if address is None:
        from ray.cluster_utils import Cluster

        local = {**LOCAL, "node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES}
        local |= {"include_dashboard": False, "include_log_monitor": False}
        cluster = Cluster(initialize_head=True, head_node_args=local)
        for _ in range(request.raylets - 1):
            cluster.add_node(wait=False, **local)
        cluster.wait_for_nodes()
        address, own = cluster.address, {"_node_ip_address": LOOPBACK}
    ray.init(
        address=address,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"py_modules": request.code},
        **own,
    )
    return cluster


async def lead(channel: PipeChannel[Request], request: GroupRequest) -> None:
    """Coordinate the runs of the orchestrator on a placement group."""
    resources = NodeResources(request.cpus, request.memory_mb, request.gpus)
    actors = Actors(request.size, resources)

    def facts() -> dict[str, str | float]:
        found = machines()  # which a lost head does not answer
        return {"strategy": actors.strategy, "cpus": sum(each.get("CPU", 0) for each in found)}

    channel.post(Answer(kind="alive", facts=facts()))
    try:
        await serve(channel, Path("/"), lambda: actors, idle_s=inf, facts=facts)
    finally:
        actors.close()


def main(request: GroupRequest) -> None:
    """Serve the orchestrator until it closes standard input."""
    channel, cluster = over_stdio(), None
    try:
        cluster = connect(request)
        asyncio.run(lead(channel, request))
    except Exception as error:
        with suppress(OSError):
            channel.post(Answer(kind="lost", reason=first_line(error)))
    finally:
        with suppress(Exception):
            ray.shutdown()
        if cluster:
            with suppress(Exception):
                cluster.shutdown()
        shutil.rmtree(request.session, ignore_errors=True)


if __name__ == "__main__":
    main(GroupRequest.model_validate_json(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # no thread of Ray may delay it

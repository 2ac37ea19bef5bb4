"""Entry point of every container: `python -m trainer.node ROLE`, configured by its environment.

node, launcher, master   run an agent             SHARDYARD_TOPOLOGY, SHARDYARD_WARM
coordinator              coordinate the run       also SHARDYARD_SPEC (file), SHARDYARD_SERVE, and limits of
                                                  a node
data                     download the dataset     SHARDYARD_SPEC, SHARDYARD_DATA
skip                     do nothing

The orchestrator sets SHARDYARD_SERVE, and the coordinator takes runs from the channel in /results. Agents
with SHARDYARD_WARM stay up for more than one run.

Outside of containers:

lead PLAN                         coordinate runs; PLAN is a `Plan` in JSON
agent ROLE ADDRESS [DIRECTORY]    run an agent, whose standard streams are its connection to the coordinator
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

# After a bare `docker compose up` the limits come from the variables that the compose files use.
LIMITS = {
    "cpus": ("SHARDYARD_CPUS", float),
    "memory_mb": ("SHARDYARD_MEMORY_MB", int),
    "pids": ("SHARDYARD_PIDS", int),
    "shm_mb": ("SHARDYARD_SHM_MB", int),
}


# Compose prints the exits of the other containers first, so that the summary of a bare `up` comes last.
SUMMARY_DELAY_S = 0.7
# Lines of a bare `up` at the beginning of what takes minutes on a busy machine.
PREPARES = "preparing the dataset; then the nodes start"
WAITS = "waiting for all nodes; on a busy machine it takes minutes until their ranks have imported torch"


def main(arguments: list[str]) -> int:
    """Run one role. Returns the container's exit code."""
    env = os.environ
    match arguments:
        case ["node" | "launcher" | "master" as role]:
            from trainer.node import serving

            warm = bool(env.get("SHARDYARD_WARM"))
            return serving.serve_container(role, env["SHARDYARD_TOPOLOGY"], warm)
        case ["coordinator"]:
            return _coordinate(env)
        case ["data"]:
            return _download(env)
        case ["skip"]:
            return 0  # the data service's role when the orchestrator has prepared the data
        case ["lead", plan]:
            from trainer.node import lead

            return lead.main(plan)
        case ["agent", "node" | "launcher" as role, address, *directory]:
            from trainer.node import serving

            return serving.serve_stream(role, address, *map(Path, directory))
    roles = "node|launcher|master|coordinator|data|skip"
    print(f"usage: python -m trainer.node {roles}", file=sys.stderr)
    return 2


def _coordinate(env: Mapping[str, str]) -> int:
    serves = bool(env.get("SHARDYARD_SERVE"))
    if not serves:
        print(WAITS, flush=True)  # before the imports, which take long, too
    from trainer.node import coordinator
    from trainer.node.privileges import drop_privileges_to_owner

    topology, spec, results = env["SHARDYARD_TOPOLOGY"], Path(env["SHARDYARD_SPEC"]), Path("/results")
    drop_privileges_to_owner(spec, results)
    if serves:
        return coordinator.serve_containers(topology, results)
    limits = {field: kind(env[name]) for field, (name, kind) in LIMITS.items() if env.get(name)}
    name = time.strftime(f"up-{topology}-%Y-%m-%dT%H%M%SZ", time.gmtime())
    code, lines = coordinator.main(topology, spec, results / name, limits)
    time.sleep(SUMMARY_DELAY_S)
    print("\n".join(lines))
    print(f"  results: {env.get('SHARDYARD_HOST_RESULTS', 'results')}/{name}", flush=True)
    return code


def _download(env: Mapping[str, str]) -> int:
    print(PREPARES, flush=True)
    from pydantic import ValidationError
    from pydantic_core import PydanticCustomError

    from trainer.data.base import DataError
    from trainer.node.privileges import drop_privileges_to_owner, make_writable_for_nodes
    from trainer.node.rank_assignment import AssignmentError, read_spec
    from trainer.node.site import Site
    from trainer.spec.registries import REGISTRIES

    spec, directory, checkpoints = Path(env["SHARDYARD_SPEC"]), Path(Site().data), Path(Site().checkpoints)
    drop_privileges_to_owner(spec, directory, checkpoints)
    make_writable_for_nodes(checkpoints)
    try:
        dataset = REGISTRIES["dataset"].parse(read_spec(spec).get("dataset", "digits"))
    except (AssignmentError, ValidationError, PydanticCustomError):
        return 0  # the coordinator validates the whole spec and reports every error in it
    try:
        dataset.prepare(directory)
    except DataError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # nothing is left to clean up, and no thread may delay the container's exit

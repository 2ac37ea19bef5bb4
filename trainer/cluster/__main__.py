"""What a container does: `python -m trainer.cluster ROLE`, told by its environment.

node, launcher, master   take part in a run      SHARDYARD_TOPOLOGY
head                     leads it                also SHARDYARD_SPEC (file), SHARDYARD_RESULTS (directory),
                                                 SHARDYARD_RUN (its name there) and the limits of a node
data                     fetches the dataset     SHARDYARD_SPEC, SHARDYARD_DATA
rank                     what mpirun starts on a node
skip                     nothing
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

# The limits of a bare `up` come from the variables that compose took them from.
LIMITS = {
    "cpus": ("SHARDYARD_CPUS", float),
    "memory_mb": ("SHARDYARD_MEMORY_MB", int),
    "pids": ("SHARDYARD_PIDS", int),
    "shm_mb": ("SHARDYARD_SHM_MB", int),
}


# Of a bare `up`: compose tells of the members' ends meanwhile, and the summary is what stands last.
EPILOGUE_S = 0.7


def main(arguments: list[str]) -> int:
    env = os.environ
    match arguments:
        case ["node" | "launcher" | "master" as role]:
            from trainer.cluster import agent as member

            return member.main(role, env["SHARDYARD_TOPOLOGY"])
        case ["coordinator"]:
            return _lead(env)
        case ["data"]:
            return _fetch(env)
        case ["skip"]:
            return 0  # what the data service does when the orchestrator has seen to the data
        case ["rank"]:
            from trainer.cluster import agent as member

            member.become_rank()
    print(
        "usage: python -m trainer.cluster node|launcher|master|coordinator|data|rank|skip", file=sys.stderr
    )
    return 2


def _lead(env: Mapping[str, str]) -> int:
    from trainer.cluster import coordinator as head
    from trainer.cluster.privileges import drop_privileges_to_owner

    topology, spec, results = env["SHARDYARD_TOPOLOGY"], Path(env["SHARDYARD_SPEC"]), Path("/results")
    drop_privileges_to_owner(spec, results)
    if name := env.get("SHARDYARD_RUN"):
        code, lines = head.main(topology, spec, results / name, {})
        print("\n".join(lines), flush=True)
        return code
    limits = {field: kind(env[name]) for field, (name, kind) in LIMITS.items() if env.get(name)}
    name = time.strftime(f"up-{topology}-%Y-%m-%dT%H%M%SZ", time.gmtime())
    code, lines = head.main(topology, spec, results / name, limits)
    time.sleep(EPILOGUE_S)
    print("\n".join(lines))
    print(f"  kept in {env.get('SHARDYARD_HOST_RESULTS', 'results')}/{name}", flush=True)
    return code


def _fetch(env: Mapping[str, str]) -> int:
    from pydantic import ValidationError
    from pydantic_core import PydanticCustomError

    from trainer.cluster.commands import CHECKPOINTS
    from trainer.cluster.privileges import drop_privileges_to_owner, make_writable_for_nodes
    from trainer.cluster.rank_assignment import AssignmentError, read_spec
    from trainer.data.base import DataError
    from trainer.spec.registries import REGISTRIES

    spec, directory = Path(env["SHARDYARD_SPEC"]), Path("/data")
    drop_privileges_to_owner(spec, directory, CHECKPOINTS)
    make_writable_for_nodes(CHECKPOINTS)
    try:
        dataset = REGISTRIES["dataset"].parse(read_spec(spec).get("dataset", "digits"))
    except (AssignmentError, ValidationError, PydanticCustomError):
        return 0  # the head, which has to read it all, says better what is wrong
    try:
        dataset.prepare(directory)
    except DataError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # nothing is left to clean up, and no thread may hold up the container's end

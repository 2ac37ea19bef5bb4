"""The environment of a rank: variables set by the launcher (mpirun, torchrun) and by Shardyard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer.core.cgroup import throttle_mark
from trainer.core.context import NodeContext
from trainer.spec.run_spec import RunSpec

# By topology: the launcher's variables for rank and number of ranks. Topology `single` has none: its
# one process starts the ranks itself.
RANK_VARIABLES: Mapping[str, tuple[str, str]] = {
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "ddp": ("RANK", "WORLD_SIZE"),
    "rpc": ("RANK", "WORLD_SIZE"),
}
LOCAL_RANK_VARIABLES: Mapping[str, str] = {
    "mpi": "OMPI_COMM_WORLD_LOCAL_RANK",
    "ddp": "LOCAL_RANK",
    "rpc": "LOCAL_RANK",
}


class LaunchError(Exception):
    """A variable of the environment is missing or contradicts the spec. The message names it."""


def read_context(spec: RunSpec, env: Mapping[str, str]) -> NodeContext:
    """The rank that the environment describes. In topology `single` that is rank 0. Raises LaunchError."""
    rank, size, local_rank = 0, spec.world_size, 0
    if names := RANK_VARIABLES.get(spec.topology):
        rank, size = (_integer(env, name) for name in names)
        if size != spec.world_size:
            raise LaunchError(f"{names[1]} is {size}, but the run has {spec.size_label}")
        if not 0 <= rank < size:
            raise LaunchError(f"{names[0]} is {rank}; allowed: 0 to {size - 1}")
        local_rank = _local_rank(spec, rank, env)
    rendezvous, attempt = env.get("SHARDYARD_RENDEZVOUS", ""), None
    if spec.restarts:
        rendezvous = f"{env.get('MASTER_ADDR', '')}:{_integer(env, 'MASTER_PORT')}"
        attempt = _integer(env, "SHARDYARD_ATTEMPT")
    throttled = "SHARDYARD_THROTTLED" in env and spec.is_slower(rank)
    return NodeContext(
        rank=rank,
        size=size,
        local_rank=local_rank,
        transport=spec.transport,
        data_dir=Path(env.get("SHARDYARD_DATA", "data")),
        rendezvous=rendezvous,
        attempt=attempt,
        membership=Path(env["SHARDYARD_MEMBERSHIP"]) if "SHARDYARD_MEMBERSHIP" in env else None,
        incarnation=_integer(env, "SHARDYARD_INCARNATION") if "SHARDYARD_INCARNATION" in env else 0,
        oversubscribed=spec.oversubscribed,
        timeout_s=spec.timeout_s,
        out_dir=Path(env["SHARDYARD_OUT"]) if "SHARDYARD_OUT" in env else None,
        checkpoint_dir=Path(env["SHARDYARD_CHECKPOINTS"]) if "SHARDYARD_CHECKPOINTS" in env else None,
        cpu_quota=spec.throttle_cpus(spec.node_of(rank)) if throttled else _quota(env),
        linked=tuple(env["SHARDYARD_LINKED"].split(",")) if env.get("SHARDYARD_LINKED") else (),
        throttle_mark=throttle_mark(Path(env["SHARDYARD_THROTTLED"]), rank) if throttled else None,
    )


def _local_rank(spec: RunSpec, rank: int, env: Mapping[str, str]) -> int:
    """The rank within its node. Ranks must fill one node after the other.

    Logs, causes and reports derive the node from the rank, so any other order is an error.
    """
    expected = rank % spec.processes_per_node
    name = LOCAL_RANK_VARIABLES[spec.topology]
    # With the local runtime all nodes are one host to mpirun, which numbers the ranks across them.
    local_rank = _integer(env, name) % spec.processes_per_node if name in env else expected
    if local_rank != expected:
        raise LaunchError(f"{name} is {env[name]}, but rank {rank} has local rank {expected}")
    return expected


def _quota(env: Mapping[str, str]) -> float | None:
    value = env.get("SHARDYARD_CPU_QUOTA", "")
    try:
        return float(value) if value else None
    except ValueError:
        raise LaunchError(f"SHARDYARD_CPU_QUOTA is {value!r}, not a number of cores") from None


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except KeyError:
        raise LaunchError(f"{name} is not set; the launcher sets it") from None
    except ValueError:
        raise LaunchError(f"{name} is {env[name]!r}, not a whole number") from None

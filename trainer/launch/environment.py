"""The environment of a rank: variables set by the launcher (mpirun, torchrun, srun, …) and by Shardyard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer.core.cgroup import throttle_mark
from trainer.core.context import NodeContext
from trainer.launch.launchers import (
    LAUNCHERS,
    Launcher,
    LaunchError,
    Placement,
    address_of_rank_0,
    find_launchers,
    host_of_rank_0,
    integer,
    nothing_set,
    place,
    set_name,
    value_of,
)
from trainer.spec.run_spec import RunSpec

# Set by torchrun: its agent listens at MASTER_PORT, and not rank 0; how often it has restarted the ranks.
AGENT_STORE, RESTART_COUNT = "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"

# Whether the ranks of a topology are those of MPI. In topology `single` one process has all ranks.
TOPOLOGIES: Mapping[str, bool] = {"single": False, "mpi": True, "ddp": False, "rpc": False}


def read_context(spec: RunSpec, env: Mapping[str, str]) -> NodeContext:
    """The rank that the environment describes; rank 0 if one process has all ranks. Raises LaunchError."""
    rank, size, launchers = 0, spec.world_size, find_launchers(env, TOPOLOGIES[spec.topology])
    alone = in_one_process(spec, env)
    if alone:
        _check_alone(launchers, env)
    else:
        rank = _rank(spec, launchers, env)
    rendezvous, attempt = env.get("SHARDYARD_RENDEZVOUS", ""), None
    if spec.restarts:
        rendezvous = f"{value_of(env, ('MASTER_ADDR',))}:{integer(env, ('MASTER_PORT',))}"
        attempt = integer(env, ("SHARDYARD_ATTEMPT",))
    elif spec.topology in ("ddp", "rpc") and not rendezvous and not alone:
        rendezvous = _rendezvous(launchers, env)
    if spec.on_loss == "continue" and "SHARDYARD_MEMBERSHIP" not in env:
        raise LaunchError(
            "on_loss is continue, but SHARDYARD_MEMBERSHIP is not set: only Shardyard's runtimes local and "
            "docker say which ranks are alive; use them, or on_loss: stop"
        )
    throttled = "SHARDYARD_THROTTLED" in env and spec.is_slower(rank)
    return NodeContext(
        rank=rank,
        size=size,
        local_rank=0 if alone else rank % spec.processes_per_node,
        transport=spec.transport,
        data_dir=Path(env.get("SHARDYARD_DATA", "data")),
        rendezvous=rendezvous,
        attempt=attempt,
        membership=Path(env["SHARDYARD_MEMBERSHIP"]) if "SHARDYARD_MEMBERSHIP" in env else None,
        incarnation=integer(env, ("SHARDYARD_INCARNATION",)) if "SHARDYARD_INCARNATION" in env else 0,
        oversubscribed=spec.oversubscribed,
        timeout_s=spec.timeout_s,
        out_dir=Path(env["SHARDYARD_OUT"]) if "SHARDYARD_OUT" in env else None,
        checkpoint_dir=Path(env["SHARDYARD_CHECKPOINTS"]) if "SHARDYARD_CHECKPOINTS" in env else None,
        stop_dir=Path(env["SHARDYARD_STOP"]) if "SHARDYARD_STOP" in env else None,
        requeues=integer(env, ("SHARDYARD_REQUEUES",)) if "SHARDYARD_REQUEUES" in env else 0,
        cpu_quota=spec.throttle_cpus(spec.node_of(rank)) if throttled else _quota(env),
        linked=tuple(env["SHARDYARD_LINKED"].split(",")) if env.get("SHARDYARD_LINKED") else (),
        throttle_mark=throttle_mark(Path(env["SHARDYARD_THROTTLED"]), rank) if throttled else None,
    )


def in_one_process(spec: RunSpec, env: Mapping[str, str]) -> bool:
    """Whether one process has all ranks of the run: threads, forked processes or virtual nodes."""
    return spec.topology == "single" or "SHARDYARD_VIRTUAL" in env


def _rendezvous(launchers: list[str], env: Mapping[str, str]) -> str:
    """The URL at which the launcher says that ranks meet. See trainer.comm.rendezvous."""
    host, port = address_of_rank_0(launchers, env)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if launchers[0] == "torchrun" and env.get(AGENT_STORE) == "True":
        return f"store://{address}/{env.get(RESTART_COUNT, '0')}"
    return f"tcp://{address}"


def first_host(spec: RunSpec, env: Mapping[str, str]) -> str | None:
    """The host of rank 0, if the run's launcher says it: the other ranks connect to it over the network.

    None if Shardyard has set where ranks meet, or all ranks are in one process.
    """
    if in_one_process(spec, env) or spec.restarts or env.get("SHARDYARD_RENDEZVOUS"):
        return None
    return host_of_rank_0(find_launchers(env, TOPOLOGIES[spec.topology]), env)


def _check_alone(launchers: list[str], env: Mapping[str, str]) -> None:
    """Refuse a launcher that started several processes, of which each would train all ranks."""
    for name in launchers:
        found = place(name, env, 1)
        if found.size != 1:
            raise LaunchError(f"{found.said}, but one process has all ranks of this run; start one")


def _rank(spec: RunSpec, launchers: list[str], env: Mapping[str, str]) -> int:
    """The rank, on which all launchers agree, and which suits the run."""
    placements = [place(name, env, spec.processes_per_node) for name in launchers]
    if not placements:
        raise nothing_set(TOPOLOGIES[spec.topology])
    for each in placements[1:]:
        if not each.agrees_with(placements[0]):
            _refuse(placements[0], each)
    for name in launchers:
        _check_counts(spec, LAUNCHERS[name], env)
    rank = next((each.rank for each in placements if each.rank is not None), None)
    if rank is None:
        raise LaunchError(
            f"{placements[0].said}: numbers of nodes, but each node of the run has "
            f"{spec.processes_per_node} ranks; start them with torchrun, which sets RANK"
        )
    return rank


def _refuse(first: Placement, second: Placement) -> None:
    raise LaunchError(
        f"{first.said} ({first.name}), but {second.said} ({second.name}); "
        f"set SHARDYARD_LAUNCHER to {first.name} or {second.name}"
    )


def _check_counts(spec: RunSpec, launcher: Launcher, env: Mapping[str, str]) -> None:
    """Check that the launcher has started the ranks of the run, and fills one node after the other.

    Logs, causes and reports derive the node from the rank, so any other order is an error.
    """
    number, count = integer(env, launcher.number), integer(env, launcher.count)
    expected = spec.world_size if launcher.starts == "ranks" else spec.nodes
    if count != expected:
        raise LaunchError(f"{set_name(env, launcher.count)} is {count}, but the run has {spec.size_label}")
    if not 0 <= number < count:
        raise LaunchError(f"{set_name(env, launcher.number)} is {number}; allowed: 0 to {count - 1}")
    per_node = spec.processes_per_node
    name = set_name(env, launcher.ranks_per_node)
    if name and integer(env, (name,)) != per_node:
        raise LaunchError(f"{name} is {env[name]}, but the run has {spec.size_label}")
    name = set_name(env, launcher.gpus_per_node)
    if name and spec.on_gpu and integer(env, (name,)) < per_node:
        raise LaunchError(f"{name} is {env[name]}, but each rank needs a GPU: {spec.size_label}")
    name = set_name(env, launcher.local_rank)
    # With the local runtime all nodes are one host to mpirun, which numbers the ranks across them.
    if name and integer(env, (name,)) % per_node != number % per_node:
        expected = number % per_node
        raise LaunchError(f"{name} is {env[name]}, but rank {number} has local rank {expected}")


def _quota(env: Mapping[str, str]) -> float | None:
    value = env.get("SHARDYARD_CPU_QUOTA", "")
    try:
        return float(value) if value else None
    except ValueError:
        raise LaunchError(f"SHARDYARD_CPU_QUOTA is {value!r}, not a number of cores") from None

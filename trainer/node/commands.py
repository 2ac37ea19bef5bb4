"""The processes that an agent starts. Pure: they follow from the rank assignment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.launch.launchers import LAUNCHER, STARTED_BY
from trainer.node import mpi_rank
from trainer.node.home import Home
from trainer.node.rank_assignment import AgentInfo, RankAssignment
from trainer.torchrun_restarts.command import torchrun

PREFIX = Path(sys.prefix)  # of Open MPI too: its wheel installs beside Python
TRAINER = (sys.executable, "-m", "trainer")


@dataclass(frozen=True)
class Command:
    """One process to start. ranks: those that run in it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: tuple[int, ...]


def commands(
    assignment: RankAssignment, home: Home, pid: int, trainer: Sequence[str] = TRAINER
) -> list[Command]:
    """The processes that this agent starts; none if mpirun starts its ranks or it has no ranks.

    Args:
        assignment: the assignment that this agent received.
        home: the files of this agent.
        pid: the PID of the agent's own process. Ranks end when it ends.
        trainer: the command of a rank.
    """
    agent, topology = assignment.agent, assignment.spec.topology
    common = environment(assignment, home, pid)
    if agent.role == "launcher":
        return [Command(mpirun(assignment, home), {**common, **mpirun_environment(assignment, home)}, ())]
    if topology == "mpi":
        return []
    if topology == "single":
        return [Command(tuple(trainer), common, agent.ranks)] if agent.ranks else []
    if assignment.spec.restarts:
        return [_torchrun_agent(assignment, home, common)]
    shared = {**common, **_gpus(assignment), **_rendezvous(assignment)}
    return [
        Command(tuple(trainer), {**shared, "RANK": str(rank), "LOCAL_RANK": str(local)}, (rank,))
        for local, rank in enumerate(agent.ranks)
    ]


def _rendezvous(assignment: RankAssignment) -> dict[str, str]:
    """Where ranks meet. Without an interface, they find it by the address of the first node."""
    first, size = assignment.agent_of(0), {"WORLD_SIZE": str(assignment.spec.world_size)}
    if not assignment.site.interface:
        return {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.port), **size}
    return {"SHARDYARD_RENDEZVOUS": f"tcp://{first.address}:{first.port}", **size}


def _torchrun_agent(assignment: RankAssignment, home: Home, common: Mapping[str, str]) -> Command:
    """The torchrun agent that starts this node's ranks; the rendezvous is at node 0."""
    agent, spec, first = assignment.agent, assignment.spec, assignment.agent_of(0)
    argv = torchrun(spec, f"{first.address}:{first.port}", f"{home.path}/torchrun")
    own = {"SHARDYARD_NODE": str(assignment.node), "SHARDYARD_MEMORY_MB": str(spec.memory_mb)}
    return Command(argv, {**common, **_gpus(assignment), **own}, agent.ranks)


def _gpus(assignment: RankAssignment) -> dict[str, str]:
    """Limit each node to its own GPUs, since compose gives every replica all GPUs of the machine."""
    own = ",".join(str(rank) for rank in assignment.agent.ranks)
    return {"CUDA_VISIBLE_DEVICES": own} if assignment.spec.on_gpu else {}


def environment(assignment: RankAssignment, home: Home, pid: int) -> dict[str, str]:
    """Environment variables of every rank of this agent."""
    spec, site, ranks = assignment.spec, assignment.site, assignment.agent.ranks
    first = min(ranks, default=0)
    found = {
        **spec.thread_environment(first),
        "SHARDYARD_SPEC": str(home.spec),
        "SHARDYARD_DATA": site.data,
        "SHARDYARD_CODE": site.code,
        "SHARDYARD_OUT": str(home.out),
        LAUNCHER: STARTED_BY[spec.topology],
        "SHARDYARD_PARENT_PID": str(pid),
        **(interface_variables(site.interface) if site.interface else {}),
        **site.variables,
    }
    if site.console:
        found["SHARDYARD_END_WITH_PARENT"] = "1"  # also while it is suspended
    else:
        # Compose prefixes each line with the container's name; ranks that share a node add their own.
        found["SHARDYARD_PREFIX"] = "" if len(ranks) == 1 else "rank {rank} | "
    if spec.has_links:
        nodes = [each for each in assignment.agents if each.ranks]
        peers = [each.address for each in nodes if each.address != assignment.agent.address]
        found["SHARDYARD_LINKED"] = ",".join(peers)
    if spec.checkpoints:
        found["SHARDYARD_CHECKPOINTS"] = f"{site.checkpoints}/{spec.key}"
    if spec.on_loss == "continue":
        found["SHARDYARD_MEMBERSHIP"] = str(home.membership)
    if spec.topology == "mpi":
        # mpirun would collect its ranks' output; each node's output belongs in its own log.
        own_output = f"/proc/{pid}/fd/1"
        found["SHARDYARD_CONSOLE"] = f"{site.console}/node-{{node}}.log" if site.console else own_output
    if ranks and spec.is_slower(first):
        found["SHARDYARD_CPU_QUOTA"] = f"{spec.container_cpus(spec.node_of(first)):g}"
    return found


def interface_variables(interface: str) -> dict[str, str]:
    """The variables that bind gloo, NCCL and TensorPipe to an interface."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface)


def mpirun(assignment: RankAssignment, home: Home) -> tuple[str, ...]:
    """The launcher's command: ranks in the order of the hosts file, `processes_per_node` on each node."""
    spec, site = assignment.spec, assignment.site
    if site.mpirun:
        return tuple(site.mpirun)
    return (
        str(PREFIX / "bin" / "mpirun"),
        *("--prefix", str(PREFIX), "--hostfile", str(home.hosts), "--wdir", "/opt/shardyard"),
        *("-n", str(spec.world_size), "--map-by", f"ppr:{spec.processes_per_node}:node"),
        *("--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,tcp"),
        *("--mca", "btl_tcp_if_include", site.interface),
        *(sys.executable, "-S", "-E", mpi_rank.__file__, str(home.rank)),
    )


def mpirun_environment(assignment: RankAssignment, home: Home) -> dict[str, str]:
    """Settings of Open MPI's runtime. Only the launcher has an ssh key, so it connects to every node."""
    over_ssh = {
        "PRTE_MCA_plm_ssh_agent": f"ssh -F {home.ssh}/config",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_if_include": assignment.site.interface,
    }
    # Seconds between SIGTERM and SIGKILL, so that a rank can write its exit report.
    return {**({} if assignment.site.mpirun else over_ssh), "PRTE_MCA_odls_base_sigkill_timeout": "5"}


def hosts(assignment: RankAssignment) -> str:
    """Open MPI's hosts file: nodes in the order of their ranks."""
    nodes = [agent for agent in assignment.agents if agent.ranks]
    return "".join(f"{node.address} slots={len(node.ranks)}\n" for node in nodes)


def launcher_of(assignment: RankAssignment) -> AgentInfo:
    return next(agent for agent in assignment.agents if agent.role == "launcher")
